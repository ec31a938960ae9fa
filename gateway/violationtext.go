package gateway

import (
	"encoding/json"
	"fmt"
	"math/big"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"
)

// detailOf says what the schema asks for and what kind of value is there. What
// it quotes is the schema's.
func detailOf(e *jsonschema.ValidationError, value any) string {
	for _, tell := range []func(jsonschema.ErrorKind, any) string{ofValues, ofNumbers, ofStrings, ofCollections} {
		if detail := tell(e.ErrorKind, value); detail != "" {
			return detail
		}
	}
	return "must fit the schema"
}

func ofValues(k jsonschema.ErrorKind, value any) string {
	switch k := k.(type) {
	case *kind.Type:
		return "must be " + either(k.Want) + ", not " + kindOf(value)
	case *kind.Enum:
		return "must be " + oneOf(k.Want) + notOfKind(value)
	case *kind.Const:
		return "must be " + oneOf([]any{k.Want}) + notOfKind(value)
	case *kind.Not:
		return "must not fit what the schema excludes (not)"
	case *kind.FalseSchema:
		return "must not be given"
	case *kind.RefCycle:
		return "cannot be checked: its schema refers to itself without end"
	}
	return ""
}

func ofNumbers(k jsonschema.ErrorKind, value any) string {
	bound := ""
	switch k := k.(type) {
	case *kind.Minimum:
		bound = "at least " + decimal(k.Want)
	case *kind.Maximum:
		bound = "at most " + decimal(k.Want)
	case *kind.ExclusiveMinimum:
		bound = "more than " + decimal(k.Want)
	case *kind.ExclusiveMaximum:
		bound = "less than " + decimal(k.Want)
	case *kind.MultipleOf:
		bound = "a multiple of " + decimal(k.Want)
	default:
		return ""
	}
	return "must be " + bound + ", not " + kindOf(value)
}

func ofStrings(k jsonschema.ErrorKind, _ any) string {
	switch k := k.(type) {
	case *kind.MinLength:
		return fmt.Sprintf("must have at least %s, not %d", count(k.Want, "character"), k.Got)
	case *kind.MaxLength:
		return fmt.Sprintf("must have at most %s, not %d", count(k.Want, "character"), k.Got)
	case *kind.Pattern:
		return "must match the pattern " + short(k.Want)
	case *kind.Format:
		return "must be of the format " + short(k.Want)
	}
	return ""
}

func ofCollections(k jsonschema.ErrorKind, _ any) string {
	switch k := k.(type) {
	case *kind.MinProperties:
		return fmt.Sprintf("must have at least %s, not %d", count(k.Want, "member"), k.Got)
	case *kind.MaxProperties:
		return fmt.Sprintf("must have at most %s, not %d", count(k.Want, "member"), k.Got)
	case *kind.MinItems:
		return fmt.Sprintf("must have at least %s, not %d", count(k.Want, "item"), k.Got)
	case *kind.MaxItems:
		return fmt.Sprintf("must have at most %s, not %d", count(k.Want, "item"), k.Got)
	case *kind.AdditionalItems:
		return fmt.Sprintf("must not have the last %s", count(k.Count, "item"))
	case *kind.UniqueItems:
		return fmt.Sprintf("must have no equal items: those at %d and %d are", k.Duplicates[0], k.Duplicates[1])
	case *kind.Contains:
		return "must have an item that fits what the schema asks for (contains)"
	case *kind.MinContains:
		return fmt.Sprintf("must have at least %s that fit what the schema asks for (contains), not %d", count(k.Want, "item"), len(k.Got))
	case *kind.MaxContains:
		return fmt.Sprintf("must have at most %s that fit what the schema asks for (contains), not %d", count(k.Want, "item"), len(k.Got))
	}
	return ""
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

var articles = map[string]string{
	"string": "a string", "number": "a number", "integer": "an integer", "boolean": "a boolean", "array": "an array", "object": "an object",
}

func either(types []string) string {
	words := make([]string, len(types))
	for i, t := range types {
		if words[i] = articles[t]; words[i] == "" {
			words[i] = t
		}
	}
	return strings.Join(words, " or ")
}

// Bounds on what is quoted from a schema.
const (
	maxQuoted = 100 // characters
	maxListed = 20  // values of an enum
)

// oneOf lists values that the schema names, if they are few and short.
func oneOf(values []any) string {
	texts := make([]string, len(values))
	for i, v := range values {
		text, err := json.Marshal(v)
		if err != nil || len(text) > maxQuoted || len(values) > maxListed {
			return fmt.Sprintf("one of the %s that the schema lists", count(len(values), "value"))
		}
		texts[i] = string(text)
	}
	if len(texts) == 1 {
		return texts[0]
	}
	return "one of " + strings.Join(texts, ", ")
}

// notOfKind says what is there, unless that is a string: it may be the text that
// is at fault.
func notOfKind(value any) string {
	if _, isString := value.(string); isString {
		return ""
	}
	return ", not " + kindOf(value)
}

func short(text string) string {
	if runes := []rune(text); len(runes) > maxQuoted {
		return string(runes[:maxQuoted]) + "…"
	}
	return text
}

// decimal writes a number of a schema as people do, all its digits if they are
// few.
func decimal(r *big.Rat) string {
	if places, exact := r.FloatPrec(); exact {
		if text := r.FloatString(places); len(text) <= maxQuoted {
			return text
		}
	}
	return new(big.Float).SetRat(r).Text('g', 10)
}
