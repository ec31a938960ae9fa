package e2e_test

import (
	"database/sql"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// A role whose transactions are serializable unless they say otherwise: no job
// runs twice because of it, and nobody is told of an internal error.
func TestFailure_BR46_ASerializableRoleMakesNoJobRunTwice(t *testing.T) {
	t.Parallel()
	const jobs = 300
	server, s := private(t), newSink(t)
	database := server.Database(t)
	change(t, beside(t, server.URL()), `alter role postgres set default_transaction_isolation = 'serializable'`)
	config := both(t, s.types(map[string]string{"call": "/ok"}), effects, `
defaults: {lease: 30s}
job_types:
  add: {executor: sql, sql: {setup: "create table if not exists sums (n bigint not null)", statement: "update sums set n = n + 1"}}
`)
	a, b := start(t, database, config), start(t, database, config)
	db := beside(t, database)
	if got := text(t, db, `show transaction_isolation`); got != "serializable" {
		t.Fatalf("the role's transactions are %s", got)
	}
	change(t, db, `insert into sums (n) values (0)`)
	kinds := []string{"call", "effect", "add"} // the last ones all want one row
	persistAll(t, jobs, func(i int) (string, string) {
		return fmt.Sprint("k", i), fmt.Sprintf(`{"type":%q}`, kinds[i%len(kinds)])
	}, a, b)
	testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
	for what, got := range map[string]int{
		"jobs that succeeded":                 count(t, db, `select count(*) from finished_jobs where state = 'succeeded'`),
		"jobs with one attempt":               count(t, db, `select count(*) from finished_jobs where attempt = 1`),
		"calls":                               s.count() * 3,
		"effects":                             count(t, db, `select count(*) from effects`) * 3,
		"sums":                                count(t, db, `select n from sums`) * 3,
		"jobs without an attempt that failed": jobs - count(t, db, `select count(*) from job_attempts where outcome not in ('succeeded', 'released')`),
	} {
		if got != jobs {
			t.Errorf("%d %s, want %d", got, what, jobs)
		}
	}
	for _, g := range []*gateway{a, b} {
		if n := g.measured("sekali_http_requests_total", `status="500"`); n != 0 {
			t.Errorf("%v requests were answered 500", n)
		}
	}
	sound(t, db)
	quiet(t, db)
}

// blocker takes a table's lock away from all who write, and lets go of it again.
type blocker struct {
	t    testing.TB
	db   *sql.DB
	held *sql.Tx
}

func (b *blocker) block(table string) {
	b.t.Helper()
	tx, err := b.db.Begin()
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := tx.Exec(`lock table ` + table + ` in share row exclusive mode`); err != nil {
		b.t.Fatal(err)
	}
	b.held = tx
}

func (b *blocker) release() {
	b.t.Helper()
	if err := b.held.Rollback(); err != nil {
		b.t.Fatal(err)
	}
}

// cancelOne cancels one statement of the gateways that waits for the lock and
// whose text matches the pattern; it tells whether there was one.
func (b *blocker) cancelOne(pattern string) bool {
	b.t.Helper()
	return count(b.t, b.db, `select count(pg_cancel_backend(pid)) from (
		select pid from pg_stat_activity
		where datname = current_database() and application_name = 'sekali' and wait_event_type = 'Lock' and query ~ $1 limit 1) as waits(pid)`, pattern) > 0
}

// Statements of the gateway that the database cancels, twenty of them: claims,
// and the ends of attempts. That is no failure of any job.
func TestFailure_BR50_CancelledClaimsAndEndsUseUpNoAttempt(t *testing.T) {
	t.Parallel()
	database, s := testenv.Postgres(t), newSink(t)
	config := both(t, s.types(map[string]string{"call": "/slow?ms=20"}), effects, "dispatcher: {slots: 3}\ndefaults: {lease: 30s}")
	g := start(t, database, config)
	db := beside(t, database)
	const each, more, most = 10, 40, 2000
	jobs := 200
	submit := func(i int) (string, string) { return fmt.Sprint("k", i), []string{`{"type":"call"}`, effect}[i%2] }
	lock := &blocker{t: t, db: db}
	for i := range each {
		// With free slots somebody asks for work all the time. An attempt that is
		// under way when the table is locked would keep its slot until it can end.
		testenv.Eventually(t, 0, "the slots are free", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
		lock.block("jobs")
		testenv.Eventually(t, 0, "a claim was cancelled", func() bool { return lock.cancelOne("with recursive walk|with picked as materialized") })
		lock.release()
		key, body := submit(i)
		persist(t, key, body, g)
	}
	persistAll(t, jobs-each, func(i int) (string, string) { return submit(each + i) }, g)
	for cancelled := 0; cancelled < each; {
		if jobs-count(t, db, `select count(*) from finished_jobs`) < each { // an end needs a job that runs
			if jobs == most {
				t.Fatalf("only %d ends were cancelled while %d jobs ended", cancelled, jobs)
			}
			persistAll(t, more, func(i int) (string, string) { return submit(jobs + i) }, g)
			jobs += more
		}
		ended := count(t, db, `select count(*) from finished_jobs`)
		if ended == jobs {
			continue // sooner than we looked
		}
		lock.block("jobs")
		did := false
		// A lock is waited for no longer than a second; who is too late tries again.
		for end := time.Now().Add(time.Second); !did && time.Now().Before(end); {
			did = lock.cancelOne("as duplicate_of")
		}
		lock.release()
		if did {
			cancelled++
		}
		testenv.Eventually(t, 30*time.Second, "work goes on", func() bool { return count(t, db, `select count(*) from finished_jobs`) > ended })
	}
	testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
	if n := count(t, db, `select count(*) from finished_jobs where state = 'succeeded' and attempt = 1 and last_error is null`); n != jobs {
		t.Errorf("%d jobs succeeded with their first attempt, want %d", n, jobs)
	}
	if n := count(t, db, `select count(*) from job_attempts where outcome not in ('succeeded', 'released')`); n != 0 {
		t.Errorf("%d attempts failed or were lost", n)
	}
	if n, calls := count(t, db, `select count(*) from effects`), s.count(); n != jobs/2 || calls != jobs/2 {
		t.Errorf("%d effects and %d calls, want %d of each", n, calls, jobs/2)
	}
	if n := g.measured("sekali_loop_errors_total", `loop="claim"`); n == 0 {
		t.Error("no claim failed: the test shows less than it should")
	}
	sound(t, db)
}

// A job whose transaction the database chooses as a victim, of a deadlock or of a
// serialization failure, runs again, and has used up no attempt.
func TestFailure_BR46_BR50_AVictimOfTheDatabaseUsesUpNoAttempt(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	db := beside(t, database)
	// The gateway's transactions look for deadlocks sooner than ours, and are
	// therefore their victims. They look once, so long after they began to wait: by
	// then we must be waiting. The gateway's sessions begin after this.
	change(t, db, `do $$ begin execute format('alter database %I set deadlock_timeout = ''8s''', current_database()); end $$`)
	change(t, db, `create table accounts (name text primary key, n bigint not null)`)
	change(t, db, `insert into accounts (name, n) values ('a', 0), ('b', 0)`)
	change(t, db, `create sequence tries`)
	change(t, db, `create function fail_twice(code text) returns bigint language plpgsql as $$
		declare n bigint := nextval('tries');
		begin
			if n <= 2 then raise exception 'again' using errcode = code; end if;
			return n;
		end $$`)
	change(t, db, `create function add_to_both() returns void language plpgsql as $$
		begin
			update accounts set n = n + 1 where name = 'a';
			update accounts set n = n + 1 where name = 'b';
		end $$`)
	g := start(t, database, both(t, effects, keptLease, `
job_types:
  both: {executor: sql, max_attempts: 1, sql: {statement: "select add_to_both() is null as done"}}
  fickle:
    executor: sql
    max_attempts: 1
    sql: {statement: "insert into effects (job) select {{ .key }} where fail_twice({{ .payload.code }}) > 0"}
`))
	is(t, g.ended(t, "e0", effect), "succeeded", "status") // the table is there

	ours, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{`set local deadlock_timeout = '60s'`, `update accounts set n = n + 1 where name = 'b'`} {
		if _, err := ours.Exec(statement); err != nil {
			t.Fatal(err)
		}
	}
	g.submit("both", `{"type":"both"}`).want(t, http.StatusAccepted)
	testenv.Eventually(t, 0, "the job waits for our row", func() bool {
		return count(t, db, `select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' and query like 'select add_to_both()%'`) == 1
	})
	if _, err := ours.Exec(`update accounts set n = n + 1 where name = 'a'`); err != nil { // until the job is the victim
		t.Fatalf("we were the victim: %v", err)
	}
	if err := ours.Commit(); err != nil {
		t.Fatal(err)
	}
	is(t, g.finished("both"), "succeeded 1 <nil>", "status", "attempts", "error")
	if got := text(t, db, `select string_agg(cast(n as text), ' ' order by name) from accounts`); got != "2 2" {
		t.Errorf("the accounts hold %s, want what we and the job added", got)
	}
	testenv.Eventually(t, 0, "the deadlock is in the statistics", func() bool { // each session writes its own when it is idle
		return count(t, db, `select deadlocks from pg_stat_database where datname = current_database()`) == 1
	})

	effects := 1
	for _, code := range []string{"40001", "40P01"} {
		change(t, db, `alter sequence tries restart`)
		key := "fickle-" + code
		is(t, g.ended(t, key, fmt.Sprintf(`{"type":"fickle","payload":{"code":%q}}`, code)), "succeeded 1 <nil>", "status", "attempts", "error")
		if got := column(g.attempts(t, key), "outcome"); got != "released released succeeded" {
			t.Errorf("%s: attempts %s", code, got)
		}
		effects++
	}
	// An error of the statement's own is one, and counts.
	change(t, db, `alter sequence tries restart`)
	j := g.ended(t, "fickle-22012", `{"type":"fickle","payload":{"code":"22012"}}`)
	is(t, j, "failed 1", "status", "attempts")
	if !strings.Contains(failure(j), "22012") {
		t.Errorf("the error is %v", j["error"])
	}
	if n := count(t, db, `select count(*) from effects`); n != effects {
		t.Errorf("%d effects, want %d", n, effects)
	}
	sound(t, db)
}

// Rows of jobs that somebody else locks while their attempts end: for longer than
// our statements wait, and for longer than a lease.
func TestFailure_BR50_Q2_LockedRowsKeepNoJobFromEndingOnce(t *testing.T) {
	t.Parallel()
	database, r := testenv.Postgres(t), newHeldReceiver(t)
	config := both(t, r.config(), "defaults: {lease: 5s}") // kept while the other gateway starts
	a := start(t, database, config)
	a.submit("locked", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	b := start(t, database, config)
	db := beside(t, database)
	ours, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Exec(`select id from jobs for update`); err != nil {
		t.Fatal(err)
	}
	close(r.let[1])
	close(r.let[2]) // of the attempt that follows if the rescuer is first
	testenv.Eventually(t, 0, "its end could not be written, twice", func() bool {
		return len(a.logLines("attempt's end not written yet")) > 1
	})
	testenv.Eventually(t, 0, "its lease is over, and the grace after it", func() bool {
		return count(t, db, `select count(*) from jobs where locked_until < clock_timestamp() - interval '2 seconds'`) == 1
	})
	if err := ours.Rollback(); err != nil {
		t.Fatal(err)
	}
	j := b.finished("locked")
	// Whoever was first to have the row: the end of the work, or the rescuer.
	attempts := count(t, db, `select count(*) from job_attempts`)
	if j["status"] != "succeeded" || attempts != len(r.seen()) {
		t.Errorf("the job is %v after %d attempts and %d calls", j, attempts, len(r.seen()))
	}
	sound(t, db)
	quiet(t, db)
}

// Three replicas bring back, let go and take away the same jobs at once.
func TestFailure_Q29_Q33_MaintainersOfThreeReplicasDoNotMeet(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	// Leases that no slow moment outlives: the only ones that end are those of the
	// worker that is gone.
	const config = `
defaults: {lease: 10s}
idempotency: {retention: 1s}
job_types:
  queued: {executor: echo, retention: 1h, business_key: "{{ .payload.b }}", on_business_key_conflict: queue}
  lost: {executor: echo, retention: 1h}
`
	accepts := start(t, database, both(t, config, "dispatcher: {slots: 0}"))
	const each = 150
	submit := func(kind string) {
		var items []string
		for i := range each {
			items = append(items, fmt.Sprintf(`{"key":"%s-%d","type":%q,"payload":{"b":"b%d"}}`, kind, i, kind, i%10))
		}
		accepts.do(http.MethodPost, "/jobs/batch", "["+strings.Join(items, ",")+"]", jsonType).want(t, http.StatusMultiStatus)
	}
	db := beside(t, database)
	submit("echo") // becomes what has expired
	change(t, db, `with gone as (delete from jobs where type = 'echo' returning *)
		insert into finished_jobs (slot, id, tenant, key, key_slot, type, state, payload, priority, run_at, timeout_ms, max_attempts, attempt,
			generation, version, token, created_at, finished_at, expires_at)
		select slot, id, tenant, key, key_slot, type, 'cancelled', payload, priority, run_at, timeout_ms, max_attempts, attempt,
			generation, version, token, created_at, now(), now() from gone`)
	submit("lost")
	submit("queued")
	// A worker that is gone holds all of one type, and the first of each queue.
	change(t, db, `update jobs set state = 'processing', attempt = 1, token = 1, version = 2, worker_id = 'w-gone', locked_until = now() - interval '1 minute',
		claimed_at = now() - interval '2 minutes', started_at = now() - interval '2 minutes' where not blocked`)
	if n := count(t, db, `select count(*) from jobs where blocked`); n != each-10 {
		t.Fatalf("%d jobs wait for their business keys", n)
	}
	var replicas []*gateway
	for range 3 {
		replicas = append(replicas, launch(t, database, config))
	}
	sessionLocks := 0
	for _, g := range replicas {
		select {
		case <-g.serving():
		case <-g.exited:
			t.Fatal("a replica has ended")
		}
	}
	testenv.Eventually(t, 60*time.Second, "everything has been brought back, let go and taken away", func() bool {
		// Failures/queues 33: at no time does a session hold a lock.
		sessionLocks += count(t, db, `select count(*) from pg_locks l join pg_database d on d.oid = l.database
			where l.locktype = 'advisory' and d.datname = current_database()`)
		return count(t, db, `select count(*) from jobs`) == 0 && count(t, db, `select count(*) from finished_jobs where type = 'echo'`) == 0
	})
	if sessionLocks != 0 {
		t.Errorf("%d session locks were seen", sessionLocks)
	}
	if n := count(t, db, `select count(*) from finished_jobs where state = 'succeeded'`); n != 2*each {
		t.Errorf("%d jobs succeeded, want %d", n, 2*each)
	}
	if n := count(t, db, `select count(*) from job_attempts where outcome = 'lost'`); n != each+10 {
		t.Errorf("%d attempts lost, want %d", n, each+10)
	}
	rescued := 0.0
	for _, g := range replicas {
		rescued += g.measured("sekali_jobs_rescued_total")
		for _, line := range g.logLines("dispatcher loop failed") {
			// One who stood still with a row in his hands is waited for no longer than a
			// second; the loop tries again, and the counts tell that it did.
			if why := fmt.Sprint(line["error"]); !strings.Contains(why, "due to lock timeout") && !strings.Contains(why, "due to statement timeout") {
				t.Errorf("a loop failed: %v", line)
			}
		}
	}
	if rescued != each+10 {
		t.Errorf("%v jobs rescued, want %d", rescued, each+10)
	}
	quiet(t, db)
}
