package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// Each callback of a receiver that was down comes, by one id and with the same bytes
// however often it does.
func TestDoneWhen_BR71_AReceiverThatWasDownGetsEveryCallback(t *testing.T) {
	outageOfReceiver(t, 4, 400*time.Millisecond)
}

// outageOfReceiver ends jobs in every way while their receiver is down, and kills the
// gateway so many times, each time within that long of its start and of a dozen jobs.
// The receiver is there again before the last time.
func outageOfReceiver(t *testing.T, rounds int, within time.Duration) {
	onEngines(t, func(t *testing.T, database string) {
		seed := rand.Uint64()
		random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // a test
		t.Logf("seed %d", seed)
		s, m := newSink(t), newMailbox(t)
		m.down.Store(true)
		config := both(t, fastTry, m.callbacks(), fmt.Sprintf(`
job_types:
  fails: {executor: http, http: {url: "%[1]s/status/400"}}
  slow: {executor: http, max_attempts: 1, lease: 1s, heartbeat: 300ms, http: {url: "%[1]s/slow?ms=300"}}
  effect: {executor: sql, sql: {setup: "create table if not exists effects (entry text primary key)", statement: "insert into effects (entry) values ({{ .key }})"}}
`, s.URL))
		var keys []string
		for round := range rounds {
			g := start(t, database, config)
			for i := range 12 {
				key := fmt.Sprintf("r%d-%d", round, i)
				kind := []string{"echo", "fails", "slow", "effect"}[i%4]
				more := ""
				if i == 8 {
					more = `,"delay_seconds":3600`
				}
				persist(t, key, fmt.Sprintf(`{"type":%q,"callback_url":%q%s}`, kind, m.URL+"/hooks/"+key, more), g)
				keys = append(keys, key)
			}
			if round == rounds-1 {
				m.down.Store(false) // and the last kill comes while callbacks are taken
			}
			go func() { _, _ = g.try(http.MethodPost, fmt.Sprintf("/jobs/r%d-8/cancel", round), "") }()
			<-time.After(time.Duration(random.Int64N(int64(within)))) // the random point is what is tested
			g.kill()
		}
		g := start(t, database, config)
		for round := range rounds {
			if key := fmt.Sprintf("r%d-8", round); g.get("/jobs/" + key).json(t)["status"] == "scheduled" {
				g.cancel(key).want(t, http.StatusOK)
			}
		}
		for _, key := range keys {
			j, c := g.finished(key), m.got(key, 1)[0]
			if kind := c.event.Type; kind != "job."+fmt.Sprint(j["status"]) || fmt.Sprint(c.event.Data["version"]) != fmt.Sprint(j["version"]) {
				t.Errorf("%s is %v, version %v, and was told as %s", key, j["status"], j["version"], c.body)
			}
		}
		m.eachOnce(t, keys)
		db := beside(t, database)
		testenv.Eventually(t, 60*time.Second, "no callback waits", func() bool { return count(t, db, `select count(*) from jobs`) == 0 })
		if n := count(t, db, `select count(*) from finished_jobs where type = 'sekali.callback' and state = 'succeeded'`); n != len(keys) {
			t.Errorf("%d callbacks of %d jobs", n, len(keys))
		}
	})
}

// eachOnce fails unless all attempts for a key had one id and one body.
func (m *mailbox) eachOnce(t testing.TB, keys []string) {
	t.Helper()
	ids, bodies := map[string]map[string]bool{}, map[string]map[string]bool{}
	for _, c := range m.all(false) {
		key := fmt.Sprint(c.event.Data["key"])
		if ids[key] == nil {
			ids[key], bodies[key] = map[string]bool{}, map[string]bool{}
		}
		ids[key][c.id], bodies[key][c.body] = true, true
	}
	for _, key := range keys {
		if len(ids[key]) != 1 || len(bodies[key]) != 1 {
			t.Errorf("%s was told by the ids %v, as %d bodies", key, ids[key], len(bodies[key]))
		}
	}
}

// TestFailure_BR69_CallbacksToAReceiverThatIsDown: two hundred at once, and their
// second attempts do not come at once.
func TestFailure_BR69_CallbacksToAReceiverThatIsDown(t *testing.T) {
	m := newMailbox(t)
	m.down.Store(true)
	const jobs, base = 200, 4 * time.Second
	config := fmt.Sprintf("callbacks: {allow: [%q], secret: %q, backoff: {base: %s, cap: 1m}}\ndispatcher: {slots: 64}\ndefaults: {lease: 30s}\n", m.URL+"/", callbackSecret, base)
	onGateway(t, config, func(t *testing.T, g *gateway) {
		path := "/" + strings.ReplaceAll(t.Name(), "/", "-")
		var items []string
		for i := range jobs {
			items = append(items, fmt.Sprintf(`{"key":"%s-%d","type":"echo","callback_url":%q}`, path[1:], i, m.URL+path))
		}
		g.do(http.MethodPost, "/jobs/batch", "["+strings.Join(items, ",")+"]", jsonType).want(t, http.StatusMultiStatus)
		mine := func(attempt string) map[string]time.Time {
			at := map[string]time.Time{}
			for _, c := range m.all(false) {
				if key := fmt.Sprint(c.event.Data["key"]); c.attempt == attempt && strings.HasPrefix(key, path[1:]) {
					at[key] = c.at
				}
			}
			return at
		}
		testenv.Eventually(t, 120*time.Second, "all have been tried twice", func() bool { return len(mine("2")) == jobs })
		first, second := mine("1"), mine("2")
		buckets, least, most := map[int]int{}, time.Hour, time.Duration(0)
		for key, at := range second {
			delay := at.Sub(first[key])
			least, most = min(least, delay), max(most, delay)
			buckets[int(delay/(100*time.Millisecond))]++
		}
		if least < base/2 || most-least < base*3/10 {
			t.Errorf("second attempts after %s to %s", least, most)
		}
		for b, n := range buckets {
			if n > jobs/5 {
				t.Errorf("%d second attempts after %d00 ms", n, b)
			}
		}
	})
}
