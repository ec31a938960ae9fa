package middleware_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/middleware"
)

// asleep waits on the test's clock.
func asleep(d time.Duration) { <-time.NewTimer(d).C }

// running starts a first request whose handler takes a while.
func running(h http.Handler) (first chan *httptest.ResponseRecorder) {
	first = make(chan *httptest.ResponseRecorder, 1)
	go func() { first <- send(h, keyedAs("k", "{}")) }()
	synctest.Wait()
	return first
}

func TestContract_Row31_WaitsForTheAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var runs atomic.Int64
		h := protect(s, middleware.Options{}, counted(&runs, func(w http.ResponseWriter, r *http.Request) {
			asleep(9 * time.Second)
			created(w, r)
		}))
		first := running(h)
		started := time.Now()
		var group sync.WaitGroup
		for range 50 {
			group.Go(func() {
				w := send(h, keyedAs("k", "{}", "wait=20"))
				answers(t, w, 201, "Idempotent-Replayed", "true", "Preference-Applied", "wait=20")
			})
		}
		group.Wait()
		answers(t, <-first, 201, "Idempotent-Replayed", "false", "Preference-Applied", "")
		if took := time.Since(started); took != 9*time.Second || runs.Load() != 1 {
			t.Errorf("%d runs, took %s", runs.Load(), took)
		}
		// This process runs the handler itself: nothing to ask the store for meanwhile.
		if s.count("find") != 0 || s.count("begin") > 1+3*50 {
			t.Errorf("the store was asked %d and %d times", s.count("find"), s.count("begin"))
		}
	})
}

// The first request runs in another process: one waiter looks, for all.
func TestContract_Row31_RunningElsewhere(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		var runs atomic.Int64
		elsewhere := protect(s, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			asleep(9 * time.Second)
			created(w, r)
		})
		here := protect(s, middleware.Options{}, counted(&runs, created))
		first := running(elsewhere)
		started := time.Now()
		var group sync.WaitGroup
		for range 50 {
			group.Go(func() {
				answers(t, send(here, keyedAs("k", "{}", "wait=20")), 201, "Idempotent-Replayed", "true")
			})
		}
		group.Wait()
		<-first
		if took := time.Since(started); took < 9*time.Second || took > 9500*time.Millisecond || runs.Load() != 0 {
			t.Errorf("%d runs here, took %s", runs.Load(), took)
		}
		if looks := s.count("find"); looks > 25 {
			t.Errorf("the store was asked %d times in 9 s", looks)
		}
	})
}

func TestContract_Row31_RunsOut(t *testing.T) {
	t.Parallel()
	for prefer, granted := range map[string]time.Duration{"wait=3": 3 * time.Second, "wait=9999": 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			h := protect(newStore(), middleware.Options{}, func(http.ResponseWriter, *http.Request) { asleep(time.Minute) })
			first := running(h)
			started := time.Now()
			w := send(h, keyedAs("k", "{}", prefer))
			answers(t, w, 409, "Preference-Applied", "wait="+granted.String()[:len(granted.String())-1], "Retry-After", "5")
			refused(t, w, 409, "idempotency-key-in-use")
			if took := time.Since(started); took != granted {
				t.Errorf("%s: took %s", prefer, took)
			}
			answers(t, send(h, keyedAs("k", "{}", "wait=0")), 409, "Preference-Applied", "")
			refused(t, send(h, keyedAs("k", `{"other":1}`, "wait=20")), 422, "idempotency-key-reused")
			<-first
		})
	}
}

// Who waits for a request that then releases its key runs, one of them all.
func TestContract_Row31_Released(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		h := protect(newStore(), middleware.Options{}, counted(&runs, func(w http.ResponseWriter, r *http.Request) {
			asleep(time.Second)
			if runs.Load() == 1 {
				w.WriteHeader(500)
				return
			}
			created(w, r)
		}))
		first := running(h)
		var fresh atomic.Int64
		var group sync.WaitGroup
		for range 20 {
			group.Go(func() {
				w := send(h, keyedAs("k", "{}", "wait=20"))
				answers(t, w, 201)
				if w.Header().Get("Idempotent-Replayed") == "false" {
					fresh.Add(1)
				}
			})
		}
		group.Wait()
		answers(t, <-first, 500)
		if runs.Load() != 2 || fresh.Load() != 1 {
			t.Errorf("%d runs, %d of those who waited", runs.Load(), fresh.Load())
		}
	})
}

// Whose token is revoked while it waits gets neither the stored answer nor a run of
// its own.
func TestContract_Row19_Row31_NotLetInAnyMoreAfterTheWait(t *testing.T) {
	t.Parallel()
	for _, status := range []int{201, 500} { // stored, or released
		for name, with := range map[string]func(middleware.Options, http.HandlerFunc) http.Handler{
			"Once":   func(o middleware.Options, h http.HandlerFunc) http.Handler { return protect(newStore(), o, h) },
			"OnceTx": func(o middleware.Options, h http.HandlerFunc) http.Handler { return protectTx(newTxStore(), o, h) },
		} {
			t.Run(fmt.Sprint(name, " ", status), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var runs atomic.Int64
					options := middleware.Options{Still: func(*http.Request) error { return api.ErrUnauthenticated }}
					h := with(options, counted(&runs, func(w http.ResponseWriter, _ *http.Request) {
						asleep(time.Second)
						w.WriteHeader(status)
					}))
					first := running(h)
					refused(t, send(h, keyedAs("k", "{}", "wait=20")), 401, "unauthenticated")
					answers(t, <-first, status)
					if runs.Load() != 1 {
						t.Errorf("%d runs", runs.Load())
					}
				})
			})
		}
	}
}

