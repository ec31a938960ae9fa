package e2e_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// queue is a receiver that notes in which order the jobs of each business key
// come, and whether two of one key were ever there at once.
type queue struct {
	*receiver
	mu     sync.Mutex
	inside map[string][]visit
	order  map[string][]string // job keys in the order of their first calls
	met    []meeting
}

// visit is the call of one attempt.
type visit struct{ key, token string }

// meeting is of a call with one of the same business key that is there yet.
type meeting struct{ there, came visit }

// newQueue takes some milliseconds for each call. The payload is the business
// key.
func newQueue(t testing.TB) *queue {
	q := &queue{inside: map[string][]visit{}, order: map[string][]string{}}
	q.receiver = newReceiver(t, func(_ http.ResponseWriter, c call, n int) {
		name, came := string(c.body), visit{c.key(), c.Header.Get("Sekali-Fencing-Token")}
		q.change(func() {
			for _, there := range q.inside[name] {
				q.met = append(q.met, meeting{there, came})
			}
			q.inside[name] = append(q.inside[name], came)
			if n == 1 {
				q.order[name] = append(q.order[name], c.key())
			}
		})
		<-time.After(3 * time.Millisecond) // the work
		q.change(func() {
			q.inside[name] = slices.DeleteFunc(q.inside[name], func(v visit) bool { return v == came })
		})
	})
	return q
}

func (q *queue) change(with func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	with()
}

func (q *queue) config() string {
	return keptLease + fmt.Sprintf("\njob_types: {serial: {executor: http, on_business_key_conflict: queue, http: {url: %q}}}", q.URL)
}

func serial(business string) string {
	return fmt.Sprintf(`{"type":"serial","business_key":%[1]q,"payload":%[1]q}`, business)
}

// ran fails unless the jobs of the business key ran in that order, never two at
// a time.
func (q *queue) ran(t testing.TB, business string, keys []string) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	if got := q.order[fmt.Sprintf("%q", business)]; !slices.Equal(got, keys) {
		t.Errorf("%s ran in the order\n%v, want\n%v", business, got, keys)
	}
	if len(q.met) > 0 {
		t.Errorf("two at a time: %v", q.met)
	}
}

// apart fails if a call came while another one was under way. One that was cancelled
// is under way no more, though the receiver may not have noticed it yet.
func (q *queue) apart(t testing.TB, db *sql.DB) {
	t.Helper()
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, m := range q.met {
		if count(t, db, `select count(*) from job_attempts a join finished_jobs f on f.slot = a.slot and f.id = a.job_id
			where f.key = $1 and a.token = $2 and a.outcome in ('cancelled', 'lost')`, m.there.key, m.there.token) == 0 {
			t.Errorf("two at a time: %v", m)
		}
	}
}

func TestContract_Row80_Failure_Q27_BatchesAndSinglesOfOneBusinessKeyKeepTheirOrder(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		q := newQueue(t)
		g := start(t, database, q.config())
		var items, keys []string
		for i := range 15 {
			for _, business := range []string{"a", "b"} {
				key := fmt.Sprintf("%s-batch-%02d", business, i)
				items = append(items, strings.Replace(serial(business), "{", fmt.Sprintf(`{"key":%q,`, key), 1))
			}
			keys = append(keys, fmt.Sprintf("a-batch-%02d", i))
		}
		for _, r := range g.batch("[" + strings.Join(items, ",") + "]") {
			if fmt.Sprint(r["status"]) != "202" {
				t.Errorf("%v", r)
			}
		}
		for i := range 5 {
			keys = append(keys, fmt.Sprint("a-single-", i))
			g.submit(keys[len(keys)-1], serial("a")).want(t, http.StatusAccepted, "Job-Status: pending", "Idempotency-Status:")
		}
		g.submit(keys[3], serial("a")).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
		for _, key := range append(slices.Clone(keys), "b-batch-14") {
			is(t, g.finished(key), "succeeded 1", "status", "attempts")
		}
		q.ran(t, "a", keys)
		if n := q.called(); n != 35 {
			t.Errorf("calls for %d jobs", n)
		}
		sound(t, beside(t, database))
	})
}

