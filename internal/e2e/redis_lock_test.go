package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// byKey gives the type that is called a lock for each job.
const byKey = "job_types: {call: {lock: key}}"

// watched looks at a lock again and again, until stop is called; that returns
// what was seen of it that was not the owner's, and how often it was looked at.
func (r *ownRedis) watched(lock, owner string) (stop func() (others map[string]int, looks int)) {
	others, looks, done := map[string]int{}, 0, make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			seen, _ := r.client.Get(r.t.Context(), lock).Result()
			looks++
			if seen != owner {
				others[seen]++
			}
		}
	})
	return func() (map[string]int, int) {
		close(done)
		watching.Wait()
		return others, looks
	}
}

// lockedZombie is a gateway that was stopped past its lease, and another one that
// has its job and the lock of that since.
type lockedZombie struct {
	redis            *ownRedis
	receives         *heldReceiver
	database         string
	stopped, heir    *gateway
	key, lock, owner string
}

func newLockedZombie(t *testing.T) lockedZombie {
	t.Helper()
	for range 5 { // a Redis that is slow for a moment is done without, and then there is no lock
		z := lockedZombie{redis: newOwnRedis(t), receives: newHeldReceiver(t), database: testenv.Postgres(t)}
		config := z.redis.config(z.receives.config(), byKey, longerLease)
		z.stopped = start(t, z.database, config)
		first := ""
		z.key, z.lock, first = z.redis.holdingCall(z.stopped, z.receives)
		z.stopped.pause()
		z.heir = start(t, z.database, config)
		next(t, z.receives.begun, 2, "begun")
		z.owner = z.redis.owner(z.lock)
		switch {
		case z.owner == first:
			t.Fatal("two acquisitions have one owner")
		case z.owner != "":
			return z
		case z.heir.unlocked() == 0:
			t.Fatal("the second attempt runs without its lock, and nobody says so")
		}
		z.stopped.kill()
		z.heir.kill()
	}
	t.Fatal("Redis was never in time")
	return lockedZombie{}
}

// A gateway that was stopped past its lease leaves the lock of its successor
// alone, whatever it does first when it goes on.
func TestFailure_BR51_AStoppedGatewayLeavesTheNextLockAlone(t *testing.T) {
	t.Parallel()
	for _, returns := range []bool{false, true} { // the work of the stopped one has ended, too
		t.Run(fmt.Sprint("its work has ended ", returns), func(t *testing.T) {
			t.Parallel()
			z := newLockedZombie(t)
			r, receives, stopped, heir, lock := z.redis, z.receives, z.stopped, z.heir, z.lock
			stop := r.watched(lock, z.owner)
			if returns {
				close(receives.let[1])
			}
			stopped.resume()
			testenv.Eventually(t, 20*time.Second, "the stopped gateway has let go", func() bool {
				// Whichever it finds first: that its lease is over, or that its lock is.
				found := stopped.measured("sekali_stale_calls_total") + float64(len(stopped.logLines("lock lost; the attempt is stopped")))
				return stopped.measured("sekali_jobs_running") == 0 && found >= 1
			})
			<-time.After(time.Second) // two heartbeats, in which nothing may happen
			if others, looks := stop(); len(others) > 0 || looks < 20 {
				t.Errorf("in %d looks the lock was also %v", looks, others)
			}
			heldBy(t, z.database, heir, 2)
			keyEndedBy(t, receives, z.database, heir, z.key)
			testenv.Eventually(t, 0, "the lock is given back", func() bool { return r.owner(lock) == "" })
			if n := heir.lockCalls("refresh", "lost") + heir.unlocked(); n != 0 {
				t.Errorf("the successor has lost its lock %v times", n)
			}
		})
	}
}

