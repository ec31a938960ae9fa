package executor_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

func newReconciling(t *testing.T, cfg executor.HTTPConfig, reconcileURL string) *executor.ReconcilingHTTP {
	t.Helper()
	if cfg.URL == "" {
		cfg.URL = "http://127.0.0.1:1/never-posted-to"
	}
	h, err := executor.NewReconcilingHTTP(cfg, reconcileURL)
	if err != nil {
		t.Fatalf("NewReconcilingHTTP: %v", err)
	}
	t.Cleanup(h.Close)
	return h
}

func TestReconcile_TheQuestion(t *testing.T) {
	t.Parallel()
	var asked url.URL
	var length int64
	s := newSink(t, func(_ http.ResponseWriter, r *http.Request) { asked, length = *r.URL, r.ContentLength })
	secret := "whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef01234567"))
	h := newReconciling(t, executor.HTTPConfig{Secret: secret, Headers: map[string]string{"X-Source": "sekali"}}, s.URL+"/by/key?v=2&a=%2F")
	c := claimed(`{"order_id":"42"}`)
	c.Key = "order 42/ä&id=x"
	if _, err := h.Reconcile(t.Context(), c); err != nil {
		t.Fatalf("Reconcile: %v", err)
	}
	if want := "/by/key?v=2&a=%2F&id=" + jobID + "&key=order+42%2F%C3%A4%26id%3Dx"; asked.String() != want {
		t.Errorf("asked %s, want %s", asked.String(), want)
	}
	if q := asked.Query(); q.Get("id") != jobID || q.Get("key") != string(c.Key) {
		t.Errorf("query = %v", q)
	}
	got := s.all()[0]
	if got.method != http.MethodGet || len(got.body) != 0 || length != 0 || got.header.Get("Transfer-Encoding") != "" {
		t.Errorf("sent %s with %d bytes, want a GET without a body", got.method, length)
	}
	for name, want := range map[string]string{
		"Idempotency-Key": `"` + jobID + `"`, "Sekali-Key": string(c.Key), "Sekali-Attempt": "3", "Sekali-Fencing-Token": "17",
		"Sekali-Type": "invoice_generate", "X-Source": "sekali", "Accept-Encoding": "identity", "Content-Type": "",
	} {
		if values := got.header.Values(name); strings.Join(values, "|") != want {
			t.Errorf("%s = %q, want %q", name, values, want)
		}
	}
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		t.Fatal(err)
	}
	if err := webhook.Verify(nil, got.header); err != nil {
		t.Errorf("the signature over an empty body does not verify: %v", err)
	}
}

func TestReconcile_TheAnswers(t *testing.T) {
	t.Parallel()
	type want struct {
		answer    executor.ReconcileAnswer
		body      string
		mediaType string
	}
	const mediaJSON = "application/json"
	done := func(body, mediaType string) want { return want{executor.ReconcileDone, body, mediaType} }
	notDone, unknown := want{answer: executor.ReconcileNotDone}, want{}
	tests := map[string]struct {
		answer http.HandlerFunc
		want   want
	}{
		"200 without a body":            {status(http.StatusOK), done("", "")},
		"204":                           {status(http.StatusNoContent), done("", "")},
		"a result":                      {answer("text/csv", "a,b"), done("a,b", "text/csv")},
		"a result as JSON":              {answer(mediaJSON, ` {"receipt": 1.0}`), done(` {"receipt": 1.0}`, mediaJSON)},
		"a result with a status":        {answer(mediaJSON, `{"status":"captured"}`), done(`{"status":"captured"}`, mediaJSON)},
		"a status that is no text":      {answer(mediaJSON, `{"status":1}`), done(`{"status":1}`, mediaJSON)},
		"a status elsewhere":            {answer(mediaJSON, `[{"status":"not_done"}]`), done(`[{"status":"not_done"}]`, mediaJSON)},
		"a status in capitals":          {answer(mediaJSON, `{"Status":"not_done"}`), done(`{"Status":"not_done"}`, mediaJSON)},
		"a word":                        {answer(mediaJSON, `"not_done"`), done(`"not_done"`, mediaJSON)},
		"done with a result":            {answer("text/plain", `{"status":"done","result": {"n": 1.0} }`), done(`{"n": 1.0}`, mediaJSON)},
		"done without a result":         {answer(mediaJSON, `{"status":"done","more":1}`), done("", "")},
		"done with null":                {answer(mediaJSON, `{"status":"done","result":null}`), done("", "")},
		"not done":                      {answer("-", `{"status":"not_done"}`), notDone},
		"not done, by an unknown media": {answer("text/html", ` { "why":"x", "status" : "not\u005fdone" } `), notDone},
		"unknown":                       {answer(mediaJSON, `{"status":"unknown"}`), unknown},
		"a cut-off answer":              {answer(mediaJSON, `{"status":"not_done"`), unknown},
		"two answers in one":            {answer(mediaJSON, `{"status":"not_done"}{}`), unknown},
		"a status and its opposite":     {answer(mediaJSON, `{"status":"done","status":"not_done"}`), unknown},
		"404":                           {status(http.StatusNotFound), notDone},
		"410":                           {status(http.StatusGone), notDone},
		"202":                           {status(http.StatusAccepted), unknown},
		"a coded answer":                {coded, unknown},
		"over the limit":                {answer(mediaJSON, `"`+strings.Repeat("x", 200)+`"`), unknown},
		"exactly the limit":             {answer("text/plain", strings.Repeat("x", 200)), done(strings.Repeat("x", 200), "text/plain")},
	}
	for _, code := range []int{301, 302, 307, 400, 401, 403, 405, 409, 422, 429, 500, 502, 503, 504} {
		tests[fmt.Sprint(code)] = struct {
			answer http.HandlerFunc
			want   want
		}{status(code), unknown}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSink(t, test.answer)
			got, err := newReconciling(t, executor.HTTPConfig{ResultLimit: 200}, s.URL).Reconcile(t.Context(), claimed("{}"))
			if got.Answer != test.want.answer || (err != nil) != (got.Answer == executor.ReconcileUnknown) {
				t.Fatalf("answer %v, error %v, want %v and an error exactly where it is unknown", got.Answer, err, test.want.answer)
			}
			switch {
			case test.want.body == "" && got.Result != nil:
				t.Errorf("result %q, want none", got.Result.Body)
			case test.want.body != "":
				wantResult(t, got.Result, err, test.want.body, test.want.mediaType)
			}
			if n := len(s.all()); n != 1 {
				t.Errorf("%d calls, want 1", n)
			}
		})
	}
}

