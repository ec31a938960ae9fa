package gateway

import (
	"cmp"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// A schema that refers to itself in two alternatives is gone through twice at
// each level of a payload, so that one of a few hundred bytes could keep a
// processor busy for hours. A meter ends such a validation. Steps are counted
// instead of time, so that the same request gets the same answer.
const (
	// baseEffort is about a tenth of a second, for ten levels that double.
	baseEffort = 20_000
	// effortPerByte is some seconds for a payload of a megabyte. Ordinary schemas
	// take a fifth to a half.
	effortPerByte = 4
)

// Numbers are compared exactly, with as many digits as their exponents say. More
// digits than these are no number that anybody means.
const (
	maxDigits   = 1000
	maxExponent = 1000
)

// digitsPerEffort is how many digits of an exponent cost about as much as one
// step of a validation.
const digitsPerEffort = 250

// meter counts the steps of one validation at a time.
type meter struct{ left int }

// errEffort ends a validation from within: the library has no other way out.
var errEffort = errors.New("gateway: a validation takes too many steps")

func (m *meter) spend(effort int) {
	if m.left -= effort; m.left < 0 {
		panic(errEffort)
	}
}

// stop turns the end of a validation that took too long into what a client is
// told.
func (m *meter) stop(err *error) {
	switch r := recover(); r {
	case nil:
	case errEffort:
		*err = violation("effort", "must be simpler: comparing it with the schema of its type takes too many steps")
	default:
		panic(r)
	}
}

// vocabulary puts the meter beside every object of a schema.
func (m *meter) vocabulary() *jsonschema.Vocabulary {
	return &jsonschema.Vocabulary{
		URL: "urn:sekali:meter",
		Compile: func(c *jsonschema.CompilerContext, schema map[string]any) (jsonschema.SchemaExt, error) {
			if _, ok := schema["propertyNames"]; ok {
				return names{m, c.Enqueue([]string{"propertyNames"})}, nil
			}
			return m, nil
		},
	}
}

// Validate counts one step.
func (m *meter) Validate(*jsonschema.ValidatorContext, any) { m.spend(1) }

// names looks at the names of members in place of the library, whose errors
// about them do not say reliably in which object they are.
type names struct {
	*meter
	of *jsonschema.Schema
}

// unfitName is the error about a name. It is told from the library's own, which
// has causes.
func unfitName(name string) *kind.PropertyNames { return &kind.PropertyNames{Property: name} }

func (n names) Validate(c *jsonschema.ValidatorContext, value any) {
	n.spend(1)
	object, _ := value.(map[string]any)
	for name := range object {
		if n.of.Validate(name) != nil {
			c.AddError(unfitName(name))
		}
	}
}

// weigh returns what comparing the numbers in the value will cost, or a
// *job.PayloadError for one that is not compared at all.
func weigh(value any) (effort int, err error) {
	switch v := value.(type) {
	case json.Number:
		return weighNumber(string(v))
	case []any:
		for _, item := range v {
			if effort, err = add(effort, item); err != nil {
				return 0, err
			}
		}
	case map[string]any:
		for _, member := range v {
			if effort, err = add(effort, member); err != nil {
				return 0, err
			}
		}
	}
	return effort, nil
}

func add(effort int, value any) (int, error) {
	more, err := weigh(value)
	return effort + more, err
}

func weighNumber(text string) (effort int, err error) {
	_, digits, _ := strings.Cut(strings.ToLower(text), "e")
	exponent, err := strconv.Atoi(cmp.Or(digits, "0"))
	if err != nil || exponent > maxExponent || exponent < -maxExponent || len(text) > maxDigits {
		return 0, violation("number", "must have no number of more than 1000 digits, or with an exponent beyond 1000")
	}
	return (max(exponent, -exponent) + len(text)) / digitsPerEffort, nil
}