func TestContract_Row80_Failure_Q27_OrderOfArrivalOverThreeReplicas(t *testing.T) {
	t.Parallel()
	const jobs, keys = 40, 4
	database, q := testenv.Postgres(t), newQueue(t)
	replicas := []*gateway{start(t, database, q.config()), start(t, database, q.config()), start(t, database, q.config())}
	arrived := make([][]string, keys)
	var wg sync.WaitGroup
	for k := range keys {
		wg.Go(func() {
			for i := range jobs { // one after the other, so that there is an order of arrival
				key := fmt.Sprintf("%d-%02d", k, i)
				persist(t, key, serial(fmt.Sprint("b-", k)), replicas[(i+k)%len(replicas)])
				arrived[k] = append(arrived[k], key)
			}
		})
	}
	wg.Wait()
	db := beside(t, database)
	testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
	for k := range keys {
		q.ran(t, fmt.Sprint("b-", k), arrived[k])
	}
	if n := count(t, db, `select count(*) from finished_jobs where state = 'succeeded' and attempt = 1`); n != jobs*keys {
		t.Errorf("%d jobs succeeded with their first attempt", n)
	}
	if n := count(t, db, `select count(distinct worker_id) from finished_jobs`); n < 2 {
		t.Errorf("%d replicas ran the jobs: the test shows less than it should", n)
	}
	sound(t, db)
	quiet(t, db)
}

// However its holder ends, a business key goes to the job that came next; and no
// key waits for another one's.
func TestContract_Row80_Failure_Q5_Q16_WhateverEndsTheHolderFreesTheNext(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		s, held := newSink(t), newHeldReceiver(t)
		g := start(t, database, both(t, s.types(map[string]string{"ok": "/ok", "wrong": "/status/400"}), held.config(), `
defaults: {lease: 30s}
job_types:
  ok: {on_business_key_conflict: queue}
  wrong: {on_business_key_conflict: queue}
  call: {on_business_key_conflict: queue}
`))
		// This key is held all the time.
		g.submit("held", `{"type":"call","business_key":"held"}`)
		next(t, held.begun, 1, "begun")
		g.submit("held-next", `{"type":"call","business_key":"held"}`).want(t, http.StatusAccepted)

		g.queued(t, "ok", "cancelled", `,"delay_seconds":3600`)
		g.cancel("cancelled-2").want(t, http.StatusOK, "Job-Status: cancelled") // one that waits can go, too
		g.cancel("cancelled-0").want(t, http.StatusOK, "Job-Status: cancelled")
		g.allEnded(t, "cancelled", "cancelled succeeded cancelled succeeded")

		g.queued(t, "ok", "expired", `,"delay_seconds":3600,"expires_in_seconds":5`) // not before all four are there
		g.allEnded(t, "expired", "failed succeeded succeeded succeeded")

		g.switchType("wrong", "pause").want(t, http.StatusOK)
		g.queued(t, "wrong", "failed", "")
		g.switchType("wrong", "resume").want(t, http.StatusOK)
		g.allEnded(t, "failed", "failed failed failed failed")

		g.queued(t, "call", "running", "")
		next(t, held.begun, 1, "begun")
		g.cancel("running-0").want(t, http.StatusAccepted)
		next(t, held.left, 1, "been given up")
		is(t, g.get("/jobs/held-next").json(t), "pending 0", "status", "attempts")
		close(held.let[1]) // everything that follows is answered at once
		g.allEnded(t, "running", "cancelled succeeded succeeded succeeded")
		is(t, g.finished("held-next"), "succeeded 1", "status", "attempts")
		sound(t, beside(t, database))
	})
}

// queued submits a holder of the business key name, and three jobs that wait for
// it.
func (g *gateway) queued(t testing.TB, kind, name, holder string) {
	t.Helper()
	for i := range 4 {
		g.submit(fmt.Sprint(name, "-", i), fmt.Sprintf(`{"type":%q,"business_key":%q%s}`, kind, name, holder)).want(t, http.StatusAccepted)
		holder = ""
	}
	is(t, g.get("/jobs/"+name+"-1").json(t), "pending 0", "status", "attempts")
}

// allEnded fails unless the four jobs ended so.
func (g *gateway) allEnded(t testing.TB, name, want string) {
	t.Helper()
	var jobs []map[string]any
	for i := range 4 {
		jobs = append(jobs, g.finished(fmt.Sprint(name, "-", i)))
	}
	if got := column(jobs, "status"); got != want {
		t.Errorf("the jobs of %s ended %s, want %s", name, got, want)
	}
}