func TestReconcile_BrokenAnswersAreNone(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]string{
		"none":           "",
		"no HTTP":        "hello\r\n\r\n",
		"half a body":    "HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n{\"status\":\"done\"}",
		"no last chunk":  "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
		"a switch":       "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
		"a big promise":  "HTTP/1.1 200 OK\r\nContent-Length: 1099511627776\r\n\r\n",
		"an odd status":  "HTTP/1.1 999 Whatever\r\nContent-Length: 0\r\n\r\n",
		"broken headers": "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, func(conn *net.TCPConn, _ int) bool {
				_, _ = io.WriteString(conn, answer)
				return false
			})
			got, err := newReconciling(t, executor.HTTPConfig{}, w.url).Reconcile(t.Context(), claimed("{}"))
			if got.Answer != executor.ReconcileUnknown || err == nil {
				t.Errorf("answer %v, error %v, want unknown and why", got.Answer, err)
			}
			if n := w.requests.Load(); n != 1 {
				t.Errorf("the receiver read %d requests, want 1", n)
			}
		})
	}
}

// The transport sends a GET again when a kept connection breaks; a question is
// counted, and so is one call like an attempt.
func TestReconcile_AQuestionIsOneCallOnTheWire(t *testing.T) {
	t.Parallel()
	w := newWire(t, func(conn *net.TCPConn, n int) bool {
		if n == 1 {
			_, _ = io.WriteString(conn, wireOK)
		}
		return n == 1
	})
	h := newReconciling(t, executor.HTTPConfig{}, w.url)
	for i := range 4 { // two connections: each answers once and breaks once
		got, err := h.Reconcile(t.Context(), claimed("{}"))
		if want := executor.ReconcileAnswer((i + 1) % 2); got.Answer != want {
			t.Errorf("question %d: %v, %v, want %v", i+1, got.Answer, err, want)
		}
	}
	if n := w.requests.Load(); n != 4 {
		t.Errorf("the receiver read %d requests of 4 questions", n)
	}
}

func TestReconcile_ARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	elsewhere := newSink(t, status(http.StatusOK))
	s := newSink(t, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, elsewhere.URL, http.StatusFound) })
	got, err := newReconciling(t, executor.HTTPConfig{}, s.URL).Reconcile(t.Context(), claimed("{}"))
	if got.Answer != executor.ReconcileUnknown || err == nil || len(elsewhere.all()) != 0 {
		t.Errorf("answer %v, error %v, %d calls where the redirect points", got.Answer, err, len(elsewhere.all()))
	}
}

