package e2e_test

import (
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/lib/pq"
	_ "modernc.org/sqlite"

	"github.com/sekali/sekali/internal/testenv"
)

// effects is a type whose every run leaves a row. The table has no unique
// constraint, so that a second run shows.
const effects = `
job_types:
  effect:
    executor: sql
    sql:
      setup: create table if not exists effects (job text not null)
      statement: insert into effects (job) values ({{ .key }})
`

// slowEffects does the same on Postgres, and takes as long as the payload says.
const slowEffects = `
job_types:
  effect:
    executor: sql
    sql:
      setup: create table if not exists effects (job text not null)
      statement: insert into effects (job) select {{ .key }} from pg_sleep({{ .payload.seconds }})
`

const effect = `{"type":"effect"}`

// both lays configurations over each other.
func both(t testing.TB, configs ...string) string { return string(merge(t, configs...)) }

func onSQLite(database string) bool { return strings.HasPrefix(database, "sqlite:") }

// beside opens a gateway's database next to it.
func beside(t testing.TB, database string) *sql.DB {
	t.Helper()
	driver := "postgres"
	if path, ok := strings.CutPrefix(database, "sqlite:"); ok {
		driver, database = "sqlite", "file:"+path+"?_pragma=busy_timeout(10000)"
	}
	db, err := sql.Open(driver, database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// text returns the one value that a query finds.
func text(t testing.TB, db *sql.DB, query string, args ...any) string {
	t.Helper()
	var value sql.NullString
	if err := db.QueryRow(query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value.String
}

func count(t testing.TB, db *sql.DB, query string, args ...any) int {
	t.Helper()
	n, err := strconv.Atoi(text(t, db, query, args...))
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

func change(t testing.TB, db *sql.DB, query string, args ...any) {
	t.Helper()
	if _, err := db.Exec(query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// contradictions are what no crash may leave in the tables.
var contradictions = map[string]string{
	"jobs both live and finished": `select count(*) from jobs j join finished_jobs f on f.slot = j.slot and f.id = j.id`,
	"keys without a job": `select count(*) from idempotency_keys k
		where not exists (select 1 from jobs j where j.slot = k.job_slot and j.id = k.job_id)
			and not exists (select 1 from finished_jobs f where f.slot = k.job_slot and f.id = k.job_id)`,
	"jobs without their key": `select count(*)
		from (select tenant, key, id from jobs union all select tenant, key, id from finished_jobs) j
		left join idempotency_keys k on k.tenant = j.tenant and k.key = j.key and k.job_id = j.id
		where k.key is null`,
	"succeeded jobs without exactly one attempt that did, or somebody who said so": `select count(*) from finished_jobs f
		where f.state = 'succeeded' and 1 <>
			(select count(*) from job_attempts a where a.slot = f.slot and a.job_id = f.id and a.outcome = 'succeeded')
			and not exists (select 1 from job_events e where e.slot = f.slot and e.job_id = f.id and e.event = 'resolved')`,
	"finished jobs whose attempts were counted wrongly": `select count(*) from finished_jobs f
		where f.attempt <> (select count(*) from job_attempts a where a.slot = f.slot and a.job_id = f.id and a.outcome <> 'released')`,
	"attempts after the last token of their finished job": `select count(*) from finished_jobs f
		join job_attempts a on a.slot = f.slot and a.job_id = f.id and a.token > f.token`,
}

// sound fails if the tables contradict each other.
func sound(t testing.TB, db *sql.DB) {
	t.Helper()
	for what, query := range contradictions {
		if n := count(t, db, query); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
}

// allOnce waits until no job is left, and fails unless all n jobs have
// succeeded and left one effect each.
func allOnce(t testing.TB, db *sql.DB, n int) {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, "all jobs ended", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
	for what, query := range map[string]string{
		"jobs succeeded":          `select count(*) from finished_jobs where state = 'succeeded'`,
		"effects":                 `select count(*) from effects`,
		"jobs that left effects":  `select count(distinct job) from effects`,
		"keys":                    `select count(*) from idempotency_keys`,
		"effects of jobs by keys": `select count(*) from effects e join idempotency_keys k on k.key = e.job`,
	} {
		if got := count(t, db, query); got != n {
			t.Errorf("%d %s, want %d", got, what, n)
		}
	}
	sound(t, db)
}

// stream submits keys one after the other until a submit fails, and returns all
// keys with the answers of those that were accepted; each time it tells begun.
func stream(g *gateway, prefix string, begun func()) (sent []string, accepted map[string]string) {
	accepted = map[string]string{}
	for i := 0; ; i++ {
		key := fmt.Sprint(prefix, "-", i)
		sent = append(sent, key)
		a, err := g.try(http.MethodPost, "/jobs", effect, jsonType, "Idempotency-Key: "+key)
		if err != nil {
			return sent, accepted
		}
		if a.StatusCode == http.StatusAccepted {
			accepted[key] = string(a.body)
			begun()
		}
	}
}

func TestFailure_BR20_BR78_KillsAtRandomPointsOfAStreamLoseAndDoubleNothing(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		rounds := 15
		if !onSQLite(database) {
			rounds = 8
		}
		var mu sync.Mutex
		var keys []string
		accepted := map[string]string{}
		for round := range rounds {
			g := start(t, database, effects)
			var wg sync.WaitGroup
			begun, once := make(chan struct{}), sync.Once{}
			for s := range 6 {
				wg.Go(func() {
					sent, answers := stream(g, fmt.Sprintf("r%d-s%d", round, s), func() { once.Do(func() { close(begun) }) })
					mu.Lock()
					defer mu.Unlock()
					keys = append(keys, sent...)
					for key, body := range answers {
						accepted[key] = body
					}
				})
			}
			if round%2 == 1 { // in the other rounds perhaps before the first one is accepted
				select {
				case <-begun:
				case <-time.After(time.Minute):
					t.Fatal("nothing was accepted")
				}
			}
			<-time.After(rand.N(150 * time.Millisecond)) // the random point is what is tested
			g.kill()
			wg.Wait()
		}
		if len(accepted) == 0 {
			t.Fatal("no key was accepted in any round")
		}
		g := start(t, database, effects)
		for _, key := range keys {
			a := g.submit(key, effect).want(t, http.StatusAccepted)
			if first, ok := accepted[key]; ok && (string(a.body) != first || a.Header.Get("Idempotent-Replayed") != "true") {
				t.Fatalf("key %s was accepted as\n%s\nand is now (replayed: %s)\n%s", key, first, a.Header.Get("Idempotent-Replayed"), a.body)
			}
		}
		db := beside(t, database)
		allOnce(t, db, len(keys))
		t.Logf("%d keys, %d of them answered before a kill, %d attempts lost", len(keys), len(accepted),
			count(t, db, `select count(*) from job_attempts where outcome = 'lost'`))
		g.kill()
		if onSQLite(database) {
			if got := text(t, db, `pragma integrity_check`); got != "ok" {
				t.Errorf("integrity check: %s", got)
			}
		}
	})
}

// Row 42's promise, for jobs: on SQLite a restart ends the leases of its
// predecessor, on Postgres the time does.
func TestFailure_BR62_Q3_Row42_TheJobOfAKilledGatewayRunsAgainInTime(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		lease, within := time.Minute, 30*time.Second // of which the start takes some
		if !onSQLite(database) {
			lease = 5 * time.Second // kept while the second gateway starts
			within = lease + 10*time.Second
		}
		r := newHeldReceiver(t)
		config := both(t, r.config(), fmt.Sprintf("defaults: {lease: %s}", lease))
		first := start(t, database, config)
		first.submit("br62", `{"type":"call","max_attempts":3}`).want(t, http.StatusAccepted)
		next(t, r.begun, 1, "begun")
		var second *gateway
		if !onSQLite(database) {
			second = start(t, database, config)
		}
		first.kill()
		killed := time.Now()
		if second == nil {
			second = start(t, database, config)
		}
		next(t, r.begun, 2, "begun")
		close(r.let[2])
		j := second.finished("br62")
		if j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "2" {
			t.Errorf("the job is %v", j)
		}
		hits := r.seen()
		if len(hits) != 2 {
			t.Fatalf("%d attempts reached the receiver", len(hits))
		}
		if late := hits[1].at.Sub(killed); late > within {
			t.Errorf("the second attempt came %v after the kill, want at most %v", late, within)
		}
		for _, name := range []string{"Sekali-Attempt", "Sekali-Fencing-Token"} {
			if got := hits[0].header.Get(name) + hits[1].header.Get(name); got != "12" {
				t.Errorf("%s of the two attempts: %s", name, got)
			}
		}
		if hits[0].header.Get("Idempotency-Key") != hits[1].header.Get("Idempotency-Key") {
			t.Error("the attempts had different keys")
		}
		db := beside(t, database)
		if n := count(t, db, `select count(*) from job_attempts where outcome = 'lost' and number = 1`); n != 1 {
			t.Errorf("%d first attempts are told as lost", n)
		}
		sound(t, db)
		// Counted after the commit, which is all that the second attempt waited for.
		testenv.Eventually(t, 0, "the rescue is counted", func() bool { return second.measured("sekali_jobs_rescued_total") > 0 })
		if n := second.measured("sekali_jobs_rescued_total"); n != 1 {
			t.Errorf("%v jobs rescued", n)
		}
		// The gauge is brought up to date by the rescuer, at each of its rounds.
		if !onSQLite(database) {
			testenv.Eventually(t, 0, "no job runs past its lease", func() bool { return second.measured("sekali_running_past_lease") == 0 })
		}
	})
}

func TestFailure_BR64_BR65_AJobThatKillsItsGatewayIsTriedThreeTimes(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		starts := filepath.Join(t.TempDir(), "starts")
		// The lease is that of all tests: a gateway that has a slow moment before its
		// program has begun must not lose it.
		config := both(t, effects, fmt.Sprintf(`
job_types:
  poison:
    executor: command
    max_attempts: 3
    command:
      argv: [sh, -c, 'echo start >> "$STARTS"; kill -9 $PPID; exec sleep 60']
      env: {STARTS: %q}
`, starts))
		g := start(t, database, config)
		g.submit("bystander", `{"type":"effect","delay_seconds":1}`).want(t, http.StatusAccepted)
		if a, err := g.try(http.MethodPost, "/jobs", `{"type":"poison"}`, jsonType, "Idempotency-Key: poison"); err == nil {
			a.want(t, http.StatusAccepted) // else the program was quicker than the answer
		}
		db := beside(t, database)
		ended := func() bool { return count(t, db, `select count(*) from finished_jobs where key = 'poison'`) == 1 }
		deaths := 0
		for died := g; ; died = g {
			testenv.Eventually(t, 30*time.Second, "the gateway died or the job ended", func() bool { return died.dead() || ended() })
			if ended() {
				break
			}
			if deaths++; deaths > 3 {
				t.Fatal("the job killed a fourth gateway")
			}
			g = launch(t, database, config)
		}
		<-g.serving()
		j := g.finished("poison")
		problem, _ := j["error"].(map[string]any)
		if j["status"] != "failed" || fmt.Sprint(j["attempts"]) != "3" || problem["code"] != "lost" {
			t.Errorf("the job is %v", j)
		}
		lines, err := os.ReadFile(starts)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(lines), "\n"); n != 3 || deaths != 3 {
			t.Errorf("the program was started %d times and killed %d gateways, want 3", n, deaths)
		}
		if j := g.finished("bystander"); j["status"] != "succeeded" {
			t.Errorf("the other job is %v", j)
		}
		if n := count(t, db, `select count(*) from effects`); n != 1 {
			t.Errorf("the other job left %d effects", n)
		}
		sound(t, db)
	})
}

func (g *gateway) dead() bool {
	select {
	case <-g.exited:
		return true
	default:
		return false
	}
}

// measured sums the series of a metric that have all the labels.
func (g *gateway) measured(name string, labels ...string) float64 {
	g.t.Helper()
	sum := 0.0
	for line := range strings.Lines(string(g.get("/metrics").body)) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		wanted := true
		for _, label := range labels {
			wanted = wanted && strings.Contains(rest, label)
		}
		fields := strings.Fields(rest)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			g.t.Fatalf("%q: %v", line, err)
		}
		if wanted {
			sum += value
		}
	}
	return sum
}

// workerID is how the gateway calls itself in leases.
func (g *gateway) workerID() string {
	id, _ := g.logLines("sekali serves")[0]["worker_id"].(string)
	return id
}
