package e2e_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// token makes an API key with the command line and returns its id and text.
func token(t testing.TB, database string, args ...string) (id, text string) {
	t.Helper()
	out, problems, code := sekali(t, database, append([]string{"token", "create", "-o", "json"}, args...)...)
	var made struct{ ID, Token string }
	if err := json.Unmarshal([]byte(out), &made); err != nil || code != 0 || !strings.HasPrefix(made.Token, "sk_"+made.ID+"_") {
		t.Fatalf("%d %s%s: %v", code, out, problems, err)
	}
	return made.ID, made.Token
}

const withKeys = "auth: {mode: api_key}"

func bearer(text string) string { return "Authorization: Bearer " + text }

func TestContract_Row19_Row24_Row91_BR14_BR15_BR16_TenantsDoNotMeet(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		_, one := token(t, database, "--tenant", "one")
		_, alsoOne := token(t, database, "--tenant", "one", "--name", "rotated")
		_, two := token(t, database, "--tenant", "two")
		g := start(t, database, withKeys)
		const body = `{"type":"echo","payload":{"secret":"zz-91"}}`

		first := g.submit("same", body, bearer(one)).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		g.submit("same", body, bearer(alsoOne)).want(t, http.StatusAccepted, "Idempotent-Replayed: true") // the tenant's, not the token's
		second := g.submit("same", body, bearer(two)).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
		if a, b := first.json(t)["id"], second.json(t)["id"]; a == b {
			t.Errorf("two tenants share job %v", a)
		}
		g.submit("mine", `{"type":"echo","payload":1}`, bearer(one)).want(t, http.StatusAccepted)
		unknown, foreign := g.get("/jobs/nobodys", bearer(two)), g.get("/jobs/mine", bearer(two))
		unknown.problem(t, http.StatusNotFound, "job-not-found")
		foreign.problem(t, http.StatusNotFound, "job-not-found")
		if a, b := masked(unknown.body), masked(foreign.body); a != b {
			t.Errorf("another tenant's job can be told from none:\n%s\n%s", a, b)
		}
		g.get("/jobs/mine/result", bearer(two)).problem(t, http.StatusNotFound, "job-not-found")
		if list := string(g.get("/jobs", bearer(two)).body); strings.Contains(list, `"mine"`) {
			t.Errorf("another tenant's job is listed: %s", list)
		}
		g.submit("mine", body, bearer(two)).want(t, http.StatusAccepted, "Idempotent-Replayed: false") // BR-15
		mismatch := g.submit("same", `{"type":"echo","payload":2}`, bearer(one))
		mismatch.problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
		if strings.Contains(string(mismatch.body), "zz-91") {
			t.Errorf("the refusal shows the first payload: %s", mismatch.body)
		}
		for _, text := range []string{one, two, alsoOne} {
			if strings.Contains(g.logged(), text) {
				t.Error("the log shows a token")
			}
		}
	})
}

// masked leaves out what names the occurrence and the key.
func masked(body []byte) string {
	var p map[string]any
	_ = json.Unmarshal(body, &p)
	delete(p, "instance")
	delete(p, "idempotency_key")
	return fmt.Sprint(p)
}

func TestContract_Row19_RefusedWithoutLookUp(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		_, reader := token(t, database, "--tenant", "one", "--permissions", "read")
		_, writer := token(t, database, "--tenant", "one", "--permissions", "submit")
		_, expired := token(t, database, "--tenant", "one", "--expires", "1ms")
		g := start(t, database, withKeys)
		bodies := map[string]string{}
		for name, headers := range map[string][]string{
			"nothing": nil, "nonsense": {bearer("nonsense")}, "unknown": {bearer("sk_aaaaaaaaaaaa_AAAAAAAAAAAAAAAAAAAAAAAAAA")}, "expired": {bearer(expired)},
			"wrong secret": {bearer(writer[:16] + "AAAAAAAAAAAAAAAAAAAAAAAAAA")}, "twice": {bearer(writer), bearer(writer)}, "basic": {"Authorization: Basic " + writer},
		} {
			a := g.submit("k", `{"type":"echo"}`, headers...).want(t, http.StatusUnauthorized, `WWW-Authenticate: Bearer realm="sekali"`)
			a.problem(t, http.StatusUnauthorized, "unauthenticated")
			bodies[masked(a.body)] = name
		}
		if len(bodies) != 1 {
			t.Errorf("refusals can be told apart: %v", bodies)
		}
		g.submit("k", `{"type":"echo"}`, bearer(reader)).problem(t, http.StatusForbidden, "forbidden")
		g.get("/jobs/k", bearer(writer)).problem(t, http.StatusForbidden, "forbidden")
		g.get("/jobs/k", bearer(reader)).problem(t, http.StatusNotFound, "job-not-found")
		g.submit("k", `{"type":"echo"}`, bearer(writer)).want(t, http.StatusAccepted, "Idempotent-Replayed: false") // not consumed
		g.get("/healthz").want(t, http.StatusOK)
		g.get("/metrics").want(t, http.StatusOK)
		testenv.Eventually(t, 0, "the gateway is ready", func() bool { return g.get("/readyz").StatusCode == http.StatusOK })
	})
}

