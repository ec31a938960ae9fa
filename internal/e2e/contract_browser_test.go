package e2e_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

const (
	ourPage   = "https://app.example"
	otherPage = "https://evil.example"
)

// preflight asks as a browser does before a page may send such a request.
func (g *gateway) preflight(path, origin, headers string) answer {
	g.t.Helper()
	return g.do(http.MethodOptions, path, "", "Origin: "+origin, "Access-Control-Request-Method: POST", "Access-Control-Request-Headers: "+headers, "Idempotency-Key: from-a-preflight")
}

// has fails unless the header's list has all the names.
func (a answer) has(t testing.TB, header string, names ...string) {
	t.Helper()
	list := strings.ToLower(strings.Join(a.Header.Values(header), ",") + ",")
	for _, name := range names {
		if !strings.Contains(strings.ReplaceAll(list, " ", ""), strings.ToLower(name)+",") {
			t.Errorf("%s lacks %s: %q", header, name, a.Header.Values(header))
		}
	}
}

// withoutCORS fails if a page of another origin may see the answer.
func (a answer) withoutCORS(t testing.TB) {
	t.Helper()
	for name, values := range a.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("%s: %q", name, values)
		}
	}
}

func TestContract_Row63_Failure_BR36_BR37_C29_PagesOfAnotherOrigin(t *testing.T) {
	u := newUpstream(t, func(w http.ResponseWriter, r *http.Request, n int) {
		w.Header().Set("Access-Control-Allow-Origin", "*") // its own idea
		charged(w, r, n)
	})
	onEngines(t, func(t *testing.T, database string) {
		_, one := token(t, database, "--tenant", "one")
		g := start(t, database, both(t, withKeys, u.rule(""), "cors: {allowed_origins: ["+ourPage+"]}"))
		for _, path := range []string{"/jobs", "/jobs/batch", "/jobs/k", "/v1/charges"} {
			a := g.preflight(path, ourPage, "content-type,idempotency-key,authorization,prefer,if-none-match").
				want(t, http.StatusNoContent, "Access-Control-Allow-Origin: "+ourPage, "Access-Control-Allow-Credentials:", "Idempotency-Key:", "Idempotent-Replayed:")
			a.has(t, "Access-Control-Allow-Headers", "Idempotency-Key", "Prefer", "If-None-Match", "Content-Type", "Authorization")
			a.has(t, "Access-Control-Allow-Methods", "POST", "GET")
			a.has(t, "Vary", "Origin")
			g.preflight(path, otherPage, "content-type").withoutCORS(t)
		}
		if n := stored(t, g.beside(t), "from-a-preflight"); n != 0 || u.times("from-a-preflight") != 0 {
			t.Errorf("a preflight left %d records", n)
		}

		key := rand.Text()
		for name, a := range map[string]answer{
			"accepted":       g.submit(key, echoBody, bearer(one), "Origin: "+ourPage).want(t, http.StatusAccepted),
			"reused":         g.submit(key, `{"type":"echo"}`, bearer(one), "Origin: "+ourPage).want(t, http.StatusUnprocessableEntity),
			"not let in":     g.submit(key, echoBody, "Origin: "+ourPage).want(t, http.StatusUnauthorized),
			"unknown":        g.get("/jobs/unknown", bearer(one), "Origin: "+ourPage).want(t, http.StatusNotFound),
			"no route":       g.get("/nowhere", "Origin: "+ourPage).want(t, http.StatusNotFound),
			"proxied":        g.charge(key+"p", bearer(one), "Origin: "+ourPage).want(t, http.StatusCreated, "Idempotent-Replayed: false"),
			"proxied, again": g.charge(key+"p", bearer(one), "Origin: "+ourPage).want(t, http.StatusCreated),
		} {
			a.want(t, a.StatusCode, "Access-Control-Allow-Origin: "+ourPage)
			a.has(t, "Vary", "Origin")
			a.has(t, "Access-Control-Expose-Headers", "Idempotency-Key", "Idempotent-Replayed", "Idempotency-Status", "Idempotency-Expires", "Job-Status",
				"Location", "Retry-After", "ETag", "Preference-Applied", "Link", "Error-Source", "X-Request-Id")
			if t.Failed() {
				t.Fatalf("%s: %v", name, a.Header)
			}
		}
		// What one page was told is not replayed to another one.
		g.charge(key+"p", bearer(one), "Origin: "+otherPage).want(t, http.StatusCreated, "Idempotent-Replayed: true").withoutCORS(t)
		g.charge(key+"p", bearer(one)).want(t, http.StatusCreated, "Idempotent-Replayed: true").withoutCORS(t)
	})
	t.Run("not configured", func(t *testing.T) {
		onGateway(t, "", func(t *testing.T, g *gateway) {
			g.preflight("/jobs", ourPage, "content-type").want(t, http.StatusMethodNotAllowed, "Allow: *").withoutCORS(t)
			g.submit("k", echoBody, "Origin: "+ourPage).want(t, http.StatusAccepted).withoutCORS(t)
		})
	})
}

