package client_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/sekali/sekali/client"
)

func TestNew_RefusesWhatIsNoAddress(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"", "localhost:8080", "ftp://x", "http://", "/jobs", "http://x?y=1", "http://x#y", "http://user:secret@x:port", "http://user:secret@x:65536", "http://x:0"} {
		if _, err := client.New(address); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: %v", address, err)
		}
	}
	if _, err := client.New("http://x:"); err != nil { // an empty port is that of the scheme
		t.Error(err)
	}
	for _, option := range []client.Option{
		client.WithToken("secret\n"), client.WithToken("secret secret"), client.WithRetries(-1), client.WithHTTPClient(nil), client.WithUserAgent("a\r\nb: c"),
	} {
		if _, err := client.New("http://x", option); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%v", err)
		}
	}
}

func TestDo_SendsWhatItIsGiven(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("ETag", `"7"`)
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintf(w, `{"jobs": [%q, %q, %q, %q, %q, %q, %q]}`, r.Method, r.URL.RequestURI(), r.Header.Get("Authorization"), r.Header.Get("User-Agent"),
			r.Header.Get("Idempotency-Key"), r.Header.Get("Content-Type"), body)
	}))
	t.Cleanup(server.Close)
	c := made(t, server.URL+"/sekali/", client.WithToken("sk_1"), client.WithUserAgent("billing/3"))
	for want, request := range map[string]client.Request{
		`[GET /sekali/jobs/a%2Fb Bearer sk_1 billing/3   ]`:                        {Path: "/jobs/a%2Fb"},
		`[GET /sekali/jobs?limit=2&type=a+b Bearer sk_1 billing/3   ]`:             {Path: "/jobs?limit=2", Query: url.Values{"type": {"a b"}}},
		`[POST /sekali/jobs Bearer sk_1 billing/3 "a\"\\b" application/json {}]`:   {Method: "POST", Path: "/jobs", Key: `a"\b`, Body: []byte("{}")},
		`[POST /sekali/jobs/batch Bearer sk_1 billing/3  application/x-ndjson {}]`: {Method: "POST", Path: "/jobs/batch", Body: []byte("{}"), ContentType: "application/x-ndjson"},
		`[GET /sekali/docs Bearer sk_1 billing/3   ]`:                              {Path: "/docs", Header: http.Header{"Authorization": {"Bearer other"}}},
		`[GET /sekali//evil.example/jobs Bearer sk_1 billing/3   ]`:                {Path: "//evil.example/jobs"},
		`[GET /sekali/@evil.example Bearer sk_1 billing/3   ]`:                     {Path: "/@evil.example"},
	} {
		answer, err := c.Do(t.Context(), request)
		if err != nil {
			t.Errorf("%s: %v", want, err)
			continue
		}
		var got struct{ Jobs []string }
		if err := answer.Decode(&got); err != nil || fmt.Sprint(got.Jobs) != want || answer.Status != 202 || answer.Header.Get("ETag") != `"7"` {
			t.Errorf("%v %v, want %s", got, err, want)
		}
	}
	for _, wrong := range []client.Request{{Path: "jobs"}, {Path: "@evil.example/"}, {Path: "/\x00"}, {Method: "A B", Path: "/jobs"}, {Path: "/jobs", Key: "a\nb"}, {Path: "/jobs", Key: "ä"}} {
		if _, err := c.Do(t.Context(), wrong); err == nil || is[*client.UnreachableError](err) {
			t.Errorf("%+v: %v", wrong, err)
		}
	}
}

// The token must not follow a redirect, and neither must the payload.
func TestDo_FollowsNoRedirect(t *testing.T) {
	t.Parallel()
	reached := 0
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached++ }))
	t.Cleanup(elsewhere.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+"/login", status)
		}))
		follows := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return nil }}
		_, err := made(t, server.URL, client.WithToken("sk_1"), client.WithHTTPClient(follows)).Get(t.Context(), "k")
		var other *client.NotGatewayError
		if !errors.As(err, &other) || other.Status != status || other.Location != elsewhere.URL+"/login" || !strings.Contains(err.Error(), other.Location) {
			t.Errorf("%d: %v", status, err)
		}
		server.Close()
	}
	if reached > 0 {
		t.Errorf("the redirect was followed %d times", reached)
	}
}