// C27: a replay is refused like a first request once the token has ended.
func TestContract_Row19_C27_ARevocationCountsWithinASecondOnEveryReplica(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		id, text := token(t, database, "--tenant", "one")
		gateways := []*gateway{start(t, database, withKeys)}
		if !onSQLite(database) {
			gateways = append(gateways, start(t, database, withKeys))
		}
		submit := func(g *gateway) int { return g.submit("k", `{"type":"echo"}`, bearer(text)).StatusCode }
		for _, g := range gateways {
			if code := submit(g); code != http.StatusAccepted {
				t.Fatalf("before: %d", code)
			}
		}
		if _, problems, code := sekali(t, database, "token", "revoke", id); code != 0 {
			t.Fatalf("%d %s", code, problems)
		}
		revoked := time.Now() // a little after it was
		var last time.Time
		for time.Since(revoked) < 2*time.Second {
			for _, g := range gateways {
				if began := time.Now(); submit(g) != http.StatusUnauthorized {
					last = began
				}
			}
		}
		if after := last.Sub(revoked); after > time.Second {
			t.Errorf("the token let a request in %v after its revocation", after)
		}
		out, _, _ := sekali(t, database, "token", "list")
		if !strings.Contains(out, id) || strings.Contains(out, text) {
			t.Errorf("token list: %s", out)
		}
		if _, problems, code := sekali(t, database, "token", "revoke", "unknown"); code != 1 || !strings.Contains(problems, "no token") {
			t.Errorf("revoking an unknown token: %d %s", code, problems)
		}
		if _, problems, code := sekali(t, database, "token", "create", "--tenant", "one", "--permissions", "everything"); code != 2 || !strings.Contains(problems, "submit,read,operate,manage,proxy") {
			t.Errorf("a permission that is none: %d %s", code, problems)
		}
	})
}

// Who mistypes the file is told so, and does not look at a new one.
func TestCLI_TokenCommandsMakeNoDatabaseByLooking(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"token", "list"}, {"token", "revoke", "id"}} {
		file := filepath.Join(t.TempDir(), "mistyped.db")
		_, problems, code := sekali(t, "sqlite:"+file, args...)
		if code != 1 || !strings.Contains(problems, file+": no such file") || !strings.Contains(problems, "This command makes no file") {
			t.Errorf("%q: %d %s", args, code, problems)
		}
		if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: the file: %v", args, err)
		}
	}
}

func TestFailure_BR28_WithoutDatabaseNobodyIsLetInNorCalledWrong(t *testing.T) {
	t.Parallel()
	server := private(t)
	database := server.Database(t)
	_, text := token(t, database, "--tenant", "one")
	g := start(t, database, withKeys)
	g.submit("k", `{"type":"echo"}`, bearer(text)).want(t, http.StatusAccepted)
	do(t, server.Shutdown)
	testenv.Eventually(t, 0, "the database is missed", func() bool {
		return g.get("/jobs/k", bearer(text)).StatusCode == http.StatusServiceUnavailable
	})
	for _, header := range []string{bearer(text), bearer("sk_aaaaaaaaaaaa_AAAAAAAAAAAAAAAAAAAAAAAAAA")} {
		g.submit("k2", `{"type":"echo"}`, header).want(t, http.StatusServiceUnavailable, "Retry-After: *").problem(t, http.StatusServiceUnavailable, "idempotency-store-unavailable")
		g.get("/jobs/k", header).want(t, http.StatusServiceUnavailable, "Retry-After: *").problem(t, http.StatusServiceUnavailable, "store-unavailable")
	}
	g.get("/jobs/k").problem(t, http.StatusUnauthorized, "unauthenticated")
	do(t, server.Restart)
	testenv.Eventually(t, 0, "the token is good again", func() bool { return g.get("/jobs/k", bearer(text)).StatusCode == http.StatusOK })
	g.get("/jobs/k2", bearer(text)).problem(t, http.StatusNotFound, "job-not-found")
}

