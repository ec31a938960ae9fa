package idempotency

import (
	"errors"
	"fmt"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// MaxDepth is how deep the objects and arrays of a JSON body may be nested, the
// outermost one included. Decoders of other languages stop at a few hundred,
// Postgres' at its stack; 64 is more than people write by hand.
const MaxDepth = 64

// Reasons why JSON is refused.
const (
	ReasonDuplicate = "duplicate" // a member that stands twice in its object
	ReasonDepth     = "depth"     // nested deeper than MaxDepth
	ReasonUTF8      = "utf8"      // bytes or escapes that are no Unicode text
	ReasonJSON      = "json"      // not exactly one JSON value
)

// JSONError reports a body that is not JSON as this package takes it.
type JSONError struct {
	Pointer string // RFC 6901, to the value at fault or the one around it
	Reason  string
	Err     error
}

func (e *JSONError) Error() string {
	return fmt.Sprintf("idempotency: body at %q: %s: %v", e.Pointer, e.Reason, e.Err)
}

func (e *JSONError) Unwrap() error { return e.Err }

// Canonical returns the form of a JSON text in which two texts are equal if
// they say the same: no blanks, members sorted, strings in their shortest
// escaping (RFC 8785). Numbers keep their text digit by digit: 1, 1.0 and 1e0
// differ, and nothing above 2^53 is rounded. What could be read in two ways is
// refused with a *JSONError: duplicate members, lone surrogates, invalid UTF-8,
// a byte order mark, anything after the value, and depths above MaxDepth.
func Canonical(json []byte) ([]byte, error) {
	if pointer, ok := tooDeep(json); ok {
		return nil, &JSONError{Pointer: pointer, Reason: ReasonDepth, Err: errDepth}
	}
	value := jsontext.Value(json).Clone()
	err := value.Format(
		jsontext.AllowDuplicateNames(false),
		jsontext.AllowInvalidUTF8(false),
		jsontext.PreserveRawStrings(false),
		jsontext.CanonicalizeRawInts(false),
		jsontext.CanonicalizeRawFloats(false),
		jsontext.ReorderRawObjects(true),
	)
	if err != nil {
		return nil, jsonError(err)
	}
	return value, nil
}

var errDepth = fmt.Errorf("nested deeper than %d", MaxDepth)

func jsonError(err error) *JSONError {
	e := &JSONError{Reason: ReasonJSON, Err: err}
	syntax := (*jsontext.SyntacticError)(nil)
	if !errors.As(err, &syntax) {
		return e
	}
	e.Pointer, e.Err = string(syntax.JSONPointer), syntax.Err
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		e.Reason = ReasonDuplicate
	// The library names these two in text alone.
	case strings.Contains(syntax.Err.Error(), "UTF-8"), strings.Contains(syntax.Err.Error(), "surrogate"):
		e.Reason = ReasonUTF8
	}
	return e
}

// tooDeep finds nesting beyond MaxDepth before anything recurses into it. It
// counts brackets outside strings, so it is also right about text that turns
// out not to be JSON: such text is refused one way or the other.
func tooDeep(json []byte) (pointer string, found bool) {
	depth, quoted := 0, false
	for i := 0; i < len(json); i++ {
		switch c := json[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > MaxDepth {
				return pointerAt(json[:i+1]), true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return "", false
}

// pointerAt names the value in which the text ends.
func pointerAt(prefix []byte) string {
	decoder := jsontext.NewDecoder(strings.NewReader(string(prefix)))
	for {
		if _, err := decoder.ReadToken(); err != nil {
			return string(decoder.StackPointer())
		}
	}
}
