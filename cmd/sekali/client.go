package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
)

// clientFlags are the flags of every command that asks a gateway.
type clientFlags struct {
	outputFlag
	URL   string `help:"Address of the gateway." env:"SEKALI_URL" default:"http://127.0.0.1:8080"`
	Token string `help:"API key, where the gateway asks for one." env:"SEKALI_TOKEN"`
}

func (f clientFlags) json() bool { return f.Output == "json" }

const (
	// callTimeout is longer than any answer takes that does not wait for a job.
	callTimeout = 30 * time.Second
	// callTries and the waits between them outlast a restart of the gateway's
	// database connection, and are short for somebody who looks on.
	callTries = 4
	firstWait = 250 * time.Millisecond
	maxWait   = 3 * time.Second
	// maxAnswer is far above what a gateway stores of one job.
	maxAnswer = 256 << 20
)

// call is one request. It may be sent again: it reads, or ends in one state
// however often it comes, or has a key.
type call struct {
	method, path string
	key          string // Idempotency-Key; "" for none
	body         []byte // JSON; nil for none
}

// answer is what a gateway answered with success.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// decode reads the answer's document.
func (a answer) decode(document any) error {
	if err := json.Unmarshal(a.body, document); err != nil {
		return fmt.Errorf("the answer is not the document that was asked for (is this a Sekali gateway?): %w", err)
	}
	return nil
}

// send sends the call until it is answered with something else than "send this
// again", a few times. Errors: *refusedError, *unreachableError, *usageError.
func (f clientFlags) send(ctx context.Context, c call) (answer, error) {
	client := &http.Client{Timeout: callTimeout}
	wait := firstWait
	for try := 1; ; try++ {
		got, err := f.once(ctx, client, c)
		after, again := againAfter(err)
		if !again || try == callTries || ctx.Err() != nil {
			return got, err
		}
		timer := time.NewTimer(min(max(after, wait), maxWait))
		wait *= 2
		select {
		case <-ctx.Done():
			timer.Stop()
			return got, err
		case <-timer.C:
		}
	}
}

// againAfter says whether the same call may succeed in a moment.
func againAfter(err error) (after time.Duration, again bool) {
	var refused *refusedError
	var unreachable *unreachableError
	switch {
	case errors.As(err, &unreachable):
		return 0, true
	case !errors.As(err, &refused):
		return 0, false
	}
	// A business key is let go by the end of another job: nobody waits for that
	// at a terminal.
	busy := refused.status == http.StatusConflict && refused.problem.Code != "business-key-conflict"
	return refused.after, busy || refused.status == http.StatusServiceUnavailable
}

func (f clientFlags) once(ctx context.Context, client *http.Client, c call) (answer, error) {
	r, err := f.request(ctx, c)
	if err != nil {
		return answer{}, err
	}
	w, err := client.Do(r)
	if err != nil {
		return answer{}, &unreachableError{url: f.URL, err: err}
	}
	defer w.Body.Close()
	body, err := io.ReadAll(io.LimitReader(w.Body, maxAnswer))
	if err != nil {
		return answer{}, &unreachableError{url: f.URL, err: err}
	}
	if w.StatusCode >= http.StatusMultipleChoices {
		return answer{}, refusalOf(w, body)
	}
	return answer{status: w.StatusCode, header: w.Header, body: body}, nil
}

func (f clientFlags) request(ctx context.Context, c call) (*http.Request, error) {
	base, err := url.Parse(f.URL)
	if err != nil || base.Scheme != "http" && base.Scheme != "https" || base.Host == "" {
		return nil, &usageError{fmt.Sprintf("--url %s is not the address of a gateway, such as http://127.0.0.1:8080", f.URL)}
	}
	r, err := http.NewRequestWithContext(ctx, c.method, strings.TrimSuffix(f.URL, "/")+c.path, bytes.NewReader(c.body))
	if err != nil {
		return nil, &usageError{err.Error()}
	}
	if c.body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.key != "" {
		r.Header.Set("Idempotency-Key", quoted(c.key))
	}
	if f.Token != "" {
		r.Header.Set("Authorization", "Bearer "+f.Token)
	}
	return r, nil
}