func TestDo_NamesWhatIsNoGateway(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		answer step
		words  []string
	}{
		"a proxy's page":  {page(200), []string{"http://gateway.test/jobs/k", "200", "text/html", `<html> <h1>200[31m</h1>`}},
		"another service": {reply(200, "hello", "Content-Type: text/plain"), []string{"hello"}},
		"no media type":   {reply(404, "", "Content-Type: "), []string{"404", "no media type"}},
		"a long page":     {reply(500, strings.Repeat("é", 500), "Content-Type: text/html"), []string{strings.Repeat("é", 40) + "…"}},
		"broken JSON":     {reply(200, "{"), []string{`"{"`}},
		"another JSON":    {reply(200, "[]"), []string{`"[]"`}},
		"an empty object": {reply(200, "{}"), []string{`"{}"`}},
		"null":            {reply(200, "null"), []string{`"null"`}},
		"other members":   {reply(200, `{"ok":true,"jobs":3}`), []string{"ok"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := (&double{steps: []step{tt.answer}}).of(t).Get(t.Context(), "k")
			if !is[*client.NotGatewayError](err) || strings.ContainsAny(err.Error(), "\x1b\n") {
				t.Fatalf("%v", err)
			}
			for _, word := range tt.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("nothing of %q in %v", word, err)
				}
			}
		})
	}
}

func TestDo_PassesOnWhatIsNoDocument(t *testing.T) {
	t.Parallel()
	for path, answer := range map[string]step{
		"/metrics":       reply(200, "sekali_x 1", "Content-Type: text/plain"),
		"/openapi.yaml":  reply(200, "openapi: 3.1.0", "Content-Type: application/yaml"),
		"/jobs/k/result": page(200),
		"/jobs/k":        reply(304, "", "Content-Type: "),
		"/jobs/m":        reply(202, "", "Content-Type: "), // return=minimal
		"/readyz":        reply(503, `{"status":"unavailable"}`),
	} {
		if _, err := (&double{steps: []step{answer}}).of(t).Do(t.Context(), client.Request{Path: path}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestDo_BoundsTheAnswer(t *testing.T) {
	t.Parallel()
	endless := func(r *http.Request) (*http.Response, error) {
		w, err := reply(200, "")(r)
		w.Body = io.NopCloser(zeros{})
		return w, err
	}
	d := &double{steps: []step{endless}}
	c := d.of(t)
	client.BoundAnswers(c, 1<<20)
	if _, err := c.Get(t.Context(), "k"); !errors.Is(err, client.ErrAnswerTooLarge) || len(d.requests()) != 1 {
		t.Errorf("%v after %d requests", err, len(d.requests()))
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// A jar of cookies adds them to a request: to each try once.
func TestDo_RepeatsARequestAsItWas(t *testing.T) {
	t.Parallel()
	d := &double{steps: []step{refuse(503, "x", true), refuse(503, "x", true), reply(200, `{"id":"1"}`)}}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	jar.SetCookies(&url.URL{Scheme: "http", Host: "gateway.test"}, []*http.Cookie{{Name: "a", Value: "1"}})
	c := made(t, "http://gateway.test", client.WithHTTPClient(&http.Client{Transport: d, Jar: jar}))
	if _, err := c.Get(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	for _, r := range d.requests() {
		if got := r.header.Get("Cookie"); got != "a=1" {
			t.Errorf("Cookie: %s", got)
		}
	}
}

// A certificate that nobody knows is no better in a moment.
func TestDo_TrustsNoUnknownCertificate(t *testing.T) {
	t.Parallel()
	asked := 0
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked++ }))
	server.Config.ErrorLog = quiet()
	server.StartTLS()
	t.Cleanup(server.Close)
	_, err := made(t, server.URL).Get(t.Context(), "k")
	var unreachable *client.UnreachableError
	if !errors.As(err, &unreachable) || unreachable.Tries != 1 || asked != 0 {
		t.Errorf("%v", err)
	}
}

func TestProblem_IsTyped(t *testing.T) {
	t.Parallel()
	d := &double{steps: []step{reply(400, `{"type":"https://x/problems/validation-failed","title":"T","status":400,"detail":"D","instance":"urn:uuid:1","code":"validation-failed",
 "retryable":false,"retry_after_ms":250,"idempotency_key":"k","job":"/jobs/k","job_status":"failed","expired_at":"2026-03-01T12:00:00Z","reason":"length","limit":255,
 "original_status":201,"errors":[{"pointer":"/priority","rule":"range","detail":"must be less"}],"later":{}}`, "Content-Type: application/problem+json")}}
	_, err := d.of(t).Get(t.Context(), "k")
	var p *client.Problem
	if !errors.As(err, &p) {
		t.Fatal(err)
	}
	got := fmt.Sprint(p.Type, p.Title, p.Status, p.Detail, p.Instance, p.Code, p.Retryable, p.RetryAfter, p.Key, p.Job, p.JobStatus, p.ExpiredAt.Year(), p.Reason, p.Limit, p.OriginalStatus, p.Errors)
	if want := "https://x/problems/validation-failedT400Durn:uuid:1validation-failedfalse250msk/jobs/kfailed2026length255 201 [{/priority range must be less}]"; strings.ReplaceAll(got, " ", "") != strings.ReplaceAll(want, " ", "") {
		t.Errorf("%s", got)
	}
	if text := err.Error(); !strings.Contains(text, "validation-failed") || !strings.Contains(text, "/priority must be less") {
		t.Errorf("%s", text)
	}
}
