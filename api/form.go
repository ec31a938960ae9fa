package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-playground/validator/v10"

	"github.com/sekali/sekali/idempotency"
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

// A form is a document that clients send: its members by name, each with its
// rules in the tags of a struct.
type form struct {
	name   string
	fields map[string]reflect.StructField
}

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
	return append(misfits, f.check(document, members, misfits)...)
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
				problems = append(problems, f.misfit(field, m.value))
			}
		}
		seen[m.name] = true
	}
	return problems
}

func decodeMember(value json.RawMessage, target any) error {
	if raw, isRaw := target.(*json.RawMessage); isRaw {
		*raw = value // which is JSON: it was cut out of some
		return nil
	}
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

// misfit tells of a value that a field cannot hold: one of another kind, or an
// integer that is larger than any range here.
func (f form) misfit(field reflect.StructField, value json.RawMessage) FieldError {
	problem := FieldError{pointerTo(memberName(field)), ruleKind, mustBe(field) + not(value)}
	digits := bytes.TrimPrefix(value, []byte("-"))
	switch {
	case field.Type == reflect.TypeFor[*int64]() && len(bytes.Trim(digits, "0123456789")) == 0:
		problem.Rule = ruleRange
	case field.Type == reflect.TypeFor[*time.Time]() && value[0] == '"':
		problem.Detail = mustBe(field) + notThatString
	}
	return problem
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
func (f form) check(document any, members []member, misfits []FieldError) []FieldError {
	var problems []FieldError
	var failed validator.ValidationErrors
	if err := validate.Struct(document); err != nil && !errors.As(err, &failed) {
		panic("api: rules of " + f.name + " are malformed: " + err.Error())
	}
	for _, broken := range failed {
		problem := f.broken(broken, valueOf(members, broken.Field()))
		if !slices.ContainsFunc(misfits, func(m FieldError) bool { return m.Pointer == problem.Pointer }) {
			problems = append(problems, problem)
		}
	}
	return problems
}

// broken tells of a rule that the value, as it was sent, does not keep.
func (f form) broken(e validator.FieldError, value json.RawMessage) FieldError {
	name := e.Field()
	pointer, detail := pointerTo(name), mustBe(f.fields[name])
	switch e.Tag() {
	case "required":
		return FieldError{pointer, ruleRequired, "must be given: " + f.fields[name].Tag.Get("allowed") + not(value)}
	case "excluded_with":
		return FieldError{pointer, ruleExclusive, "must not be given together with run_at"}
	case "printascii":
		return FieldError{pointer, ruleCharset, detail + ", not one with others"}
	case "oneof":
		return FieldError{pointer, ruleOneOf, detail + notThatString}
	}
	if text, ok := e.Value().(string); ok {
		return FieldError{pointer, ruleLength, detail + notOfLength(text)}
	}
	if list := reflect.ValueOf(e.Value()); list.Kind() == reflect.Slice {
		return FieldError{pointer, ruleLength, fmt.Sprintf("%s, not one of %d", detail, list.Len())}
	}
	return FieldError{pointer, ruleRange, detail + not(value)}
}

// sortErrors puts errors into the order of their pointers, so that one request
// gets one answer whatever order it was read in.
func sortErrors(errs []FieldError) []FieldError {
	slices.SortStableFunc(errs, func(a, b FieldError) int { return strings.Compare(a.Pointer, b.Pointer) })
	return errs
}
