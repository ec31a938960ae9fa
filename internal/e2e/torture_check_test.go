//go:build torture

package e2e_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// fencedReceiver does what a good receiver does: it honours the Idempotency-Key,
// and once it was asked about a job it takes no earlier attempt of it any more.
type fencedReceiver struct {
	*httptest.Server
	mu     sync.Mutex
	calls  int
	done   map[string]int      // job → how often its work was done
	fences map[string]int64    // job → the lowest fencing token that may still work
	work   map[string][]worked // path and business key → work on it
}

// worked is one piece of work from its begin to its end.
type worked struct {
	job        string
	token      int64
	begin, end time.Time
}

func newFencedReceiver(t testing.TB) *fencedReceiver {
	r := &fencedReceiver{done: map[string]int{}, fences: map[string]int64{}, work: map[string][]worked{}}
	r.Server = httptest.NewServer(http.HandlerFunc(r.serve))
	t.Cleanup(func() {
		r.CloseClientConnections()
		r.Close()
	})
	return r
}

func (r *fencedReceiver) serve(w http.ResponseWriter, req *http.Request) {
	job := strings.Trim(req.Header.Get("Idempotency-Key"), `"`)
	token, _ := strconv.ParseInt(req.Header.Get("Sekali-Fencing-Token"), 10, 64)
	var payload struct{ Business string }
	_ = json.NewDecoder(req.Body).Decode(&payload)
	begin, of := time.Now(), req.URL.Path+" "+payload.Business
	r.mu.Lock()
	r.calls++
	n := r.calls
	switch {
	case req.URL.Path == "/asked":
		r.fences[job] = max(r.fences[job], token)
		did := r.done[job] > 0
		r.mu.Unlock()
		if !did {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		fmt.Fprint(w, `{"did":true}`)
		return
	case token < r.fences[job]:
		r.mu.Unlock()
		w.WriteHeader(http.StatusPreconditionFailed)
		return
	}
	r.fences[job] = token
	r.done[job]++
	r.mu.Unlock()
	timer := time.NewTimer(time.Duration(5+n%40) * time.Millisecond)
	<-timer.C
	if n%9 == 0 && req.URL.Path != "/call" && req.URL.Path != "/queued" { // the work is done, and the answer lost
		panic(http.ErrAbortHandler)
	}
	r.mu.Lock()
	r.work[of] = append(r.work[of], worked{job, token, begin, time.Now()})
	r.mu.Unlock()
	fmt.Fprint(w, `{"did":true}`)
}

// check compares what is there with what is promised.
func (w *tortured) check(p plan, did map[string]int) {
	t := w.t
	for _, key := range w.acknowledged() {
		if n := count(t, w.db, `select count(*) from finished_jobs where tenant = 'default' and key = $1`, key); n != 1 {
			t.Errorf("%s was acknowledged and is %d jobs", key, n)
		}
	}
	none := func(what, query string) {
		if found := text(t, w.db, `select coalesce(string_agg(x, '; '), '') from (`+query+` limit 5) as found(x)`); found != "" {
			t.Errorf("%s: %s", what, found)
		}
	}
	none("a transactional effect that is not exactly once", `
		select f.key || ': ' || f.state || ', ' || count(e.job) from finished_jobs f left join effects e on e.job = f.id::text
		where f.type = 'write' group by f.key, f.state having count(e.job) <> case f.state when 'succeeded' then 1 else 0 end`)
	none("an operation that was done more than once", `
		select what || ': ' || count(*) from effects where what like 'operation %' group by what having count(*) > 1`)
	none("an operation of successful jobs that nobody did", `
		select f.operation_key from finished_jobs f where f.type = 'write_once' and f.state = 'succeeded'
		and not exists (select 1 from effects e where e.what = 'operation ' || f.operation_key)`)
	none("a duplicate that does not name the first one", `
		select key from finished_jobs where outcome = 'duplicate_ignored' and duplicate_of is null`)
	none("a failed job that was not compensated once for each time", `
		select f.key || ' ' || f.generation || ': ' || count(e.job) from finished_jobs f left join effects e on e.what = 'undo ' || f.id
		where f.type = 'poison' and f.state = 'failed' group by f.key, f.generation, f.id having count(e.job) not between 1 and f.generation`)
	none("attempts beyond the limit", `
		select key from finished_jobs where attempt > max_attempts + earlier_attempts + 1`)
	none("a cancelled job with work committed", `
		select f.key from finished_jobs f join effects e on e.job = f.id::text where f.state = 'cancelled'`)
	// Half a second of mercy: started_at is when the claim began, which on a busy
	// machine is before it saw that the attempt before had ended.
	none("attempts of one job that overlap", `
		select a.job_id || ': ' || a.token from job_attempts a join job_attempts b on b.slot = a.slot and b.job_id = a.job_id and b.token = a.token + 1
		where b.started_at < a.finished_at - interval '500 milliseconds'`)
	w.receiver.check(t, w.succeeded())
	w.checkBite(p, did)
}

// attempted is one attempt.
type attempted struct {
	job   string
	token int64
}

// succeeded are the attempts whose answer ended their job.
func (w *tortured) succeeded() map[attempted]bool {
	rows, err := w.db.Query(`select job_id, token from job_attempts where outcome = 'succeeded'`)
	if err != nil {
		w.t.Fatal(err)
	}
	defer rows.Close()
	found := map[attempted]bool{}
	for rows.Next() {
		var one attempted
		if err := rows.Scan(&one.job, &one.token); err != nil {
			w.t.Fatal(err)
		}
		found[one] = true
	}
	if err := rows.Err(); err != nil || len(found) == 0 {
		w.t.Fatalf("%d attempts succeeded: %v", len(found), err)
	}
	return found
}

// check: work that was asked about is done once, and the work of two jobs of one
// business key that queues does not overlap. Times are those of this process: the
// database's tell when a statement began, which may be long before it saw anything.
func (r *fencedReceiver) check(t testing.TB, succeeded map[attempted]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	queued := 0
	for of, all := range r.work {
		path, business, _ := strings.Cut(of, " ")
		if path == "/reconciled" || path == "/once" {
			for _, one := range all {
				if r.done[one.job] > 1 {
					t.Errorf("%s: the work of job %s was done %d times although it is asked about", path, one.job, r.done[one.job])
				}
			}
		}
		if path == "/queued" {
			queued += checkQueue(t, business, all, succeeded)
		}
	}
	if queued == 0 {
		t.Error("void: no work of a queue counted")
	}
}

// checkQueue looks at the attempts alone whose answer counted. The receiver goes on
// for a while with what was called off, by a cancellation or a lost lock, and gets
// late calls of replicas that were stopped: the next job does not wait for those.
func checkQueue(t testing.TB, business string, all []worked, succeeded map[attempted]bool) (pieces int) {
	counted := slices.DeleteFunc(slices.Clone(all), func(one worked) bool { return !succeeded[attempted{one.job, one.token}] })
	slices.SortFunc(counted, func(a, b worked) int { return a.begin.Compare(b.begin) })
	for i := 1; i < len(counted); i++ {
		if before, after := counted[i-1], counted[i]; after.begin.Before(before.end) {
			t.Errorf("business key %s: jobs %s (token %d) and %s (token %d) were worked on at the same time",
				business, before.job, before.token, after.job, after.token)
		}
	}
	return len(counted)
}

// stale counts the calls on timelines that were refused, lost the attempts that others
// had to take up.
func (w *tortured) stale() int {
	return count(w.t, w.db, `select count(*) from job_events where event in ('stale_completion_refused', 'heartbeat_lost')`)
}

func (w *tortured) lost() int {
	return count(w.t, w.db, `select count(*) from job_attempts where outcome = 'lost'`)
}

func (w *tortured) bitten() bool { return w.stale() > 0 && w.lost() > 0 }

// checkBite fails a run whose faults changed nothing.
func (w *tortured) checkBite(p plan, did map[string]int) {
	t := w.t
	refused, lost := w.stale(), w.lost()
	unlocked := 0.0
	for _, r := range w.replicas {
		unlocked += r.gateway().measured("sekali_attempts_unlocked_total")
	}
	fmt.Printf("%s: %d attempts lost, %d stale calls on timelines, %.0f attempts without a lock, %d jobs duplicate_ignored, %d cancelled, %d parked\n", t.Name(), lost, refused, unlocked,
		count(t, w.db, `select count(*) from finished_jobs where outcome = 'duplicate_ignored'`),
		count(t, w.db, `select count(*) from finished_jobs where state = 'cancelled'`),
		count(t, w.db, `select count(*) from finished_jobs where outcome = 'outcome_unknown'`))
	if len(did) < leastFaults {
		t.Errorf("void: only these faults: %v", did)
	}
	if p.unscathed && refused > 0 {
		t.Errorf("no replica was hurt, and %d calls were stale", refused)
	}
	if !p.unscathed && (refused == 0 || lost == 0) {
		t.Errorf("void: no stale call was refused (%d), or no attempt lost (%d)", refused, lost)
	}
	if p.redis && unlocked == 0 && p.unscathed {
		t.Error("void: Redis was never missed")
	}
}