// A lock is held to the end of a job that takes longer than the lock was taken
// for, and than any one call may take; with two gateways, the job runs once.
func TestFailure_BR55_ALockIsHeldToTheEndOfALongJob(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r, receives := newOwnRedis(t), newHeldReceiver(t)
		config := r.config(receives.config(), byKey, "defaults: {lease: 4s, heartbeat: 250ms}")
		g := start(t, database, config)
		if !onSQLite(database) {
			start(t, database, config)
		}
		key, lock, owner := r.holdingCall(g, receives)
		stop := r.watched(lock, owner)
		select {
		case attempt := <-receives.begun:
			t.Errorf("attempt %d begins while the first one runs", attempt)
		case attempt := <-receives.left:
			t.Errorf("attempt %d was given up", attempt)
		case <-time.After(10 * time.Second): // more than twice the lock's length
		}
		if others, looks := stop(); len(others) > 0 || looks < 100 {
			t.Errorf("in %d looks the lock was also %v", looks, others)
		}
		close(receives.let[1])
		if j := g.finished(key); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
			t.Errorf("the job is %v", j)
		}
		testenv.Eventually(t, 0, "the lock is given back", func() bool { return r.owner(lock) == "" })
		if n := len(receives.begun); n != 0 {
			t.Errorf("%d more attempts", n)
		}
	})
}

// lockedProgram is a job type that writes its process number and sleeps.
func lockedProgram(t testing.TB) (config, pids string) {
	pids = filepath.Join(t.TempDir(), "pids")
	return fmt.Sprintf(`
job_types:
  program:
    executor: command
    lock: key
    command: {argv: [sh, -c, 'echo $$ > "$PIDS-$SEKALI_ATTEMPT"; exec sleep 300'], env: {PIDS: %q}}
`, pids), pids
}

// holdingProgram is holding for that type.
func (r *ownRedis) holdingProgram(g *gateway, pids string) (key, lock, owner string, pid int) {
	r.t.Helper()
	begins := func() { pid = pidIn(r.t, pids+"-1") }
	key, lock, owner = r.holding(g, "program", begins, func() { do(r.t, func() error { return os.Remove(pids + "-1") }) })
	return key, lock, owner, pid
}

// refused waits until the job of a locked program is refused its lock, and fails if
// its second attempt runs although no attempt was unlocked since. It is false if one
// was: Redis was slow when the job asked again.
func (g *gateway) refused(t testing.TB, key, second string, unlocked float64) bool {
	t.Helper()
	runs := func() bool { _, err := os.Stat(second); return err == nil }
	seldom(t, 20*time.Second, "it is refused its lock, or runs", func() bool { return runs() || g.happened(key)["lock_refused"] > 0 })
	if !runs() {
		return true
	}
	if g.unlocked() == unlocked {
		t.Error("the program runs while another one has the lock")
		return true
	}
	g.cancel(key).want(t, http.StatusAccepted)
	g.finished(key)
	return false
}

func TestFailure_BR56_WhoseLockIsAnothersIsStopped(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		inTime(t, database, func(database string) bool { return stopsWhoseLockIsAnothers(t, database) })
	})
}

// stopsWhoseLockIsAnothers is false if Redis was slow where the job was to be refused.
func stopsWhoseLockIsAnothers(t *testing.T, database string) bool {
	t.Helper()
	r := newOwnRedis(t)
	config, pids := lockedProgram(t)
	g := start(t, database, r.config(config, "defaults: {lease: 20s}"))
	key, lock, owner, pid := r.holdingProgram(g, pids)

	// A lock that is only gone is taken again, and that is all.
	for range 3 {
		r.command("del", lock)
		if again := r.locked(lock); again != owner {
			t.Errorf("the lock is %q's, was %q's", again, owner)
		}
	}
	if j := g.get("/jobs/" + key).json(t); gone(pid) || j["status"] != "processing" || fmt.Sprint(j["attempts"]) != "1" || g.happened(key)["lock_lost"] != 0 {
		t.Errorf("the job is %v", j)
	}

	unlocked := g.unlocked()
	r.command("set", lock, "foreign", "px", "60000")
	testenv.Eventually(t, 0, "the program was killed", func() bool { return gone(pid) })
	// The next attempt does not begin while the other one has the lock.
	g.storedEvent(key, "lock_lost")
	if !g.refused(t, key, pids+"-2", unlocked) {
		return false
	}
	if owner := r.owner(lock); owner != "foreign" {
		t.Errorf("the lock is %q's", owner)
	}
	if lost, attempts := g.lockCalls("refresh", "lost"), g.measured("sekali_attempts_total", `type="program"`, `outcome="lost"`); lost != 1 || attempts != 1 {
		t.Errorf("%v locks and %v attempts are counted as lost", lost, attempts)
	}
	attempts, _ := g.get("/jobs/" + key + "/attempts").json(t)["attempts"].([]any)
	first, _ := attempts[0].(map[string]any)
	if first["outcome"] != "lost" || !strings.HasPrefix(failure(first), "lock-lost ") {
		t.Errorf("the first attempt is %v", first)
	}

	r.command("del", lock)
	second := pidIn(t, pids+"-2")
	if j := g.get("/jobs/" + key).json(t); fmt.Sprint(j["attempts"]) != "2" {
		t.Errorf("refused attempts are counted: %v", j)
	}
	// It has its lock, unless Redis was slow just then.
	if owner := r.owner(lock); owner == "foreign" || owner == "" && g.unlocked() == unlocked {
		t.Errorf("the second attempt has no lock: that is %q's", owner)
	}
	g.cancel(key).want(t, http.StatusAccepted)
	if j := g.finished(key); j["status"] != "cancelled" || !gone(second) {
		t.Errorf("the job is %v", j)
	}
	testenv.Eventually(t, 0, "the lock is given back", func() bool { return r.owner(lock) == "" })
	return true
}

