package e2e_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// forExampleWorkers is the configuration of the example workers with leases that
// are soon over.
func forExampleWorkers(t testing.TB, lease time.Duration, more ...string) string {
	t.Helper()
	leases := fmt.Sprintf("job_types: {thumbnail: {lease: %s}, sleep: {lease: %[1]s}}", lease)
	return both(t, append([]string{repositoryFile(t, "examples/worker-python/sekali.yaml"), leases}, more...)...)
}

// onExampleWorkers runs the test with each of the workers, on each engine.
func onExampleWorkers(t *testing.T, test func(t *testing.T, kind, database string)) {
	t.Helper()
	t.Parallel()
	for engine, database := range engines {
		for kind := range exampleWorkers {
			t.Run(engine+"/"+kind, func(t *testing.T) {
				t.Parallel()
				test(t, kind, database(t))
			})
		}
	}
}

// onEachExampleWorker runs the test with each of the workers, for what does not
// hang on the engine.
func onEachExampleWorker(t *testing.T, test func(t *testing.T, kind, database string)) {
	t.Helper()
	t.Parallel()
	for kind, database := range map[string]func(testing.TB) string{"python": testenv.Postgres, "node": testenv.SQLite} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			test(t, kind, database(t))
		})
	}
}

func TestExampleWorkers_HaveOneConfiguration(t *testing.T) {
	t.Parallel()
	if repositoryFile(t, "examples/worker-python/sekali.yaml") != repositoryFile(t, "examples/worker-node/sekali.yaml") {
		t.Error("the two workers are no longer served by the same gateway")
	}
}

func TestExampleWorkers_SayHowEachJobEnded(t *testing.T) {
	onEachExampleWorker(t, func(t *testing.T, kind, database string) {
		const lease = 5 * time.Second // a machine may stand still for three
		g := start(t, database, forExampleWorkers(t, lease))
		w := startWorker(t, kind, g.url, "SLOTS=4")

		g.submit("good", `{"type":"thumbnail","payload":{"pixels":[[0,10,7],[20,30,8]]}}`).want(t, http.StatusAccepted)
		g.submit("bad", `{"type":"thumbnail","payload":{"pixels":"none"}}`).want(t, http.StatusAccepted)
		g.submit("wrong", `{"type":"sleep","payload":null,"max_attempts":2}`).want(t, http.StatusAccepted)
		g.submit("long", fmt.Sprintf(`{"type":"sleep","payload":{"seconds":%v}}`, 2.2*lease.Seconds())).want(t, http.StatusAccepted)

		good := g.finished("good")
		is(t, good, "succeeded 1 "+w.name, "status", "attempts", "worker_id")
		if result := g.get("/jobs/good/result"); strings.ReplaceAll(string(result.body), " ", "") != `{"pixels":[[15,7]]}` {
			t.Errorf("the thumbnail is %s", result.body)
		}
		bad := g.finished("bad")
		is(t, bad, "failed 1", "status", "attempts")
		if detail := fmt.Sprint(bad["error"].(map[string]any)["detail"]); !strings.Contains(detail, "not an image") {
			t.Errorf("the failure is told as %q", detail)
		}
		is(t, g.finished("wrong"), "failed 2", "status", "attempts")
		is(t, g.finished("long"), "succeeded 1", "status", "attempts") // by heartbeats: a lease and what it takes to notice its end are shorter
	})
}

func TestContract_Row102_AnExampleWorkerStopsACancelledJob(t *testing.T) {
	onEachExampleWorker(t, func(t *testing.T, kind, database string) {
		const lease = 9 * time.Second // the cancel comes within it, and a third of it later the heartbeat
		g := start(t, database, forExampleWorkers(t, lease))
		startWorker(t, kind, g.url, "SLOTS=1")
		g.submit("endless", `{"type":"sleep","payload":{"seconds":600}}`)
		g.became(t, "endless", "processing")
		g.do(http.MethodPost, "/jobs/endless/cancel", "").want(t, http.StatusAccepted)
		is(t, g.finished("endless"), "cancelled 1", "status", "attempts")
		g.submit("next", `{"type":"sleep","payload":{"seconds":0}}`)
		is(t, g.finished("next"), "succeeded", "status") // the slot is free again
	})
}

