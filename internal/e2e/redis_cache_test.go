package e2e_test

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// secondTry is a receiver that refuses the first call of a key for good, and
// holds each later one until it is let.
func secondTry(t testing.TB) (r *receiver, held chan string, let chan struct{}) {
	held, let = make(chan string, 100), make(chan struct{})
	r = newReceiver(t, func(w http.ResponseWriter, c call, n int) {
		if n == 1 {
			w.WriteHeader(http.StatusUnprocessableEntity)
			return
		}
		held <- c.key()
		select {
		case <-let:
		case <-c.Context().Done():
		}
	})
	return r, held, let
}

// cachedAnswer fails unless the answer is what the database told before, and
// comes from the cache. A problem is no answer that could be old.
func cachedAnswer(t testing.TB, what string, told, got answer) {
	t.Helper()
	if told.StatusCode == http.StatusNotFound {
		if got.StatusCode != told.StatusCode || masked(got.body) != masked(told.body) {
			t.Errorf("%s: %d %s", what, got.StatusCode, got.body)
		}
		return
	}
	if got.StatusCode != told.StatusCode || string(got.body) != string(told.body) {
		t.Errorf("%s: %d %s\nand before %d %s", what, got.StatusCode, got.body, told.StatusCode, told.body)
	}
	if age, err := strconv.Atoi(got.Header.Get("Age")); err != nil || age < 0 || age > 600 {
		t.Errorf("%s: Age %q", what, got.Header.Get("Age"))
	}
	for _, header := range []string{"ETag", "Cache-Control", "Vary", "Content-Type", "Idempotency-Expires", "Retry-After", "Content-Location", "Location", "Error-Source"} {
		if before, now := told.Header.Values(header), got.Header.Values(header); !slices.Equal(before, now) {
			t.Errorf("%s: %s %q, before %q", what, header, now, before)
		}
	}
}

// fromCache reads while there is no database: who is told that there is none asks
// again, since Redis has a tenth of a second to answer, and then rests.
func fromCache(t testing.TB, g *gateway, path string, headers ...string) (a answer) {
	t.Helper()
	method, path, named := strings.Cut(path, " ")
	if !named {
		method, path = http.MethodGet, method
	}
	testenv.Eventually(t, 60*time.Second, "an answer from the cache", func() bool {
		a = g.do(method, path, "", headers...)
		return a.StatusCode != http.StatusServiceUnavailable
	})
	return a
}

// cachedByNow waits until the cache has everything that was read before: it is
// written in order.
func (g *gateway) cachedByNow(t testing.TB, succeeded string) {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, succeeded+" is told by the cache", func() bool {
		return g.get("/jobs/"+succeeded).want(t, http.StatusOK).Header.Get("Age") != ""
	})
}

// cachedWhole reads the jobs, and waits, until the cache has each of them whole. A
// write that Redis was slow for is forgotten, and later ones tell nothing of it.
func (r *ownRedis) cachedWhole(g *gateway, succeeded string, keys ...string) {
	r.t.Helper()
	testenv.Eventually(r.t, 60*time.Second, fmt.Sprint(keys, " are in the cache"), func() bool {
		missing := map[string]bool{}
		for _, key := range keys {
			missing[fmt.Sprint(g.get("/jobs/"+key).want(r.t, http.StatusOK).json(r.t)["id"])] = true
		}
		g.cachedByNow(r.t, succeeded)
		for status := range r.kept("sekali:status:*") {
			kept, err := r.client.HGetAll(r.t.Context(), status).Result()
			if err != nil {
				r.t.Fatal(err)
			}
			if kept["job"] != "" {
				delete(missing, kept["id"])
			}
		}
		return len(missing) == 0
	})
}

