package e2e_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	face "github.com/sekali/sekali/client"
)

// face is a client of the gateway.
func (g *gateway) face(options ...face.Option) *face.Client {
	g.t.Helper()
	c, err := face.New(g.url, options...)
	if err != nil {
		g.t.Fatal(err)
	}
	return c
}

// must returns the value of a call that is not refused.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// wantProblem fails unless err is that refusal.
func wantProblem(t testing.TB, err error, status int, code string) *face.Problem {
	t.Helper()
	var p *face.Problem
	if !errors.As(err, &p) || p.Status != status || p.Code != code || p.Title == "" || p.Detail == "" || !strings.HasPrefix(p.Instance, "urn:uuid:") || !strings.HasSuffix(p.Type, code) {
		t.Errorf("error %v, want %d %s", err, status, code)
		return &face.Problem{}
	}
	return p
}

func TestClient_TheWholeWay_Failure_BR88(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		d := newDoubtful(t)
		g := start(t, database, d.config())
		c, ctx := g.face(), t.Context()

		// Submit, and again: the typed 202, and the same once more.
		key := face.Key("invoice", "order/42")
		first := must(c.Submit(ctx, "echo", json.RawMessage(`{"n": 1.50}`), face.WithKey(key), face.WithDelay(time.Second)))(t)
		if j := first.Job; first.Replayed || first.Key != key || j.Key != key || j.ID == "" || j.Status != face.StatusScheduled || j.Version != 1 || j.Generation != 1 ||
			j.CreatedAt.IsZero() || !j.RunAt.After(j.CreatedAt) || !j.FinishedAt.IsZero() || j.Payload != nil || first.JobStatus != face.StatusScheduled {
			t.Errorf("%+v", first)
		}
		again := must(c.Submit(ctx, "echo", json.RawMessage(`{"n": 1.50}`), face.WithKey(key), face.WithDelay(time.Second)))(t)
		if !again.Replayed || again.Job.ID != first.Job.ID || again.Job.Version != 1 {
			t.Errorf("%+v", again)
		}
		done := must(c.Wait(ctx, key))(t)
		if done.Status != face.StatusSucceeded || done.Attempts != 1 || string(done.Result) != `{"n": 1.50}` || done.ExpiresAt.IsZero() {
			t.Errorf("%+v", done)
		}
		result := must(c.Result(ctx, key))(t)
		if string(result.Body) != `{"n": 1.50}` || result.MediaType != "application/json" {
			t.Errorf("%+v", result)
		}
		waited := must(c.Submit(ctx, "echo", 7, face.WithWait(30*time.Second)))(t)
		if waited.JobStatus != face.StatusSucceeded || waited.Job.Key != waited.Key || string(waited.Job.Result) != "7" || waited.ExpiresAt.IsZero() {
			t.Errorf("%+v", waited)
		}
		late := must(c.Submit(ctx, "echo", json.RawMessage(`{"n": 1.50}`), face.WithKey(key), face.WithDelay(time.Second)))(t)
		if late.JobStatus != face.StatusSucceeded || late.Job.Status != face.StatusScheduled || late.ExpiresAt.IsZero() {
			t.Errorf("%+v", late)
		}

		// List, page by page.
		var keys []string
		for j, err := range c.Jobs(ctx, face.Filter{Type: "echo", Status: face.StatusSucceeded, PageSize: 1, CreatedAfter: done.CreatedAt.Add(-time.Millisecond)}) {
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, j.Key)
		}
		if want := []string{waited.Key, key}; fmt.Sprint(keys) != fmt.Sprint(want) {
			t.Errorf("listed %v, want %v", keys, want)
		}

		// Cancel, twice; and what cannot be cancelled.
		must(c.Submit(ctx, "echo", nil, face.WithKey("later"), face.WithRunAt(time.Now().Add(time.Hour))))(t)
		for range 2 {
			if j := must(c.Cancel(ctx, "later"))(t); j.Status != face.StatusCancelled {
				t.Errorf("%+v", j)
			}
		}
		_, err := c.Cancel(ctx, key)
		if p := wantProblem(t, err, 422, face.CodeJobAlreadyFinished); p.JobStatus != face.StatusSucceeded || p.Job != "/jobs/invoice:order%2F42" || p.Retryable {
			t.Errorf("%+v", p)
		}
		_, err = c.Result(ctx, "later")
		var ended *face.JobError
		if !errors.As(err, &ended) || ended.Job.Status != face.StatusCancelled {
			t.Error(err)
		}

		// Retry: once for each key.
		must(c.Submit(ctx, "wrong", nil, face.WithKey("wrong")))(t)
		if _, err = c.Result(ctx, "wrong"); !errors.As(err, &ended) || ended.Job.Error.Code != "http-status" {
			t.Error(err)
		}
		retried := must(c.Retry(ctx, "wrong", face.WithKey("op-1")))(t)
		if retried.Key != "op-1" || retried.Job.Key != "wrong" || retried.Job.Generation != 2 || retried.Replayed {
			t.Errorf("%+v", retried)
		}
		must(c.Wait(ctx, "wrong"))(t)
		if repeated := must(c.Retry(ctx, "wrong", face.WithKey("op-1")))(t); !repeated.Replayed || repeated.JobStatus != face.StatusFailed {
			t.Errorf("%+v", repeated)
		}
		_, err = c.Retry(ctx, key)
		wantProblem(t, err, 422, face.CodeJobNotRetryable)
		attempts := must(c.Attempts(ctx, "wrong"))(t)
		events := must(c.Events(ctx, "wrong"))(t)
		if len(attempts) != 2 || attempts[1].Outcome != "failed" || attempts[1].Error.Attempt != 2 || len(events) < 5 || events[0].Event != "accepted" || events[0].Time.IsZero() {
			t.Errorf("%+v %+v", attempts, events)
		}

		// Resolve: what there is no doubt about, and what there is.
		_, err = c.Resolve(ctx, "wrong", face.StatusSucceeded, nil)
		wantProblem(t, err, 422, face.CodeJobNotResolvable)
		g.park(t, "doubt", `{"type":"pay"}`)
		resolved := must(c.Resolve(ctx, "doubt", face.StatusSucceeded, map[string]int{"charge": 7}))(t)
		if resolved.Job.Status != face.StatusSucceeded || string(resolved.Job.Result) != `{"charge":7}` || resolved.Key == "" {
			t.Errorf("%+v", resolved)
		}

		// Executors.
		if list := must(c.Executors(ctx))(t); len(list.Executors) != 5 || list.Capped {
			t.Errorf("%+v", list)
		}
		if e := must(c.Pause(ctx, "echo"))(t); e.PausedAt.IsZero() || e.Executor != "echo" || e.Slots != 16 {
			t.Errorf("%+v", e)
		}
		if e := must(c.Resume(ctx, "echo"))(t); !e.PausedAt.IsZero() {
			t.Errorf("%+v", e)
		}
		if e := must(c.Executor(ctx, "echo"))(t); e.Name != "echo" || len(e.Workers) != 1 {
			t.Errorf("%+v", e)
		}
		_, err = c.Pause(ctx, "unknown")
		wantProblem(t, err, 404, face.CodeExecutorNotFound)
	})
}

