package middleware_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/idempotency/memory"
	"github.com/sekali/sekali/middleware"
)

// The same promises with a store that passes the contract suite.
func TestOnce_WithTheMemoryStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		s := memory.New(time.Now, memory.WithTombstone(time.Hour))
		h := protect(s, middleware.Options{Lease: 3 * time.Second, Keep: time.Hour}, counted(&runs, func(w http.ResponseWriter, r *http.Request) {
			asleep(10 * time.Second)
			if runs.Load() == 1 {
				w.WriteHeader(503)
				return
			}
			created(w, r)
		}))
		first := running(h)
		refused(t, send(h, keyedAs("k", "{}")), 409, "idempotency-key-in-use")
		refused(t, send(h, keyedAs("k", "[]")), 422, "idempotency-key-reused")
		var group sync.WaitGroup
		for range 30 {
			group.Go(func() { answers(t, send(h, keyedAs("k", "{}", "wait=30")), 201) })
		}
		group.Wait()
		answers(t, <-first, 503)
		answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotent-Replayed", "true")
		if runs.Load() != 2 {
			t.Errorf("%d runs", runs.Load())
		}
		asleep(time.Hour)
		refused(t, send(h, keyedAs("k", "{}")), 422, "idempotency-key-retired")
		asleep(time.Hour)
		answers(t, send(h, keyedAs("k", "{}")), 201, "Idempotent-Replayed", "false")
	})
}
