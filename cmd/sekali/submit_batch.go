package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/client"
)

const (
	// firstPause and longestPause are between tries of lines that were put off: soon
	// enough for a job that just ends, rare enough for a gateway that is full. A
	// gateway that asks for a longer one gets it.
	firstPause   = 250 * time.Millisecond
	longestPause = 5 * time.Second
	// busyTries are for what another request or job holds: nobody knows how long
	// that runs.
	busyTries = 6
	// fullTries are for a gateway that takes no more. They begin again whenever any
	// line is accepted: a full queue empties, however slowly.
	fullTries = 30
	// lateTime is for what is on its way when the command is interrupted.
	lateTime = 10 * time.Second
)

// itemResult is what became of one line.
type itemResult struct {
	Key       *string `json:"key"`
	Status    int     `json:"status"`
	Replayed  bool    `json:"replayed"`
	JobStatus string  `json:"job_status"`
	Job       *struct{ Key string }
	Problem   *api.Problem `json:"problem"`

	raw json.RawMessage
}

// submit sends a batch until each of its lines is accepted or refused. The error
// ends all sending; ctx ends tries, but no request that is on its way.
func (s *fileSubmit) submit(ctx context.Context, b batch) error {
	defer func() { s.progress.add(b.bytes, counts{}) }()
	left, pause := b.lines, firstPause
	for ctx.Err() == nil {
		results, err := s.post(ctx, left)
		wait := pause
		switch refused := (*client.Problem)(nil); {
		case err == nil:
		case !errors.As(err, &refused):
			return err
		case refused.Status == http.StatusRequestEntityTooLarge && len(left) > 1:
			if err := s.submit(ctx, batch{lines: left[:len(left)/2]}); err != nil {
				return err
			}
			return s.submit(ctx, batch{lines: left[len(left)/2:]})
		case refused.Status == http.StatusRequestEntityTooLarge || putOff(refused.Status, refused.Retryable):
			results, wait = s.sameForAll(left, refused), max(pause, refused.RetryAfter)
		default:
			return err
		}
		if left, wait, err = s.settle(left, results, wait); err != nil || len(left) == 0 {
			return err
		}
		if wait > notedPause {
			s.progress.pauses(wait)
		}
		if sleep(ctx, wait) != nil {
			return nil // told by whoever ended ctx
		}
		pause = min(2*pause, longestPause)
	}
	return nil
}

// putOff reports whether the same line may be accepted later.
func putOff(status int, retryable bool) bool {
	return retryable && (status == http.StatusConflict || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable)
}

// post sends lines in one request, to its end.
func (s *fileSubmit) post(ctx context.Context, lines []line) ([]itemResult, error) {
	var body bytes.Buffer
	for _, l := range lines {
		body.Write(l.text)
		body.WriteByte('\n')
	}
	ctx, cancel := late(ctx)
	defer cancel()
	got, err := s.gateway.Do(ctx, client.Request{
		Method: http.MethodPost, Path: "/jobs/batch", Body: body.Bytes(), ContentType: "application/x-ndjson",
	})
	if err != nil {
		return nil, err
	}
	var document struct{ Results []json.RawMessage }
	if err := s.decoded(got, &document); err != nil {
		return nil, err
	}
	if len(document.Results) != len(lines) {
		return nil, s.noGateway(fmt.Errorf("%d results for %d lines", len(document.Results), len(lines)))
	}
	results := make([]itemResult, len(lines))
	for i, raw := range document.Results {
		if err := json.Unmarshal(raw, &results[i]); err != nil {
			return nil, s.noGateway(err)
		}
		results[i].raw = raw
	}
	return results, nil
}

// late is a context that goes on for a moment after ctx.
func late(ctx context.Context) (context.Context, context.CancelFunc) {
	longer, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		_ = sleep(longer, lateTime) // in a goroutine of its own, which cancel ends
		cancel()
	})
	return longer, func() { stop(); cancel() }
}

// sameForAll gives each line the refusal of the whole batch.
func (s *fileSubmit) sameForAll(lines []line, refused *client.Problem) []itemResult {
	p := &api.Problem{Code: refused.Code, Title: refused.Title, Status: refused.Status, Detail: refused.Detail, Retryable: refused.Retryable, RetryAfterMS: refused.RetryAfter.Milliseconds()}
	results := make([]itemResult, len(lines))
	for i := range lines {
		results[i] = itemResult{Key: &lines[i].key, Status: p.Status, Problem: p}
		results[i].raw, _ = json.Marshal(map[string]any{"key": lines[i].key, "status": p.Status, "replayed": false, "problem": p}) // of our own types
	}
	return results
}

// settle counts and tells what is decided, and returns the lines to send again
// and after how long. Its error is *outputError.
func (s *fileSubmit) settle(lines []line, results []itemResult, wait time.Duration) ([]line, time.Duration, error) {
	var again []line
	var done counts
	defer func() { s.progress.add(0, done) }()
	for i, result := range results {
		l := lines[i]
		p := result.Problem
		switch {
		case p == nil && result.Replayed:
			done.replayed++
		case p == nil:
			done.accepted++
		case putOff(result.Status, p.Retryable) && s.mayTryAgain(&l, result.Status):
			again = append(again, l)
			wait = max(wait, time.Duration(p.RetryAfterMS)*time.Millisecond)
			continue
		default:
			done.refused++
			s.progress.note("line %d: key %s: %s: %s", l.number, cmp.Or(l.key, "-"), p.Code, detailOf(p))
		}
		if p == nil && result.Job != nil && result.Job.Key != l.key && !result.Replayed {
			done.bound++
		}
		if err := s.tell(l, result.raw); err != nil {
			return nil, 0, err
		}
	}
	return again, wait, nil
}

// mayTryAgain reports whether the line has a try left.
func (s *fileSubmit) mayTryAgain(l *line, status int) bool {
	l.tries++
	if status == http.StatusConflict {
		return l.tries < busyTries
	}
	if accepted := s.progress.accepted(); accepted > l.accepted {
		l.accepted, l.tries = accepted, 1
	}
	return l.tries < fullTries
}

func detailOf(p *api.Problem) string {
	var b bytes.Buffer
	b.WriteString(p.Detail)
	for _, wrong := range p.Errors {
		fmt.Fprintf(&b, " %s %s.", wrong.Pointer, wrong.Detail)
	}
	return b.String()
}

// refuseLine tells of a line that cannot be sent. Its error is *outputError.
func (s *fileSubmit) refuseLine(l line) error {
	s.progress.note("line %d: %s", l.number, l.wrong)
	raw, _ := json.Marshal(map[string]any{ // of texts and numbers
		"key": nil, "status": http.StatusBadRequest, "replayed": false,
		"problem": map[string]any{"code": "validation-failed", "title": "The line cannot be sent", "status": http.StatusBadRequest, "detail": l.wrong, "retryable": false},
	})
	s.progress.add(0, counts{refused: 1})
	return s.tell(l, raw)
}

// tell prints the result of one line for programs. Its error is *outputError.
func (s *fileSubmit) tell(l line, raw json.RawMessage) error {
	if !s.json() {
		return nil
	}
	return s.progress.write(fmt.Appendf(nil, `{"line":%d,%s`+"\n", l.number, bytes.TrimSpace(raw)[1:]))
}