func TestClient_Failure_BR85_AllPayloadsRoundTrip(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		c := g.face()
		for i, payload := range []string{
			`{ "b" : 1.50,  "a":"<é\u00e9&>", "nested":{"x":[ ]} }`, `[1, 2,"three" ,null]`, `"te\/xt"`, `9007199254740993`, `1e400`, `-0.0`, `true`, `null`,
		} {
			key := fmt.Sprint("payload-", i)
			receipt := must(c.Submit(t.Context(), "echo", json.RawMessage(payload), face.WithKey(key), face.WithWait(30*time.Second)))(t)
			found := must(c.Wait(t.Context(), key))(t)
			result := must(c.Result(t.Context(), key))(t)
			for what, got := range map[string]string{
				"receipt": string(receipt.Job.Payload), "payload": string(found.Payload), "result": string(found.Result), "body": string(result.Body),
			} {
				if got != payload {
					t.Errorf("%s of %s is %s", what, payload, got)
				}
			}
		}
	})
}

func TestClient_KeysOfAnyForm(t *testing.T) {
	onGateway(t, "", func(t *testing.T, g *gateway) {
		c, ctx := g.face(), t.Context()
		var items []face.BatchItem
		for _, key := range []string{
			"a/b", "a b", `"q"`, `b\s`, "a,b", "a;v=1", "100%", "%2F", "a?b#c", ".a", "...", "a//b", "a/../b", "/", "~{}|^`[]", "a:b", "+", "cancel", "a&b=c", strings.Repeat("%", 255),
		} {
			receipt := must(c.Submit(ctx, "echo", 1, face.WithKey(key), face.WithDelay(time.Hour)))(t)
			if found := must(c.Get(ctx, receipt.Key))(t); receipt.Job.Key != key || found.Key != key || found.ID != receipt.Job.ID {
				t.Errorf("%q: %+v", key, found)
			}
			must(c.Attempts(ctx, key))(t)
			if j := must(c.Cancel(ctx, key))(t); j.Key != key {
				t.Errorf("%q: %+v", key, j)
			}
			items = append(items, face.BatchItem{Key: key, Type: "echo", Payload: 1, Options: []face.SubmitOption{face.WithDelay(time.Hour)}})
		}
		// Single and batch are one identity.
		for i, result := range must(c.SubmitBatch(ctx, items))(t) {
			if !result.Replayed || result.Status != 202 || result.Key != items[i].Key || result.Job.Key != items[i].Key || result.JobStatus != face.StatusCancelled {
				t.Errorf("%+v", result)
			}
		}
		for i, result := range must(c.SubmitBatch(ctx, []face.BatchItem{{Type: "echo"}, {Key: "a/b", Type: "echo", Payload: 2}, {Key: ".", Type: "echo"}, {Key: "new", Type: "unknown"}}))(t) {
			want := []string{"", face.CodeIdempotencyKeyReused, face.CodeIdempotencyKeyInvalid, face.CodeUnknownJobType}[i]
			if (result.Problem == nil) != (want == "") || result.Problem != nil && result.Problem.Code != want || result.Key == "" {
				t.Errorf("%+v", result)
			}
		}
	})
}