func TestContract_Row100_Row101_Row65_TheDatabaseIsAwayAndTheCacheIsThere(t *testing.T) {
	t.Parallel()
	server, r := private(t), newOwnRedis(t)
	refuses, held, let := secondTry(t)
	hold, s := newGate(t), newSink(t)
	config := r.config(hold.types(), s.types(map[string]string{"html": "/bytes?mode=html", "nul": "/bytes?mode=nuljson", "none": "/bytes?mode=none"}),
		fmt.Sprintf(`job_types: {revives: {executor: http, http: {url: %q}}, short: {executor: echo, retention: 3s}, one: {executor: echo, business_key: same}}`, refuses.URL),
		"defaults: {lease: 10m}") // longer than the database is away
	database := server.Database(t)
	g, other := start(t, database, config), start(t, database, config)

	g.ended(t, "echo", `{"type":"echo","payload":  { "b" : 1.0, "a":"\u00e9\/" }  }`)
	for _, kind := range []string{"html", "nul", "none"} {
		g.ended(t, kind, fmt.Sprintf(`{"type":%q,"payload":[1e2]}`, kind))
	}
	g.ended(t, "failed", `{"type":"revives"}`)
	g.submit("cancelled", `{"type":"echo","delay_seconds":3600}`).want(t, http.StatusAccepted)
	g.do(http.MethodPost, "/jobs/cancelled/cancel", "").want(t, http.StatusOK)
	for _, key := range []string{"revived", "revived-there"} {
		g.ended(t, key, `{"type":"revives"}`)
	}
	g.submit("waiting", `{"type":"echo","delay_seconds":3600}`).want(t, http.StatusAccepted)
	g.submit("holder", `{"type":"one","business_key":"same","delay_seconds":3600}`).want(t, http.StatusAccepted)
	g.submit("alias", `{"type":"one","business_key":"same"}`).want(t, http.StatusOK, "Idempotency-Status: duplicate_ignored")
	hold.held(t, g, "running")
	big := g.ended(t, "big", `{"type":"echo","payload":"`+strings.Repeat("x", 80<<10)+`"}`)
	g.ended(t, "expired", `{"type":"short"}`)
	until(t, g, "expired", http.StatusGone)

	// What clients were told of the jobs while the database was there.
	known := []string{"failed", "cancelled", "echo", "html", "nul", "none"}
	told, results := map[string]answer{}, map[string]answer{}
	for _, key := range slices.Concat(known, []string{"revived", "revived-there"}) {
		told[key], results[key] = g.get("/jobs/"+key).want(t, http.StatusOK), g.get("/jobs/"+key+"/result")
		if slices.Contains(known[:2], key) && told[key].Header.Get("Age") != "" {
			t.Errorf("%s came from the cache while the database was there", key)
		}
	}
	for _, key := range known[2:] {
		g.cachedByNow(t, key)
		cachedAnswer(t, key, told[key], g.get("/jobs/"+key))
		cachedAnswer(t, key+" at the other replica", told[key], other.get("/jobs/"+key))
	}
	// What was cached as failed has moved on, by one replica or the other.
	for key, at := range map[string]*gateway{"revived": g, "revived-there": other} {
		at.do(http.MethodPost, "/jobs/"+key+"/retry", "", "Idempotency-Key: retry-"+key).want(t, http.StatusAccepted)
		select {
		case <-held:
		case <-time.After(60 * time.Second):
			t.Fatalf("%s did not run again", key)
		}
		for _, one := range []*gateway{g, other} {
			one.submit(key, `{"type":"revives"}`).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: processing")
			if j := one.get("/jobs/" + key).json(t); j["status"] != "processing" {
				t.Errorf("the revived job is %v", j)
			}
		}
	}
	g.submit("echo", `{"type":"echo","payload":{"b":1.0,"a":"\u00e9/"}}`).want(t, http.StatusAccepted, "Job-Status: succeeded")

	r.cachedWhole(g, "echo", known...)
	do(t, server.Shutdown)
	for _, key := range known {
		for at, one := range map[string]*gateway{key: g, key + " at the other replica": other} {
			cachedAnswer(t, at, told[key], fromCache(t, one, "/jobs/"+key))
			cachedAnswer(t, at+" after a wait", told[key], fromCache(t, one, "/jobs/"+key, "Prefer: wait=5"))
			cachedAnswer(t, at+" result", results[key], fromCache(t, one, "/jobs/"+key+"/result"))
			etag := told[key].Header.Get("ETag")
			same := fromCache(t, one, "/jobs/"+key, "If-None-Match: "+etag).want(t, http.StatusNotModified, "ETag: "+etag, "Cache-Control: *", "Age: *", "Retry-After:")
			if len(same.body) > 0 {
				t.Errorf("%s: a 304 with %q", at, same.body)
			}
			cachedAnswer(t, at+" of another version", told[key], fromCache(t, one, "/jobs/"+key, `If-None-Match: "v0"`))
			fromCache(t, one, "HEAD /jobs/"+key).want(t, http.StatusOK, "ETag: "+etag, "Age: *")
			if tag := results[key].Header.Get("ETag"); tag != "" {
				fromCache(t, one, "/jobs/"+key+"/result", "If-None-Match: "+tag).want(t, http.StatusNotModified, "ETag: "+tag, "Age: *")
			}
		}
	}
	// Nothing else is known well enough. A job that was too large for the cache may
	// be, but then rightly.
	if a := g.get("/jobs/big"); a.StatusCode == http.StatusOK && a.json(t)["version"] != big["version"] {
		t.Errorf("big: %d %.200s", a.StatusCode, a.body)
	} else if a.StatusCode != http.StatusOK {
		a.problem(t, http.StatusServiceUnavailable, "store-unavailable")
	}
	for _, key := range []string{"revived", "revived-there", "waiting", "running", "holder", "alias", "expired", "unknown"} {
		for _, path := range []string{"/jobs/" + key, "/jobs/" + key + "/result"} {
			a := g.get(path).want(t, http.StatusServiceUnavailable, "Retry-After: *", "Age:", "ETag:")
			a.problem(t, http.StatusServiceUnavailable, "store-unavailable")
		}
	}
	for _, path := range []string{"/jobs", "/jobs/echo/attempts", "/jobs/echo/events", "/executors"} {
		g.get(path).problem(t, http.StatusServiceUnavailable, "store-unavailable")
	}
	g.submit("new", `{"type":"echo"}`).problem(t, http.StatusServiceUnavailable, "idempotency-store-unavailable")
	for _, path := range []string{"/jobs/failed/retry", "/jobs/cancelled/cancel", "/jobs/failed/cancel"} {
		a := g.do(http.MethodPost, path, "", "Idempotency-Key: down-"+path).want(t, http.StatusServiceUnavailable, "Retry-After: *")
		if code := fmt.Sprint(a.json(t)["code"]); !strings.HasSuffix(code, "store-unavailable") {
			t.Errorf("POST %s: %s", path, a.body)
		}
	}

	do(t, server.Restart)
	g.awaitReady()
	close(let)
	for _, key := range []string{"failed", "cancelled"} {
		a := g.get("/jobs/"+key).want(t, http.StatusOK, "Age:")
		if string(a.body) != string(told[key].body) {
			t.Errorf("%s after the outage: %s", key, a.body)
		}
	}
	for _, key := range []string{"revived", "revived-there"} {
		if j := g.finished(key); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "2" {
			t.Errorf("%s: %v", key, j)
		}
	}
	hold.release("running")
	if j := g.finished("running"); j["status"] != "succeeded" || fmt.Sprint(j["attempts"]) != "1" {
		t.Errorf("the job that ran is %v", j)
	}
}