// The holder's process dies with it; the next job must not overtake its second
// attempt.
func TestFailure_BR49_Row80_AKilledHolderKeepsItsPlace(t *testing.T) {
	t.Parallel()
	database, r := testenv.Postgres(t), newHeldReceiver(t)
	config := both(t, r.config(), "defaults: {lease: 5s}\njob_types: {call: {on_business_key_conflict: queue, max_attempts: 2}}")
	holder := start(t, database, config)
	holder.submit("first", `{"type":"call","business_key":"42"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	holder.submit("second", `{"type":"call","business_key":"42"}`).want(t, http.StatusAccepted)
	heir := start(t, database, config)
	holder.kill()
	next(t, r.begun, 2, "begun") // the first one's second
	is(t, heir.get("/jobs/first").json(t), "processing 2", "status", "attempts")
	is(t, heir.get("/jobs/second").json(t), "pending 0", "status", "attempts")
	heir.kill() // and that one is lost too: the holder fails for good
	last := start(t, database, config)
	next(t, r.begun, 1, "begun by the second job")
	j := last.finished("first")
	is(t, j, "failed 2", "status", "attempts")
	if !strings.HasPrefix(failure(j), "lost ") {
		t.Errorf("%v", j)
	}
	close(r.let[1])
	is(t, last.finished("second"), "succeeded 1", "status", "attempts")
	db := beside(t, database)
	sound(t, db)
	quiet(t, db)
	if errors := errorLines(last); len(errors) > 0 {
		t.Errorf("errors in the log: %q", errors)
	}
}

// Retries, new jobs, cancellations and ends of one business key, all at once.
func TestContract_Row80_Failure_Q5_ACrowdAtOneBusinessKeyEndsInOrder(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		jobs := 60
		q := newQueue(t)
		replicas := []*gateway{start(t, database, q.config())}
		if onSQLite(database) {
			jobs = 30 // one writer takes longer
		} else {
			replicas = append(replicas, start(t, database, q.config()))
		}
		limit := make(chan struct{}, 10)
		var wg sync.WaitGroup
		for i := range jobs {
			wg.Go(func() {
				limit <- struct{}{}
				defer func() { <-limit }()
				key, g := fmt.Sprint("k-", i), replicas[i%len(replicas)]
				persist(t, key, serial("crowd"), g)
				if i%3 == 0 {
					return
				}
				a := insist(g, "/jobs/"+key+"/cancel")
				if a.Response == nil || a.StatusCode >= 500 {
					t.Errorf("%s: cancel: %v", key, a.Response)
				}
				if i%3 == 1 {
					a := insist(g, "/jobs/"+key+"/retry", "Idempotency-Key: op-"+key)
					if a.Response == nil || a.StatusCode != http.StatusAccepted && a.StatusCode != http.StatusUnprocessableEntity {
						t.Errorf("%s: retry: %v %s", key, a.Response, a.body)
					}
				}
			})
		}
		wg.Wait()
		db := beside(t, database)
		testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
		if n := count(t, db, `select count(*) from finished_jobs`); n != jobs {
			t.Errorf("%d jobs ended, want %d", n, jobs)
		}
		if n := count(t, db, `select count(*) from finished_jobs where state = 'succeeded'`); n < jobs/3 {
			t.Errorf("%d jobs succeeded, at least %d were left alone", n, jobs/3)
		}
		if n := count(t, db, `select count(*) from finished_jobs where state not in ('succeeded', 'cancelled')`); n != 0 {
			t.Errorf("%d jobs ended in another way", n)
		}
		q.apart(t, db)
		sound(t, db)
	})
}

func TestFailure_Q26_Row80_ABusinessKeyOfARunningJob(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r := newHeldReceiver(t)
		g := start(t, database, both(t, r.config(), keptLease))
		g.submit("k", `{"type":"call","business_key":"42"}`).want(t, http.StatusAccepted)
		next(t, r.begun, 1, "begun")
		for range 3 {
			a := g.submit("again", `{"type":"call","business_key":"42"}`).want(t, http.StatusOK, "Location: /jobs/k", "Job-Status: processing", "Idempotency-Status: duplicate_ignored")
			is(t, a.json(t), "k processing 1", "key", "status", "attempts")
		}
		for _, a := range []answer{g.cancel("again"), g.retry("again", "op"), g.resolve("again", "op", `{"status":"failed"}`)} {
			if p := a.problem(t, http.StatusNotFound, "job-not-found"); p["job"] != "/jobs/k" {
				t.Errorf("through an alias: %s", a.body)
			}
		}
		close(r.let[1])
		is(t, g.finished("again"), "k succeeded 1", "key", "status", "attempts")
		if n := len(r.seen()); n != 1 {
			t.Errorf("%d calls", n)
		}
		sound(t, beside(t, database))
	})
}