// quoted is the form of a key in its header that holds any key.
func quoted(key string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(key) + `"`
}

// jobPath is the path of a job, or of something below it.
func jobPath(key, below string) string { return "/jobs/" + url.PathEscape(key) + below }

// executorPath is the path of a type's executor, or of something below it.
func executorPath(name, below string) string { return "/executors/" + url.PathEscape(name) + below }

// keyFlag names the call itself, so that it changes once however often it is
// sent.
type keyFlag struct {
	CallKey string `name:"key" placeholder:"KEY" help:"Idempotency-Key of this call: give the same one to repeat it. Default: a new one, which is printed."`
}

// get returns the given key, or a new one and tells it.
func (f keyFlag) get(t terminal) string {
	if f.CallKey != "" {
		return f.CallKey
	}
	key := "cli-" + rand.Text()
	t.note("the key of this call is %s; repeat it with --key %s", key, key)
	return key
}

// unreachableError reports a gateway that did not answer.
type unreachableError struct {
	url string
	err error
}

func (e *unreachableError) Error() string {
	return fmt.Sprintf("the gateway at %s cannot be reached: %v\n  Is it running there? Set --url or SEKALI_URL.", e.url, e.err)
}

func (e *unreachableError) Unwrap() error { return e.err }

// refusedError reports a gateway that refused.
type refusedError struct {
	status  int
	after   time.Duration
	problem api.Problem
}

func refusalOf(w *http.Response, body []byte) error {
	e := &refusedError{status: w.StatusCode}
	if json.Unmarshal(body, &e.problem) != nil || e.problem.Code == "" {
		e.problem = api.Problem{
			Title: "answered " + w.Status, Detail: "The answer is not one of a Sekali gateway: is the address right?",
		}
	}
	if seconds, err := strconv.Atoi(w.Header.Get("Retry-After")); err == nil {
		e.after = time.Duration(seconds) * time.Second
	}
	return e
}

func (e *refusedError) Error() string {
	p := e.problem
	var b strings.Builder
	fmt.Fprintf(&b, "the gateway refused: %s (%d %s)\n  %s", plain(p.Title), e.status, cmp.Or(plain(p.Code), "without a problem document"), plain(p.Detail))
	for _, wrong := range p.Errors {
		fmt.Fprintf(&b, "\n  %s %s", plain(wrong.Pointer), plain(wrong.Detail))
	}
	if p.Job != "" {
		fmt.Fprintf(&b, "\n  The job: %s", plain(p.Job))
	}
	if p.JobStatus != "" {
		fmt.Fprintf(&b, " (%s)", plain(p.JobStatus))
	}
	fmt.Fprintf(&b, "\n  What to do: %s", e.advice())
	return b.String()
}

// advice is what to do about a refusal, beyond what its detail says.
func (e *refusedError) advice() string {
	switch e.problem.Code {
	case "job-not-found":
		if e.problem.Job != "" {
			return "give the key of that job instead."
		}
		return "check the key, and whether the API key is one of the job's tenant."
	case "unauthenticated":
		return "give a valid API key with --token or SEKALI_TOKEN (sekali token create makes one)."
	case "forbidden":
		return "use an API key that has this permission."
	case "job-not-retryable":
		return "wait until the job has failed or was cancelled; sekali inspect shows how it stands."
	case "job-not-resolvable":
		return "look at the job with sekali inspect: there is no doubt about it to resolve."
	case "job-already-finished":
		return "nothing: there is no more to cancel."
	case "executor-not-found":
		return "sekali executors lists the job types."
	case "business-key-conflict":
		return "wait until the other job has ended, then repeat the call with the same --key."
	case api.CodeKeyReused:
		return "use another --key: this one stands for another request."
	}
	if e.problem.Retryable || e.status == http.StatusServiceUnavailable {
		return "try again in a moment, with the same --key where there is one."
	}
	return cmp.Or(plain(e.problem.Type), "see the gateway's log.")
}