func TestReconcile_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	for _, test := range causes {
		for name, begin := range map[string]string{"no answer": "", "half an answer": "x"} {
			t.Run(name+"/"+test.cause.Error(), func(t *testing.T) {
				t.Parallel()
				ctx, cancel := context.WithCancelCause(t.Context())
				s := newSink(t, func(w http.ResponseWriter, r *http.Request) {
					if begin != "" {
						_, _ = io.WriteString(w, begin)
						w.(http.Flusher).Flush()
					}
					cancel(test.cause)
					<-r.Context().Done()
				})
				got, err := newReconciling(t, executor.HTTPConfig{}, s.URL).Reconcile(ctx, claimed("{}"))
				if got.Answer != executor.ReconcileUnknown || !errors.Is(err, test.cause) {
					t.Errorf("answer %v, error %v, want unknown and the cause", got.Answer, err)
				}
			})
		}
	}
}

func TestReconcile_ARefusalIsKnownBeforeItsBody(t *testing.T) {
	t.Parallel()
	s := newSink(t, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	got, err := newReconciling(t, executor.HTTPConfig{}, s.URL).Reconcile(t.Context(), claimed("{}"))
	if got.Answer != executor.ReconcileNotDone || err != nil {
		t.Errorf("answer %v, error %v, want not done", got.Answer, err)
	}
}

func TestReconcile_WhoseUserAndPassword(t *testing.T) {
	t.Parallel()
	s := newSink(t, status(http.StatusOK))
	host := strings.TrimPrefix(s.URL, "http://")
	for name, test := range map[string]struct{ url, reconcileURL, user, password string }{
		"its own":             {"http://a:b@" + host, "http://c:d@" + host, "c", "d"},
		"of the same host":    {"http://a:b@" + host + "/x", "http://" + host + "/y", "a", "b"},
		"none of another one": {"http://a:b@127.0.0.1:1", "http://" + host, "", ""},
		"none of another TLS": {"https://a:b@" + host, "http://" + host, "", ""},
	} {
		h := newReconciling(t, executor.HTTPConfig{URL: test.url}, test.reconcileURL)
		if _, err := h.Reconcile(t.Context(), claimed("{}")); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		hits := s.all()
		r := http.Request{Header: hits[len(hits)-1].header}
		if user, password, _ := r.BasicAuth(); user != test.user || password != test.password {
			t.Errorf("%s: basic authentication = %q, %q", name, user, password)
		}
	}
}

func TestNewReconcilingHTTP_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	const fine = "http://127.0.0.1/x"
	for name, test := range map[string]struct {
		url, reconcileURL string
		want              []string
	}{
		"none":            {fine, "", []string{"http reconcile_url", "want http://"}},
		"other scheme":    {fine, "ftp://u:canary@h/x", []string{"http reconcile_url", "xxxxx"}},
		"its own id":      {fine, fine + "?id=1", []string{"http reconcile_url", "id"}},
		"its own key":     {fine, fine + "?a=1&key=canary", []string{"has key", "adds"}},
		"unreadable":      {fine, fine + "?a=%zz", []string{"http reconcile_url", "query"}},
		"both at once":    {"x", "y", []string{"http url", "http reconcile_url"}},
		"a broken escape": {fine, "http://u:canary@h:port/", []string{"http reconcile_url"}},
	} {
		_, err := executor.NewReconcilingHTTP(executor.HTTPConfig{URL: test.url}, test.reconcileURL)
		wantProblem(t, err, test.want...)
		if strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: error %q shows a secret", name, err)
		}
	}
}

func TestReconciler_OnlyWhoWasToldWhomToAskIsOne(t *testing.T) {
	t.Parallel()
	var plain, reconciling executor.Executor = newHTTP(t, executor.HTTPConfig{URL: "http://127.0.0.1:1"}), newReconciling(t, executor.HTTPConfig{}, "http://127.0.0.1:1")
	if _, can := plain.(executor.Reconciler); can {
		t.Error("an HTTP without a reconcile URL says that it can reconcile")
	}
	if _, can := reconciling.(executor.Reconciler); !can {
		t.Error("an HTTP with a reconcile URL says that it cannot reconcile")
	}
	for answer, want := range map[executor.ReconcileAnswer]string{
		executor.ReconcileDone: "done", executor.ReconcileNotDone: "not_done", executor.ReconcileUnknown: "unknown", 99: "unknown",
	} {
		if answer.String() != want {
			t.Errorf("%d is called %q, want %q", answer, answer, want)
		}
	}
	if zero := (executor.Reconciliation{}); zero.Answer != executor.ReconcileUnknown || zero.Result != (*job.Result)(nil) {
		t.Errorf("the zero value is %v, want unknown", zero)
	}
}
