package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-playground/validator/v10"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// Rules that a FieldError names, besides those of JSON itself.
const (
	ruleRequired  = "required"
	ruleKind      = "kind"
	ruleRange     = "range"
	ruleLength    = "length"
	ruleCharset   = "charset"
	ruleExclusive = "exclusive"
	ruleUnknown   = "unknown"
	ruleOneOf     = "one_of"
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
		problems = append(problems, FieldError{"/run_at", ruleRange, mustBe(submissions.fields["run_at"])})
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

// readMembers splits an object without interpreting its values: the payload
// keeps every byte.
func readMembers(body []byte) ([]member, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	if first, err := decoder.Token(); err != nil {
		return nil, notJSON(err)
	} else if first != json.Delim('{') {
		return nil, &ValidationError{Errors: []FieldError{{Pointer: "", Rule: ruleKind, Detail: "must be a JSON object"}}}
	}
	var members []member
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, notJSON(err)
		}
		m := member{name: name.(string)}
		if err := decoder.Decode(&m.value); err != nil {
			return nil, notJSON(err)
		}
		members = append(members, m)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, notJSON(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, notJSON(errTrailing)
	}
	return members, nil
}

var errTrailing = errors.New("api: data after the JSON value")

func notJSON(err error) error {
	return &idempotency.JSONError{Reason: idempotency.ReasonJSON, Err: err}
}

// A form is a document that clients send: its members by name, each with its
// rules in the tags of a struct.
type form struct {
	name   string
	fields map[string]reflect.StructField
}

// submissions are the bodies of POST /jobs.
var submissions = formOf[Submission]("a submission")

func formOf[T any](name string) form {
	f := form{name: name, fields: map[string]reflect.StructField{}}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		f.fields[memberName(field)] = field
	}
	return f
}

func memberName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// decode puts the members into the document, a pointer to the form's struct, and
// returns everything that is wrong with them.
func (f form) decode(members []member, document any) []FieldError {
	misfits := f.fill(members, reflect.ValueOf(document).Elem())
	return append(misfits, f.check(document, misfits)...)
}

// fill puts the members into the struct and returns those that do not fit. A
// null is left out: it means the same as an absent member.
func (f form) fill(members []member, into reflect.Value) []FieldError {
	var problems []FieldError
	seen := map[string]bool{}
	for _, m := range members {
		field, known := f.fields[m.name]
		switch {
		case !known:
			problems = append(problems, f.unknown(m.name))
		case seen[m.name]:
			problems = append(problems, FieldError{pointerTo(m.name), idempotency.ReasonDuplicate, "must not stand here twice"})
		case string(m.value) == "null":
		default:
			target := into.FieldByIndex(field.Index).Addr().Interface()
			if decodeMember(m.value, target) != nil {
				problems = append(problems, FieldError{pointerTo(m.name), kindOrRange(field, m.value), mustBe(field)})
			}
		}
		seen[m.name] = true
	}
	return problems
}

func decodeMember(value json.RawMessage, target any) error {
	at, isTime := target.(**time.Time)
	if !isTime {
		return json.Unmarshal(value, target)
	}
	text := ""
	if err := json.Unmarshal(value, &text); err != nil {
		return err
	}
	t, err := parseTime(text)
	if err != nil {
		return err
	}
	*at = &t
	return nil
}

func (f form) unknown(name string) FieldError {
	detail := "is not a member of " + f.name
	for known := range f.fields {
		if strings.EqualFold(name, known) {
			detail += "; write it as " + known
		}
	}
	return FieldError{pointerTo(name), ruleUnknown, detail}
}

// kindOrRange tells an integer that is too large to hold from other misfits.
func kindOrRange(field reflect.StructField, value json.RawMessage) string {
	digits := bytes.TrimPrefix(value, []byte("-"))
	if field.Type == reflect.TypeFor[*int64]() && len(bytes.Trim(digits, "0123456789")) == 0 {
		return ruleRange
	}
	return ruleKind
}

func mustBe(f reflect.StructField) string { return "must be " + f.Tag.Get("allowed") }

func pointerTo(name string) string {
	return "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}

// validate is safe for concurrent use and caches what it learns of the type.
var validate = func() *validator.Validate {
	v := validator.New(validator.WithRequiredStructEnabled())
	v.RegisterTagNameFunc(memberName)
	return v
}()

// check applies the rules of the struct's tags to all that could be decoded. A
// member that could not is not nil to its sender: no rule may call it absent
// (BR-35).
func (f form) check(document any, misfits []FieldError) []FieldError {
	var problems []FieldError
	var failed validator.ValidationErrors
	if err := validate.Struct(document); err != nil && !errors.As(err, &failed) {
		panic("api: rules of " + f.name + " are malformed: " + err.Error())
	}
	for _, broken := range failed {
		problem := f.broken(broken)
		if !slices.ContainsFunc(misfits, func(m FieldError) bool { return m.Pointer == problem.Pointer }) {
			problems = append(problems, problem)
		}
	}
	return problems
}

func (f form) broken(e validator.FieldError) FieldError {
	name := e.Field()
	detail := mustBe(f.fields[name])
	switch e.Tag() {
	case "required":
		return FieldError{pointerTo(name), ruleRequired, "must be given: " + f.fields[name].Tag.Get("allowed")}
	case "excluded_with":
		return FieldError{pointerTo(name), ruleExclusive, "must not be given together with run_at"}
	case "printascii":
		return FieldError{pointerTo(name), ruleCharset, detail}
	case "oneof":
		return FieldError{pointerTo(name), ruleOneOf, detail}
	}
	if e.Kind() == reflect.String {
		return FieldError{pointerTo(name), ruleLength, detail}
	}
	return FieldError{pointerTo(name), ruleRange, detail}
}

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

// sortErrors puts errors into the order of their pointers, so that one request
// gets one answer whatever order it was read in.
func sortErrors(errs []FieldError) []FieldError {
	slices.SortStableFunc(errs, func(a, b FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return errs
}