// A cached job or its result goes when its time is over, whether or not there is
// a database to say so.
func TestContract_Row100_Row98_Row103_TheCacheKeepsNothingBeyondItsTime(t *testing.T) {
	t.Parallel()
	server, r := private(t), newOwnRedis(t)
	g := start(t, server.Database(t), r.config("idempotency: {result_retention: 20s}", "job_types: {short: {executor: echo, retention: 22s}}"))
	for key, kind := range map[string]string{"short": "short", "long": "echo"} {
		g.ended(t, key, fmt.Sprintf(`{"type":%q,"payload":1}`, kind))
		g.cachedByNow(t, key)
	}
	do(t, server.Shutdown)
	for _, key := range []string{"short", "long"} {
		fromCache(t, g, "/jobs/"+key).want(t, http.StatusOK, "Age: *")
		fromCache(t, g, "/jobs/"+key+"/result").want(t, http.StatusOK, "Age: *")
	}
	for _, key := range []string{"short", "long"} {
		until(t, g, key, http.StatusServiceUnavailable)
		g.get("/jobs/"+key+"/result").problem(t, http.StatusServiceUnavailable, "store-unavailable")
	}
	do(t, server.Restart)
	until(t, g, "short", http.StatusGone)
	g.get("/jobs/short/result").problem(t, http.StatusGone, "job-expired")
	g.get("/jobs/long").want(t, http.StatusOK)
	g.get("/jobs/long/result").problem(t, http.StatusGone, "result-expired")
}

