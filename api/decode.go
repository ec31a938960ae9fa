package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// DecodeDraft reads the body of POST /jobs. now is what "at most a year ahead"
// is measured by. Errors: *ValidationError with everything that is wrong;
// *idempotency.JSONError for text that is no JSON. That the body as a whole is
// sound JSON, payload included, has been checked by whoever made its canonical
// form.
func DecodeDraft(body []byte, now time.Time) (job.Draft, error) {
	members, err := readMembers(body)
	if err != nil {
		return job.Draft{}, err
	}
	return decodeMembers(members, now)
}

func decodeMembers(members []member, now time.Time) (job.Draft, error) {
	var s Submission
	problems := submissions.decode(members, &s)
	if s.RunAt != nil && s.RunAt.After(now.AddDate(1, 0, 0)) {
		problems = append(problems, FieldError{"/run_at", ruleRange, mustBe(submissions.fields["run_at"]) + ", not later"})
	}
	if len(problems) > 0 {
		return job.Draft{}, &ValidationError{Errors: sortErrors(problems)}
	}
	return s.draft(), nil
}

type member struct {
	name  string
	value json.RawMessage
}

// readMembers splits an object without interpreting its values: they are the bytes
// of body as they came. It leaves names that stand twice to its caller.
func readMembers(body []byte) ([]member, error) {
	// From a buffer it reads in place.
	decoder := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	if first, err := decoder.ReadToken(); err != nil {
		return nil, notJSON(err)
	} else if first.Kind() != '{' {
		return nil, &ValidationError{Errors: []FieldError{{Pointer: "", Rule: ruleKind, Detail: "must be a JSON object" + not(body)}}}
	}
	var members []member
	for decoder.PeekKind() != '}' {
		name, err := decoder.ReadToken()
		if err != nil {
			return nil, notJSON(err)
		}
		m := member{name: name.String()}
		value, err := decoder.ReadValue()
		if err != nil {
			return nil, notJSON(err)
		}
		m.value = json.RawMessage(value)
		members = append(members, m)
	}
	if _, err := decoder.ReadToken(); err != nil {
		return nil, notJSON(err)
	}
	if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, notJSON(errTrailing)
	}
	return members, nil
}

var errTrailing = errors.New("api: data after the JSON value")

func notJSON(err error) error {
	return &idempotency.JSONError{Reason: idempotency.ReasonJSON, Err: err}
}

// submissions are the bodies of POST /jobs.
var submissions = formOf[Submission]("a submission")

func (s *Submission) draft() job.Draft {
	d := job.Draft{
		Type:        job.Type(*s.Type),
		Payload:     s.Payload,
		Priority:    integer(s.Priority),
		MaxAttempts: integer(s.MaxAttempts),
	}
	if s.BusinessKey != nil {
		d.BusinessKey = *s.BusinessKey
	}
	if s.CallbackURL != nil {
		d.CallbackURL = *s.CallbackURL
	}
	if s.RunAt != nil {
		d.RunAt = *s.RunAt
	}
	if s.DelaySeconds != nil {
		d.Delay = time.Duration(*s.DelaySeconds) * time.Second
	}
	d.Timeout, d.ExpiresIn = seconds(s.TimeoutSeconds), seconds(s.ExpiresInSeconds)
	return d
}

func seconds(n *int64) *time.Duration {
	if n == nil {
		return nil
	}
	d := time.Duration(*n) * time.Second
	return &d
}

func integer(n *int64) *int {
	if n == nil {
		return nil
	}
	i := int(*n)
	return &i
}