// The same with the lease in other hands too: the database decides, and nothing
// of the loser's is written; and for what is not a program.
func TestFailure_BR56_LockAndLeaseInOtherHands(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		r, receives := newOwnRedis(t), newHeldReceiver(t)
		g := start(t, database, r.config(receives.config(), byKey, "defaults: {lease: 20s}"))
		db := beside(t, database)
		key, lock, _ := r.holdingCall(g, receives)
		// At once: a refresh between the two would stop the attempt, whose end might come
		// before its lease is another's.
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(`update jobs set token = token + 1, version = version + 1, worker_id = 'w-foreign'`); err != nil {
			t.Fatal(err)
		}
		r.command("set", lock, "foreign", "px", "60000")
		do(t, tx.Commit)
		next(t, receives.left, 1, "been given up")
		testenv.Eventually(t, 20*time.Second, "the loser has let go", func() bool {
			return g.measured("sekali_jobs_running") == 0 && g.measured("sekali_stale_calls_total") >= 1
		})
		if owner := r.owner(lock); owner != "foreign" {
			t.Errorf("the lock is %q's", owner)
		}
		if n := count(t, db, `select count(*) from jobs where state = 'processing' and worker_id = 'w-foreign' and token = 2`); n != 1 {
			t.Errorf("the job is not its new holder's: %s", g.get("/jobs/"+key).body)
		}
	})
}

// The end of the work ends the lock: it is gone, and the job goes on, long before
// the lock would have run out.
func TestFailure_BR57_WorkThatDiedKeepsNoLock(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		inTime(t, database, func(database string) bool { return diesWithoutALock(t, database) })
	})
}

// diesWithoutALock is false if a lock is left that Redis was slow for: such a one runs
// out by itself.
func diesWithoutALock(t *testing.T, database string) bool {
	t.Helper()
	r := newOwnRedis(t)
	resets := newReceiver(t, func(w http.ResponseWriter, c call, _ int) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	config, pids := lockedProgram(t)
	g := start(t, database, r.config(config,
		fmt.Sprintf("job_types: {resets: {executor: http, lock: key, http: {url: %q}}}", resets.URL),
		"defaults: {lease: 1m, backoff: {base: 1m, cap: 1m}}"))
	key, _, _, pid := r.holdingProgram(g, pids)
	died := time.Now()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	g.submit("resets", `{"type":"resets"}`).want(t, http.StatusAccepted)
	for _, key := range []string{key, "resets"} {
		testenv.Eventually(t, 0, key+" waits for its next attempt", func() bool {
			j := g.get("/jobs/" + key).json(t)
			return j["status"] == "retrying" && j["next_attempt_at"] != nil
		})
	}
	left, slow := 0, 0.0
	seldom(t, 30*time.Second, "no lock is left", func() bool {
		left = len(r.kept(anyLock))
		slow = g.lockCalls("release", "unavailable") + g.lockCalls("acquire", "unavailable") // which gives back what it may have taken
		return left == 0 || slow > 0
	})
	if left > 0 {
		t.Logf("%d locks are left, after %v calls that Redis did not answer", left, slow)
		return false
	}
	if took := time.Since(died); took > atOnce { // two seconds, on a machine that is not busy
		t.Errorf("that took %v", took)
	}
	if n := len(resets.of("resets")); n != 1 {
		t.Errorf("%d calls", n)
	}
	return true
}
