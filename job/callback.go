package job

import (
	"cmp"
	"fmt"

	"github.com/sekali/sekali/idempotency"
)

// CallbackType is the built-in type of the jobs that tell of another job's end. A
// client cannot submit one.
const CallbackType Type = "sekali.callback"

// CallbackError reports a callback URL that a request must not name.
type CallbackError struct {
	Detail string // what would be right
}

func (e *CallbackError) Error() string { return "job: callback_url " + e.Detail }

func (s *Jobs) checkCallback(url string) error {
	switch {
	case url == "":
		return nil
	case s.CheckCallback == nil:
		return &CallbackError{Detail: "must not be given: no request may name one here"}
	}
	return s.CheckCallback(url)
}

// tells reports whether somebody is told of the job's end. Nobody is told that
// somebody was told.
func (j Job) tells() bool { return j.CallbackURL != "" && j.Type != CallbackType }

// callbackKey is the key of the job that tells of j's end. A job that an operator
// brought back ends, and is told of, once more.
func callbackKey(j Job) idempotency.Key {
	key := "callback:" + string(j.ID)
	if j.Generation > 1 {
		key += fmt.Sprintf(":%d", j.Generation)
	}
	return idempotency.Key(key)
}

// callback is the submission of the job that tells of j's end; nil: nobody wants to
// know. What it says is made now and stored, so that each attempt sends the same
// bytes. The time of the end is this process's reading of the database's clock: the
// statement that ends the job reads it a moment later.
func (s *Jobs) callback(j Job, again idempotency.Key) *Submission {
	if !j.tells() {
		return nil
	}
	settings, possible := s.Types[CallbackType]
	if !possible {
		settings = s.CallbackSettings // it waits for a process that knows how to call
	}
	now := s.Clock.Now()
	j.FinishedAt = cmp.Or(j.FinishedAt, now) // a job that is resolved had ended before
	d := Draft{Type: CallbackType, Payload: s.Callback(j, now), CallbackURL: j.CallbackURL}
	return s.follow(j, callbackKey(j)+again, d, settings)
}