// A database that does not answer is as good as none, after a while; a cache that
// makes no sense is as good as none, at once.
func TestContract_Row50_Row100_ASlowDatabaseAndASpoiltCache(t *testing.T) {
	t.Parallel()
	r, s := newOwnRedis(t), newSink(t)
	g := start(t, testenv.Postgres(t), r.config(s.types(map[string]string{"fails": "/status/422"})))
	g.ended(t, "failed", `{"type":"fails"}`)
	g.ended(t, "ok", echoed)
	failed, ok := g.get("/jobs/failed"), g.get("/jobs/ok")
	for i, spoilt := range []string{"", "{", "null", "[]", `{"format":2}`, `{"format":1,"status":"succeeded"}`, `{"format":1,"id":"x","status":"pending"}`} {
		g.cachedByNow(t, "ok")
		later := fmt.Sprint("later-", i)
		g.ended(t, later, echoed)
		g.cachedByNow(t, later) // and so is everything that was read of the first one: nothing mends what is spoilt now
		for key := range r.kept("sekali:status:*") {
			r.command("hset", key, "job", spoilt)
		}
		if a := g.get("/jobs/ok").want(t, http.StatusOK, "Age:"); string(a.body) != string(ok.body) {
			t.Errorf("with %q in the cache: %s", spoilt, a.body)
		}
	}
	for key := range r.kept("sekali:status:*") {
		r.command("set", key, "of another type", "px", "60000")
	}
	if a := g.get("/jobs/ok").want(t, http.StatusOK, "Age:"); string(a.body) != string(ok.body) {
		t.Errorf("with another thing in the cache: %s", a.body)
	}
	r.command("flushall")

	g.get("/jobs/failed").want(t, http.StatusOK, "Age:")
	r.cachedWhole(g, "ok", "failed", "ok")
	tx, err := beside(t, g.database).Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec(`lock table jobs, finished_jobs, idempotency_keys in access exclusive mode`); err != nil {
		t.Fatal(err)
	}
	asked := time.Now()
	cachedAnswer(t, "ok", ok, fromCache(t, g, "/jobs/ok"))
	cachedAnswer(t, "failed", failed, fromCache(t, g, "/jobs/failed"))
	g.get("/jobs/unknown").problem(t, http.StatusServiceUnavailable, "store-unavailable")
	if took := time.Since(asked); took > 6*time.Second+atOnce { // each asks the database for two seconds
		t.Errorf("three reads took %v", took)
	}
}

// A key that may be used again after its job has expired stands for its new job
// at once, whatever the cache knows of the old one.
func TestContract_Row57_Row65_Row100_AKeyThatIsUsedAgainIsNotItsOldJob(t *testing.T) {
	t.Parallel()
	r := newOwnRedis(t)
	g := start(t, testenv.Postgres(t), r.config("idempotency: {retention: 5s, after_expiry: execute}"))
	old := g.ended(t, "k", echoed)
	g.cachedByNow(t, "k")
	until(t, g, "k", http.StatusGone)
	fresh := g.submit("k", `{"type":"echo","delay_seconds":3600}`).want(t, http.StatusAccepted, "Idempotent-Replayed: false").json(t)
	j := g.get("/jobs/k").want(t, http.StatusOK, "Age:").json(t)
	if j["id"] != fresh["id"] || j["id"] == old["id"] || j["status"] != "scheduled" {
		t.Errorf("the key's job is %v, want %v", j, fresh)
	}
}

// Jobs are never told as they were before a retry, while there is a database:
// the cache of one replica knows less than the database that the other wrote to.
func TestContract_Row100_Row75_ARevivedJobIsNeverToldAsItWas(t *testing.T) {
	t.Parallel()
	r := newOwnRedis(t)
	refuses, _, let := secondTry(t)
	database := testenv.Postgres(t)
	config := r.config(fmt.Sprintf("job_types: {revives: {executor: http, http: {url: %q}}}", refuses.URL), keptLease)
	one, two := start(t, database, config), start(t, database, config)
	const jobs = 15
	for i := range jobs {
		key := fmt.Sprint("k-", i)
		one.ended(t, key, `{"type":"revives"}`)
		for _, g := range []*gateway{one, two} {
			if j := g.get("/jobs/"+key).want(t, http.StatusOK, "Age:").json(t); j["status"] != "failed" {
				t.Fatalf("the job is %v", j)
			}
		}
		two.do(http.MethodPost, "/jobs/"+key+"/retry", "", "Idempotency-Key: retry-"+key).want(t, http.StatusAccepted)
		for range 3 {
			for _, g := range []*gateway{one, two} {
				j := g.get("/jobs/"+key).want(t, http.StatusOK, "Age:").json(t)
				if j["status"] == "failed" || fmt.Sprint(j["generation"]) != "2" {
					t.Errorf("the revived job is %v", j)
				}
			}
		}
	}
	close(let)
	for i := range jobs {
		if j := one.finished(fmt.Sprint("k-", i)); j["status"] != "succeeded" {
			t.Errorf("the job is %v", j)
		}
	}
}