// watched tells of the tries that got no answer.
type watched struct {
	once sync.Once
	away chan struct{}
}

func (w *watched) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		w.once.Do(func() { close(w.away) })
	}
	return answer, err
}

// The gateway dies between the submission and the end of the job, and while a client
// waits; another one takes its place.
func TestClient_OutlastsARestart(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		config := "listen: 127.0.0.1:" + freePort(t)
		g := start(t, database, config)
		w := &watched{away: make(chan struct{})}
		c := g.face(face.WithHTTPClient(&http.Client{Transport: w}), face.WithRetries(1))
		receipt := must(c.Submit(t.Context(), "echo", "x", face.WithDelay(time.Second)))(t)
		results := make(chan string, 1)
		go func() {
			result, err := c.Result(t.Context(), receipt.Key)
			results <- fmt.Sprint(string(result.Body), err)
		}()
		g.kill()
		<-w.away
		start(t, database, config)
		select {
		case got := <-results:
			if got != `"x"<nil>` {
				t.Errorf("result %s", got)
			}
		case <-time.After(60 * time.Second):
			t.Fatal("no result")
		}
	})
}

func TestClient_Failure_BR88_EachRefusalIsTyped(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		_, all := token(t, database, "--tenant", "one", "--permissions", "*")
		_, reader := token(t, database, "--tenant", "one", "--permissions", "read")
		g := start(t, database, both(t, withKeys, `
limits: {body: 2KiB, pending: 3}
job_types: {one: {executor: echo, on_business_key_conflict: reject}}
`))
		once := face.WithRetries(0)
		c, ctx := g.face(face.WithToken(all), once), t.Context()
		submit := func(c *face.Client, jobType string, payload any, options ...face.SubmitOption) error {
			_, err := c.Submit(ctx, jobType, payload, options...)
			return err
		}
		wantProblem(t, submit(g.face(once), "echo", 1), 401, face.CodeUnauthenticated)
		wantProblem(t, submit(g.face(face.WithToken(reader), once), "echo", 1), 403, face.CodeForbidden)
		p := wantProblem(t, submit(c, "echo", 1, face.WithKey("k"), face.WithPriority(200), face.WithMaxAttempts(0)), 400, face.CodeValidationFailed)
		if len(p.Errors) != 2 || p.Errors[1].Pointer != "/priority" || p.Key != "k" || p.Retryable {
			t.Errorf("%+v", p)
		}
		wantProblem(t, submit(c, "unknown", 1), 400, face.CodeUnknownJobType)
		if p = wantProblem(t, submit(c, "echo", 1, face.WithKey(strings.Repeat("x", 256))), 400, face.CodeIdempotencyKeyInvalid); p.Reason != "length" || p.Limit != 255 {
			t.Errorf("%+v", p)
		}
		if p = wantProblem(t, submit(c, "echo", strings.Repeat("x", 4096)), 413, face.CodeRequestTooLarge); p.Limit != 2048 {
			t.Errorf("%+v", p)
		}
		must(c.Submit(ctx, "one", 1, face.WithKey("k"), face.WithBusinessKey("b"), face.WithDelay(time.Hour)))(t)
		if p = wantProblem(t, submit(c, "one", 2, face.WithKey("k")), 422, face.CodeIdempotencyKeyReused); p.Key != "k" || p.Job != "/jobs/k" {
			t.Errorf("%+v", p)
		}
		// This one could be sent again and again: it is the caller's to decide.
		patient := g.face(face.WithToken(all))
		if p = wantProblem(t, submit(patient, "one", 2, face.WithBusinessKey("b")), 409, face.CodeBusinessKeyConflict); p.Job != "/jobs/k" || !p.Retryable || p.RetryAfter <= 0 {
			t.Errorf("%+v", p)
		}
		for range 2 {
			must(c.Submit(ctx, "echo", 1, face.WithDelay(time.Hour)))(t)
		}
		if p = wantProblem(t, submit(c, "echo", 1), 429, face.CodeRateLimited); !p.Retryable || p.RetryAfter <= 0 || p.Key == "" {
			t.Errorf("%+v", p)
		}
		_, err := c.Get(ctx, "unknown")
		wantProblem(t, err, 404, face.CodeJobNotFound)
		for want, r := range map[string]face.Request{
			"404 route-not-found":         {Path: "/nowhere"},
			"405 method-not-allowed":      {Method: http.MethodDelete, Path: "/jobs"},
			"409 job-not-finished":        {Path: "/jobs/k/result"},
			"415 unsupported-media-type":  {Method: http.MethodPost, Path: "/jobs", Key: "n", Body: []byte("x"), ContentType: "text/plain"},
			"400 idempotency-key-missing": {Method: http.MethodPost, Path: "/jobs", Body: []byte("{}")},
		} {
			_, err := c.Do(ctx, r)
			var p *face.Problem
			if !errors.As(err, &p) || fmt.Sprint(p.Status, " ", p.Code) != want {
				t.Errorf("%v, want %s", err, want)
			}
		}
	})
}

// A database that is away is told as such, and gone through once it is back.
func TestClient_GoesThroughAnOutageOfTheDatabase(t *testing.T) {
	t.Parallel()
	server := private(t)
	g := start(t, server.Database(t), "")
	c := g.face()
	must(c.Submit(t.Context(), "echo", 1, face.WithWait(30*time.Second)))(t)
	do(t, server.Shutdown)
	_, err := g.face(face.WithRetries(0)).Submit(t.Context(), "echo", 2, face.WithKey("k"))
	if p := wantProblem(t, err, 503, face.CodeIdempotencyStoreUnavailable); !p.Retryable || p.Key != "k" {
		t.Errorf("%+v", p)
	}
	results := make(chan error, 1)
	go func() {
		_, err := c.Submit(t.Context(), "echo", 2, face.WithKey("k"))
		results <- err
	}()
	do(t, server.Restart)
	if err := <-results; err != nil {
		t.Error(err)
	}
}