// Who waits for a process that has died takes over when its lease has ended.
func TestContract_Row31_Row42_TakesOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		h := protect(s, middleware.Options{Lease: 10 * time.Second, MaxWait: time.Hour}, created)
		abandoned(t, s, "k")
		started := time.Now()
		answers(t, send(h, keyedAs("k", "{}", "wait=60")), 201, "Idempotent-Replayed", "false")
		if took := time.Since(started); took < 30*time.Second || took > 31*time.Second {
			t.Errorf("took %s", took)
		}
	})
}

func TestContract_Row32_WaiterLeaves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		limit := job.NewWaiterLimit(9, 9)
		h := protect(s, middleware.Options{Waiters: limit}, func(w http.ResponseWriter, r *http.Request) {
			asleep(10 * time.Second)
			created(w, r)
		})
		first := running(h)
		ctx, leave := context.WithCancel(t.Context())
		waiter := make(chan struct{})
		go func() {
			defer close(waiter)
			send(h, keyedAs("k", "{}", "wait=20").WithContext(ctx))
		}()
		synctest.Wait()
		started := time.Now()
		leave()
		<-waiter
		if time.Since(started) != 0 {
			t.Error("the waiter stayed")
		}
		answers(t, <-first, 201, "Idempotency-Status", "")
		for range 9 {
			if _, ok := limit.Enter(idempotency.DefaultTenant); !ok {
				t.Fatal("its place is still taken")
			}
		}
	})
}

func TestContract_Row90_TooManyWaiters(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := protect(newStore(), middleware.Options{Lease: time.Second, Waiters: job.NewWaiterLimit(1, 1)}, func(w http.ResponseWriter, r *http.Request) {
			asleep(10 * time.Second)
			created(w, r)
		})
		first := running(h)
		waiter := make(chan *httptest.ResponseRecorder)
		go func() { waiter <- send(h, keyedAs("k", "{}", "wait=20")) }()
		synctest.Wait()
		started := time.Now()
		answers(t, send(h, keyedAs("k", "{}", "wait=20")), 409, "Preference-Applied", "", "Retry-After", "5")
		if time.Since(started) != 0 {
			t.Error("it waited all the same")
		}
		answers(t, <-waiter, 201)
		<-first
	})
}

func TestOnce_StoppingEndsTheWait(t *testing.T) {
	t.Parallel()
	for _, local := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			s, stopping := newStore(), make(chan struct{})
			slow := func(http.ResponseWriter, *http.Request) { asleep(20 * time.Second) }
			here := protect(s, middleware.Options{Stopping: stopping}, slow)
			first := running(map[bool]http.Handler{true: here, false: protect(s, middleware.Options{}, slow)}[local])
			waiter := make(chan *httptest.ResponseRecorder)
			go func() { waiter <- send(here, keyedAs("k", "{}", "wait=15")) }()
			synctest.Wait()
			started := time.Now()
			close(stopping)
			answers(t, <-waiter, 409)
			if time.Since(started) != 0 {
				t.Error("it waited on")
			}
			<-first
		})
	}
}

// A store that does not answer while somebody waits is asked again.
func TestOnce_WaitsThroughAnOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStore()
		elsewhere := protect(s, middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			asleep(5 * time.Second)
			created(w, r)
		})
		first := running(elsewhere)
		waiter := make(chan *httptest.ResponseRecorder)
		go func() { waiter <- send(protect(s, middleware.Options{}, created), keyedAs("k", "{}", "wait=20")) }()
		synctest.Wait()
		s.set(down("find"))
		asleep(2 * time.Second)
		s.set(nil)
		answers(t, <-waiter, 201, "Idempotent-Replayed", "true")
		<-first
	})
}

// Nothing is kept of a key once nobody waits for it (BR-05).
func TestFailure_BR05_NothingIsKeptOfAKey(t *testing.T) {
	t.Parallel()
	f := middleware.NewFlights()
	for i := range 1000 {
		f.Pass(idempotency.Key(strconv.Itoa(i)), i%2 == 0)
	}
	if f.Size() != 0 {
		t.Errorf("%d keys are remembered", f.Size())
	}
}

// slowClient takes the body only when it is told to.
type slowClient struct {
	*httptest.ResponseRecorder
	reads chan struct{}
}

func (c slowClient) Write(p []byte) (int, error) {
	<-c.reads
	return c.ResponseRecorder.Write(p)
}

// A first client that is slow to read does not hold up who waits for the answer.
func TestContract_Row31_SlowFirstClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := protect(newStore(), middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
			asleep(time.Second)
			created(w, r)
		})
		slow := slowClient{httptest.NewRecorder(), make(chan struct{})}
		first := make(chan struct{})
		go func() {
			defer close(first)
			h.ServeHTTP(slow, keyedAs("k", "{}"))
		}()
		synctest.Wait()
		answers(t, send(h, keyedAs("k", "{}", "wait=20")), 201, "Idempotent-Replayed", "true")
		close(slow.reads)
		<-first
	})
}

// A handler that panics does not leave those behind who wait for it.
func TestContract_Row31_Row40_FirstPanics(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		h := protect(newStore(), middleware.Options{}, counted(&runs, func(w http.ResponseWriter, r *http.Request) {
			if runs.Load() == 1 {
				asleep(time.Second)
				panic("boom")
			}
			created(w, r)
		}))
		first := make(chan struct{})
		go func() {
			defer close(first)
			panics(h, keyedAs("k", "{}"))
		}()
		synctest.Wait()
		started := time.Now()
		answers(t, send(h, keyedAs("k", "{}", "wait=20")), 201, "Idempotent-Replayed", "false")
		if took := time.Since(started); took != time.Second {
			t.Errorf("took %s", took)
		}
		<-first
	})
}