// patient waits for the key's job and asks again when there is no room, until
// ctx ends.
func (g *gateway) patient(ctx context.Context, key string, headers ...string) {
	go func() {
		for ctx.Err() == nil {
			request, _ := http.NewRequestWithContext(ctx, http.MethodGet, g.url+"/jobs/"+key, nil)
			for _, header := range append(headers, "Prefer: wait=50") {
				name, value, _ := strings.Cut(header, ": ")
				request.Header.Set(name, value)
			}
			if response, err := client.Do(request); err == nil {
				_ = response.Body.Close()
			}
		}
	}()
}

func TestContract_Row90_TooManyWaitersOfAProcessAndOfATenant(t *testing.T) {
	crowded := func(t testing.TB, a answer, status int) bool {
		t.Helper()
		if a.want(t, status).Header.Get("Preference-Applied") != "" {
			return false
		}
		a.want(t, status, "Retry-After: 10")
		return true
	}
	onGateway(t, "limits: {waiters: 1}", func(t *testing.T, g *gateway) {
		g.submit("slow", pending).want(t, http.StatusAccepted)
		ctx, leave := context.WithCancel(t.Context())
		g.patient(ctx, "slow")
		testenv.Eventually(t, 0, "no more may wait", func() bool { return crowded(t, g.get("/jobs/slow", "Prefer: wait=1"), http.StatusOK) })
		if !crowded(t, g.submit("slow", pending, "Prefer: wait=5"), http.StatusAccepted) {
			t.Error("a POST waits although nobody more may")
		}
		g.submit("quick", echoBody).want(t, http.StatusAccepted)
		g.submit("quick", echoBody, "Prefer: respond-async").want(t, http.StatusAccepted, "Preference-Applied: respond-async")
		leave()
		testenv.Eventually(t, 0, "one may wait again", func() bool { return !crowded(t, g.get("/jobs/slow", "Prefer: wait=1"), http.StatusOK) })
	})
	t.Run("tenant", func(t *testing.T) {
		onEngines(t, func(t *testing.T, database string) {
			_, one := token(t, database, "--tenant", "one")
			_, two := token(t, database, "--tenant", "two")
			g := start(t, database, both(t, withKeys, "limits: {waiters: 2}"))
			for _, who := range []string{one, two} {
				g.submit("slow", pending, bearer(who)).want(t, http.StatusAccepted)
			}
			g.patient(t.Context(), "slow", bearer(one))
			testenv.Eventually(t, 0, "no more of the tenant may wait", func() bool {
				return crowded(t, g.get("/jobs/slow", bearer(one), "Prefer: wait=1"), http.StatusOK)
			})
			if crowded(t, g.get("/jobs/slow", bearer(two), "Prefer: wait=1"), http.StatusOK) {
				t.Error("one tenant's patience takes the place of another one")
			}
		})
	})
}

func TestFailure_BR43_AJobIsThereOnceItIsAccepted(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		gateways := []*gateway{start(t, database, "dispatcher: {slots: 4}")}
		if !onSQLite(database) {
			gateways = append(gateways, start(t, database, "dispatcher: {slots: 4}"))
		}
		for n := range 100 {
			key := fmt.Sprint("br43-", n)
			gateways[0].submit(key, echoBody).want(t, http.StatusAccepted)
			gateways[len(gateways)-1].get("/jobs/"+key).want(t, http.StatusOK)
		}
	})
}

func TestFailure_BR44_C36_AnEntityTagIsOfWhatTheClientGets(t *testing.T) {
	receiver := newHeld(t)
	onGateway(t, receiver.config("held"), func(t *testing.T, g *gateway) {
		key, payload := rand.Text(), strings.Repeat("text ", 1000)
		g.submit(key, fmt.Sprintf(`{"type":"held","payload":%q}`, payload)).want(t, http.StatusAccepted)
		receiver.called(t, key)
		tags := map[string]string{}
		for _, coding := range []string{"identity", "gzip"} {
			a := g.get("/jobs/"+key, "Accept-Encoding: "+coding).want(t, http.StatusOK, "ETag: *", "Cache-Control: private, no-cache")
			tags[coding] = a.Header.Get("ETag")
			g.get("/jobs/"+key, "Accept-Encoding: "+coding, "If-None-Match: "+tags[coding]).want(t, http.StatusNotModified, "ETag: "+tags[coding], "Cache-Control: private, no-cache")
		}
		if tags["identity"] == tags["gzip"] {
			t.Errorf("two representations have one strong tag: %s", tags["gzip"])
		}
		receiver.release(key)
		g.finished(key)
		for coding, tag := range tags {
			a := g.get("/jobs/"+key, "Accept-Encoding: "+coding, "If-None-Match: "+tag).want(t, http.StatusOK)
			if coding == "gzip" {
				a.body = []byte(unzipped(t, a.body))
			}
			if j := a.json(t); j["status"] != "succeeded" || a.Header.Get("ETag") == tag {
				t.Errorf("%s: %s %v", coding, a.Header.Get("ETag"), j)
			}
		}
		first := g.get("/jobs/"+key+"/result").want(t, http.StatusOK)
		if again := g.get("/jobs/"+key+"/result").want(t, http.StatusOK); !bytes.Equal(first.body, again.body) { // C36
			t.Errorf("%s, then %s", first.body, again.body)
		}
	})
}