// The gateway is killed while a worker works, and comes back when the work is
// done: the result was kept.
func TestFailure_BR62_AnExampleWorkerOutlivesItsGateway(t *testing.T) {
	onExampleWorkers(t, func(t *testing.T, kind, database string) {
		config := forExampleWorkers(t, time.Minute, "listen: 127.0.0.1:"+freePort(t))
		g := start(t, database, config)
		w := startWorker(t, kind, g.url, "SLOTS=2")
		g.submit("kept", `{"type":"sleep","payload":{"seconds":1}}`)
		g.became(t, "kept", "processing")
		g.kill()
		testenv.Eventually(t, 0, "the worker notices", func() bool { return strings.Contains(w.logged(), "no answer to a claim") })
		<-time.After(time.Second) // so that the work ends without a gateway
		g = start(t, database, config)
		is(t, g.finished("kept"), "succeeded 1 "+w.name, "status", "attempts", "worker_id")
		g.submit("next", `{"type":"sleep","payload":{"seconds":0}}`)
		is(t, g.finished("next"), "succeeded 1 "+w.name, "status", "attempts", "worker_id")
	})
}

func TestFailure_BR61_AnExampleWorkerFinishesOrHandsBackOnSIGTERM(t *testing.T) {
	onEachExampleWorker(t, func(t *testing.T, kind, database string) {
		g := start(t, database, forExampleWorkers(t, time.Minute))
		first := startWorker(t, kind, g.url, "SLOTS=2", "GRACE=8")
		g.submit("endless", `{"type":"sleep","payload":{"seconds":600}}`)
		g.submit("short", `{"type":"sleep","payload":{"seconds":4}}`)
		g.became(t, "endless", "processing")
		g.became(t, "short", "processing")
		first.end(time.Minute)
		is(t, g.get("/jobs/short").json(t), "succeeded 1", "status", "attempts")
		is(t, g.get("/jobs/endless").json(t), "pending 0", "status", "attempts")

		second := startWorker(t, kind, g.url)
		if second.name == first.name {
			t.Errorf("both processes are %s", first.name)
		}
		is(t, g.became(t, "endless", "processing"), "1 "+second.name, "attempts", "worker_id")
	})
}

// A worker's machine stands still, and another worker does its job meanwhile.
func TestContract_Row109_AnExampleWorkerThatComesTooLateThrowsItsWorkAway(t *testing.T) {
	onEachExampleWorker(t, func(t *testing.T, kind, database string) {
		g := start(t, database, forExampleWorkers(t, 6*time.Second))
		stopped := startWorker(t, kind, g.url, "SLOTS=1") // and so no claim of it waits while it works
		// Long enough for the worker to be stopped in its midst, and shorter than a lease, so
		// that the other one needs no heartbeat.
		g.submit("taken", `{"type":"sleep","payload":{"seconds":4}}`)
		g.became(t, "taken", "processing")
		stopped.signal(syscall.SIGSTOP)
		heir := startWorker(t, kind, g.url)
		is(t, g.finished("taken"), "succeeded 2 "+heir.name, "status", "attempts", "worker_id")
		etag := g.get("/jobs/taken").Header.Get("ETag")
		stopped.signal(syscall.SIGCONT)
		testenv.Eventually(t, 0, "the stopped worker learns that it is too late", func() bool { return strings.Contains(stopped.logged(), "came too late") })
		g.get("/jobs/taken").want(t, http.StatusOK, "ETag: "+etag)
		g.submit("next", `{"type":"sleep","payload":{"seconds":0}}`)
		is(t, g.finished("next"), "succeeded 1", "status", "attempts")
		sound(t, beside(t, database))
	})
}

// A worker that may not, or that asks for what there is not, says so and ends.
func TestExampleWorkers_EndWhenTheyAreRefused(t *testing.T) {
	t.Parallel()
	g := start(t, testenv.SQLite(t), `job_types: {thumbnail: {executor: remote}}`)
	for kind := range exampleWorkers {
		w := startWorker(t, kind, g.url)
		select {
		case <-w.exited:
		case <-time.After(30 * time.Second):
			t.Fatalf("the %s worker still runs", kind)
		}
		if code := w.cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(w.logged(), "validation-failed") {
			t.Errorf("the %s worker ended with %d and\n%s", kind, code, w.logged())
		}
	}
}

// A gateway that is crowded, or away for a while, says when to ask again.
func TestExampleWorkers_AskAgainWhenTheyAreToldTo(t *testing.T) {
	t.Parallel()
	for kind := range exampleWorkers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			asked := make(chan time.Time, 100)
			crowded := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "1")
				if len(asked) == 0 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				fmt.Fprint(w, `{"executions":[]}`)
				asked <- time.Now()
			}))
			t.Cleanup(crowded.Close)
			startWorker(t, kind, crowded.URL)
			testenv.Eventually(t, 0, "the worker has asked three times", func() bool { return len(asked) >= 3 })
			for before := <-asked; len(asked) > 0; {
				next := <-asked
				if pause := next.Sub(before); pause < 900*time.Millisecond {
					t.Errorf("the worker asked again after %v", pause)
				}
				before = next
			}
		})
	}
}
