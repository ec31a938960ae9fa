package load_test

import (
	"context"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/bench/internal/load"
)

// server notes the keys of submissions, by how often they came, and answers with
// the status.
type server struct {
	address string

	mu     sync.Mutex
	keys   map[string]int
	bodies []string
}

func serve(t *testing.T, status int) *server {
	t.Helper()
	s := &server{keys: map[string]int{}}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		s.keys[r.Header.Get("Idempotency-Key")]++
		s.bodies = append(s.bodies, string(body))
		s.mu.Unlock()
		w.WriteHeader(status)
		_, _ = io.WriteString(w, strings.Repeat("y", 700))
	}))
	t.Cleanup(h.Close)
	s.address = strings.TrimPrefix(h.URL, "http://")
	return s
}

func TestClosed_EachSubmissionHasAKeyAndIsCounted(t *testing.T) {
	t.Parallel()
	const window = 2 * time.Second // a machine under load may stand still for one
	s := serve(t, http.StatusAccepted)
	got, err := load.Closed(t.Context(), load.Plan{
		Address: s.address, Connections: 4, Warm: 20 * time.Millisecond, Window: window, Source: load.Post("echo", "p"),
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Sent != len(s.keys) || got.Sent != len(s.bodies) {
		t.Errorf("%d sent, %d keys, %d requests", got.Sent, len(s.keys), len(s.bodies))
	}
	if got.Answered == 0 || got.Answered > got.Sent || got.Took < window || got.P50 > got.P99 {
		t.Errorf("the result is %+v", got)
	}
	if s.keys[load.Key("p", 3, 0)] != 1 {
		t.Errorf("no %s among the keys", load.Key("p", 3, 0))
	}
	for _, body := range s.bodies {
		if len(body) != load.BodyLength {
			t.Fatalf("a body of %d bytes: %s", len(body), body)
		}
	}
}

func TestClosed_AnAnswerThatIsNoSuccessFailsTheRun(t *testing.T) {
	t.Parallel()
	s := serve(t, http.StatusServiceUnavailable)
	_, err := load.Closed(t.Context(), load.Plan{Address: s.address, Connections: 2, Window: time.Minute, Source: load.Post("echo", "p")})
	if err == nil || !strings.Contains(err.Error(), "status 503") {
		t.Errorf("the error is %v", err)
	}
}

func TestClosed_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	s := serve(t, http.StatusOK)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := load.Closed(ctx, load.Plan{Address: s.address, Connections: 2, Window: time.Hour, Source: load.Post("echo", "p")})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
}

func TestRepost(t *testing.T) {
	t.Parallel()
	keys := []string{"key-1", "key-2", "key-3", "key-4", "key-5"}
	t.Run("each key once, and then the source is exhausted", func(t *testing.T) {
		t.Parallel()
		s := serve(t, http.StatusAccepted)
		got, err := load.Closed(t.Context(), load.Plan{Address: s.address, Connections: 2, Window: time.Minute, Source: load.Repost("echo", keys, 2, false)})
		if err != nil {
			t.Fatal(err)
		}
		if !got.Exhausted || got.Sent != len(keys) || got.Took >= time.Minute {
			t.Errorf("the result is %+v", got)
		}
		if found := slices.Sorted(maps.Keys(s.keys)); !slices.Equal(found, keys) {
			t.Errorf("the keys were %v", found)
		}
	})
	t.Run("the same keys again and again", func(t *testing.T) {
		t.Parallel()
		s := serve(t, http.StatusAccepted)
		again := func(connection int) load.Source { // ends it by a number: nobody knows how many a time is enough for
			source, left := load.Repost("echo", keys, 2, true)(connection), len(keys)
			return func() (load.Request, bool) {
				if left--; left < 0 {
					return nil, false
				}
				return source()
			}
		}
		got, err := load.Closed(t.Context(), load.Plan{Address: s.address, Connections: 2, Window: time.Minute, Source: again})
		if err != nil {
			t.Fatal(err)
		}
		if got.Sent != 2*len(keys) || len(s.keys) > len(keys) {
			t.Errorf("%d sent with %d keys", got.Sent, len(s.keys))
		}
	})
}

func TestOpen_KeepsTheRate(t *testing.T) {
	t.Parallel()
	s := serve(t, http.StatusAccepted)
	const jobs, rate = 40, 400
	before := time.Now()
	got, err := load.Open(t.Context(), load.Schedule{
		Address: s.address, Connections: 4, PerSecond: rate, Requests: jobs,
		Request: func(n int) load.Request { return load.One("echo", load.Key("p", 0, n)) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(s.keys) != jobs || len(got.Began) != jobs {
		t.Errorf("%d keys arrived, %d were begun", len(s.keys), len(got.Began))
	}
	for n, began := range got.Began { // the first one may be late itself
		if due := time.Duration(n) * time.Second / rate; began.Sub(before) < due {
			t.Errorf("number %d was begun after %v, and was due after %v", n, began.Sub(before), due)
		}
	}
}

func TestHold_ManyConnectionsWait(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	waiting := 0
	all := make(chan struct{})
	const connections = 40
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/wait" {
			return
		}
		mu.Lock()
		if waiting++; waiting == connections {
			close(all)
		}
		mu.Unlock()
		<-r.Context().Done()
	}))
	defer h.Close()
	ask := func(path string) func(int) load.Request {
		return func(int) load.Request {
			request, _ := load.Get(path)()
			return request
		}
	}
	held, err := load.Hold(t.Context(), strings.TrimPrefix(h.URL, "http://"), connections, ask("/"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := held.Send(0, connections, ask("/wait")); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	select {
	case <-all:
	case <-ctx.Done():
		t.Fatal("not all requests wait")
	}
}