// BR-21, and BR-26 as far as there is no call yet that runs a failed job again:
// attempts go by the retry policy alone, and the key stays the job's.
func TestFailure_BR21_BR26_C35_AFailedJobIsNoHiddenRerun(t *testing.T) {
	receives := newSink(t)
	onGateway(t, receives.types(map[string]string{"down": "/status/500"}), func(t *testing.T, g *gateway) {
		key, body := rand.Text(), `{"type":"down","max_attempts":2}`
		first := g.submit(key, body).want(t, http.StatusAccepted)
		if j := g.finished(key); j["status"] != "failed" || fmt.Sprint(j["attempts"]) != "2" {
			t.Errorf("%v", j)
		}
		for range 3 {
			if a := g.submit(key, body).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: failed", "Retry-After:"); !bytes.Equal(a.body, first.body) {
				t.Errorf("%s", a.body)
			}
		}
		// Time for an attempt that must not come: several polls of the dispatcher.
		g.submit(key, body, "Prefer: wait=1").want(t, http.StatusOK, "Job-Status: failed")
		if n := len(receives.of(key)); n != 2 {
			t.Errorf("%d calls", n)
		}
	})
}

func TestFailure_BR27_C28_C39_TheSameKeyAfterARefusal(t *testing.T) {
	onGateway(t, "limits: {rate: 2/s}", func(t *testing.T, g *gateway) {
		var last answer
		testenv.Eventually(t, 0, "the limit is reached", func() bool {
			last = g.submit("br27", echoBody)
			return last.StatusCode != http.StatusAccepted
		})
		p := last.want(t, http.StatusTooManyRequests, "Retry-After: 1").refused(t, http.StatusTooManyRequests, "rate-limited", true)
		if detail := fmt.Sprint(p["detail"]); !strings.Contains(detail, "same key") {
			t.Errorf("detail %q", detail)
		}
		key := rand.Text()
		testenv.Eventually(t, 0, "the key that was refused", func() bool {
			a := g.submit(key, echoBody)
			if a.StatusCode == http.StatusTooManyRequests {
				return false
			}
			a.want(t, http.StatusAccepted, "Idempotent-Replayed: false")
			return true
		})
	})
}

// BR-07, smaller: a key that everybody sends costs the database no failing
// statements, and others do not notice.
func TestFailure_BR07_AHotKeyIsCheap(t *testing.T) {
	t.Parallel()
	server := private(t)
	g := start(t, server.Database(t), "")
	g.ended(t, "hot", echoBody)
	// The end of a job that waits for a lock for 50 ms gives up, and is written once
	// more: such an error in the log says nothing of the key.
	g.switchType("echo", "pause").want(t, http.StatusOK)
	before, err := server.Log()
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var replays atomic.Int64
	for range 20 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if a, err := g.try(http.MethodPost, "/jobs", echoBody, jsonType, "Idempotency-Key: hot"); err != nil || a.StatusCode != http.StatusAccepted || a.Header.Get("Idempotent-Replayed") != "true" {
					t.Errorf("%v %v", a.Response, err)
				}
				replays.Add(1)
			}
		})
	}
	slowest := time.Duration(0)
	for n := range 30 {
		began := time.Now()
		g.submit(fmt.Sprint("cold-", n), echoBody).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		slowest = max(slowest, time.Since(began))
	}
	testenv.Eventually(t, 30*time.Second, "many replays", func() bool { return replays.Load() > 500 })
	close(stop)
	wg.Wait()
	if slowest > 5*time.Second { // tens of milliseconds on a machine of its own
		t.Errorf("another key took %v", slowest)
	}
	log, err := server.Log()
	log = strings.TrimPrefix(log, before)
	if err != nil || strings.Contains(log, "duplicate key") || strings.Contains(log, "ERROR:") {
		t.Errorf("the database logs errors, %v:\n%.2000s", err, log)
	}
	if n := count(t, g.beside(t), `select count(*) from idempotency_keys where key = 'hot'`); n != 1 {
		t.Errorf("%d records", n)
	}
}
