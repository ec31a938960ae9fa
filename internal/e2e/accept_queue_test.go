package e2e_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
)

// While the database is silent submissions gather. Those that find no room are
// refused at once, and none of them has used up its key.
func TestContract_Row72_TheAcceptQueueIsFull(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	w := newWire(t, database)
	g := start(t, w.url, "limits: {accept_queue: 3}\njob_types: {ok: {executor: echo}}")
	g.submit("warm", `{"type":"ok"}`).want(t, http.StatusAccepted)

	thaw := w.freeze()
	defer thaw()
	const clients = 20 // more than are on their way and in the queue
	var refused sync.Map
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() {
			key := fmt.Sprint("k", n)
			a := g.submit(key, `{"type":"ok"}`)
			if a.StatusCode != http.StatusServiceUnavailable {
				t.Errorf("%s: %d %s", key, a.StatusCode, a.body)
				return
			}
			if a.json(t)["code"] == "queue-full" {
				a.refused(t, http.StatusServiceUnavailable, "queue-full", true)
				a.want(t, http.StatusServiceUnavailable, "Retry-After: 1", "Idempotent-Replayed: false")
				refused.Store(key, true)
			}
		})
	}
	wg.Wait()
	thaw()
	n := 0
	refused.Range(func(key, _ any) bool {
		n++
		if a := g.get("/jobs/" + key.(string)); a.StatusCode != http.StatusNotFound {
			t.Errorf("%s was refused and is there: %d", key, a.StatusCode)
		}
		return true
	})
	if n == 0 || n > clients-3 {
		t.Errorf("%d of %d refused", n, clients)
	}
	for n := range clients {
		g.submit(fmt.Sprint("k", n), `{"type":"ok"}`).want(t, http.StatusAccepted)
	}
}