// The gateway's token is not the upstream's business; who calls is.
func TestContract_Row24_TheUpstreamLearnsTheTenantAndNotTheToken(t *testing.T) {
	u := newUpstream(t, charged)
	onEngines(t, func(t *testing.T, database string) {
		_, one := token(t, database, "--tenant", "one", "--permissions", "proxy")
		_, two := token(t, database, "--tenant", "two")
		g := start(t, database, both(t, withKeys, u.rule("")))
		key := fmt.Sprint("k", time.Now().UnixNano())
		g.charge(key).problem(t, http.StatusUnauthorized, "unauthenticated")
		first := g.charge(key, bearer(one), "Sekali-Tenant: two").want(t, http.StatusCreated, "Idempotent-Replayed: false")
		u.mu.Lock()
		got := u.headers[key]
		u.mu.Unlock()
		if got.Get("Authorization") != "" || got.Get("Sekali-Tenant") != "one" {
			t.Errorf("the upstream got %v", got)
		}
		second := g.charge(key, bearer(two)).want(t, http.StatusCreated, "Idempotent-Replayed: false")
		if string(first.body) == string(second.body) || u.times(key) != 2 {
			t.Errorf("two tenants share an answer: %s %s", first.body, second.body)
		}
		g.submit("k", `{"type":"echo"}`, bearer(one)).problem(t, http.StatusForbidden, "forbidden")
	})
}

// Whose token is revoked while a request of it waits is not told what became of the
// job: a GET is refused, and a submission, which was let in before, gets the answer
// that it would have got at once.
func TestContract_Row19_Row77_Row89_ARevokedTokenLearnsNothingAfterItsWait(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		_, other := token(t, database, "--tenant", "one")
		receiver := newHeld(t)
		g := start(t, database, both(t, withKeys, oneWaits, receiver.config("held")))
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			id, theirs := token(t, database, "--tenant", "one")
			key := method + "-waits"
			first := g.submit(key, heldBody, bearer(theirs)).want(t, http.StatusAccepted)
			waits := g.waitsFor(t, method, key, bearer(theirs), bearer(other))
			if _, problems, code := sekali(t, database, "token", "revoke", id); code != 0 {
				t.Fatalf("%d %s", code, problems)
			}
			testenv.Eventually(t, 0, "the gateway knows it", func() bool {
				return g.get("/jobs/"+key, bearer(theirs)).StatusCode == http.StatusUnauthorized
			})
			receiver.release(key)
			a := <-waits
			if a.Response == nil {
				t.Fatalf("%s got no answer", method)
			}
			if method == http.MethodGet {
				a.problem(t, http.StatusUnauthorized, "unauthenticated")
				continue
			}
			a.want(t, http.StatusAccepted, "Idempotent-Replayed: true")
			if !bytes.Equal(a.body, first.body) || a.Header.Get("Job-Status") == "succeeded" {
				t.Errorf("the submission got %v %s", a.Header, a.body)
			}
		}
	})
}

// waitsFor sends a request of the job that waits for its end, and returns when it
// does. There is room for one that waits.
func (g *gateway) waitsFor(t testing.TB, method, key, theirs, other string) <-chan answer {
	t.Helper()
	path, body := "/jobs/"+key, ""
	if method == http.MethodPost {
		path, body = "/jobs", heldBody
	}
	c := make(chan answer, 1)
	granted := func(a answer) bool { return a.Response != nil && a.Header.Get("Preference-Applied") != "" }
	go func() {
		var a answer
		for a.Response == nil || a.StatusCode < http.StatusBadRequest && !granted(a) { // until the place is free
			a, _ = g.try(method, path, body, jsonType, "Idempotency-Key: "+key, "Prefer: wait=50", theirs)
		}
		c <- a
	}()
	testenv.Eventually(t, 0, "it waits", func() bool {
		a, err := g.try(http.MethodGet, "/jobs/"+key, "", "Prefer: wait=1", other)
		return err == nil && !granted(a)
	})
	return c
}