// The cache is the tenant's, like the job.
func TestContract_Row100_Row91_Row19_TheCacheTellsNoOtherTenant(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		server := (*testenv.PostgresServer)(nil)
		if !onSQLite(database) {
			server = private(t)
			database = server.URL()
		}
		_, mine := token(t, database, "--tenant", "one")
		_, theirs := token(t, database, "--tenant", "two")
		r := newOwnRedis(t)
		g := start(t, database, r.config(withKeys))
		const body = `{"type":"echo","payload":"canary-91"}`
		for _, key := range []string{"mine", "same"} {
			g.submit(key, body, bearer(mine)).want(t, http.StatusAccepted)
		}
		g.submit("same", `{"type":"echo","payload":"theirs"}`, bearer(theirs)).want(t, http.StatusAccepted)
		for key, who := range map[string]string{"mine": mine, "same": mine, "same ": theirs} {
			testenv.Eventually(t, 60*time.Second, key+" is told by the cache", func() bool {
				return g.get("/jobs/"+strings.TrimSpace(key), bearer(who)).Header.Get("Age") != ""
			})
		}
		stranger := func(status int, code string) {
			t.Helper()
			for _, path := range []string{"/jobs/mine", "/jobs/mine/result", "/jobs/nobodys"} {
				a := g.get(path, bearer(theirs))
				a.problem(t, status, code)
				if a.Header.Get("Age") != "" || a.Header.Get("ETag") != "" || strings.Contains(string(a.body), "canary") {
					t.Errorf("%s: %v %s", path, a.Header, a.body)
				}
			}
			for _, headers := range [][]string{nil, {bearer("sk_aaaaaaaaaaaa_AAAAAAAAAAAAAAAAAAAAAAAAAA"[:10])}} {
				g.get("/jobs/mine", headers...).problem(t, http.StatusUnauthorized, "unauthenticated")
			}
		}
		stranger(http.StatusNotFound, "job-not-found")
		if j := g.get("/jobs/same", bearer(theirs)).json(t); j["payload"] != "theirs" {
			t.Errorf("two tenants' jobs of one key meet: %v", j)
		}
		for key := range r.kept("*") {
			if strings.Contains(key, "mine") || strings.Contains(key, "same") {
				t.Errorf("a client's key in clear in Redis: %s", key)
			}
		}
		if server == nil {
			return
		}
		do(t, server.Shutdown)
		// A reading of the token lets in for half a second yet, and finds only what is
		// the tenant's; then nobody is let in unseen.
		testenv.Eventually(t, 0, "tokens cannot be read any more", func() bool {
			a := g.get("/jobs/mine", bearer(theirs))
			if a.StatusCode != http.StatusServiceUnavailable || strings.Contains(string(a.body), "canary") {
				t.Errorf("another tenant's job without the database: %d %s", a.StatusCode, a.body)
			}
			return g.get("/jobs/mine", bearer(mine)).StatusCode == http.StatusServiceUnavailable
		})
		stranger(http.StatusServiceUnavailable, "store-unavailable")
	})
}

// One Redis may serve several databases, or the next one after a database was
// made anew: their jobs are not each other's.
func TestContract_Row100_Row85_Row91_TheCacheTellsOfItsOwnDatabaseAlone(t *testing.T) {
	t.Parallel()
	r := newOwnRedis(t)
	one, other := start(t, testenv.SQLite(t), r.config()), start(t, testenv.SQLite(t), r.config())
	one.submit("same", `{"type":"echo","payload":"of the one"}`).want(t, http.StatusAccepted)
	testenv.Eventually(t, 60*time.Second, "the job is told by the cache", func() bool {
		return one.get("/jobs/same").Header.Get("Age") != ""
	})
	other.get("/jobs/same").problem(t, http.StatusNotFound, "job-not-found")
	other.submit("same", `{"type":"echo","payload":"of the other","delay_seconds":600}`).want(t, http.StatusAccepted)
	if j := other.get("/jobs/same").want(t, http.StatusOK, "Age:").json(t); j["status"] != "scheduled" || j["payload"] != "of the other" {
		t.Errorf("the other database's job is %v", j)
	}
}
