package gateway

import (
	"cmp"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/santhosh-tekuri/jsonschema/v6/kind"

	"github.com/sekali/sekali/job"
)

// violationsOf tells in plain words, and without the value's content, what the
// library found wrong with it: by pointer, the same for the same value.
func violationsOf(e *jsonschema.ValidationError, value any) []job.Violation {
	f := findings{value: value}
	f.add(e)
	slices.SortFunc(f.found, func(a, b job.Violation) int {
		return cmp.Or(cmp.Compare(a.Pointer, b.Pointer), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Detail, b.Detail))
	})
	return slices.Compact(f.found)
}

// findings flattens the tree of the library's errors.
type findings struct {
	value any
	found []job.Violation
}

func (f *findings) add(e *jsonschema.ValidationError) {
	switch k := e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.AllOf, *kind.Reference:
		for _, cause := range e.Causes {
			f.add(cause)
		}
	case *kind.AnyOf:
		f.alternatives(e)
	case *kind.OneOf:
		if k.Subschemas == nil {
			f.alternatives(e)
			return
		}
		f.leaf(e, "must fit exactly one of the alternatives (oneOf), and fits more")
	case *kind.Required:
		f.members(e, k.Missing, "must be given")
	case *kind.DependentRequired:
		f.members(e, k.Missing, "must be given together with "+k.Prop)
	case *kind.Dependency:
		f.members(e, k.Missing, "must be given together with "+k.Prop)
	case *kind.AdditionalProperties:
		f.members(e, k.Properties, "is no member that the schema knows")
	case *kind.PropertyNames:
		if e.Causes == nil { // see names
			f.members(e, []string{k.Property}, "has a name that the schema does not allow")
		}
	default:
		f.leaf(e, detailOf(e, at(f.value, e.InstanceLocation)))
	}
}

func (f *findings) leaf(e *jsonschema.ValidationError, detail string) {
	f.found = append(f.found, job.Violation{Pointer: pointer(e.InstanceLocation), Rule: ruleOf(e), Detail: detail})
}

// members points at each member, as errors about the envelope do.
func (f *findings) members(e *jsonschema.ValidationError, names []string, detail string) {
	for _, name := range names {
		path := append(slices.Clone(e.InstanceLocation), name)
		f.found = append(f.found, job.Violation{Pointer: pointer(path), Rule: ruleOf(e), Detail: detail})
	}
}

// alternatives reports a value that fits none of several schemas. Only one of
// them can have been meant: the one that does not fail by the value's kind, or by
// the constant that tells kinds of objects apart. If that is not one, no detail
// of theirs is of help.
func (f *findings) alternatives(e *jsonschema.ValidationError) {
	meant := slices.DeleteFunc(slices.Clone(e.Causes), func(c *jsonschema.ValidationError) bool {
		return notMeant(c, len(e.InstanceLocation))
	})
	if len(meant) == 1 {
		f.add(meant[0])
		return
	}
	f.leaf(e, "must fit one of the "+count(len(e.Causes), "alternative")+" of the schema, and fits none")
}

func notMeant(e *jsonschema.ValidationError, depth int) bool {
	switch e.ErrorKind.(type) {
	case *kind.Schema, *kind.Group, *kind.AllOf, *kind.Reference:
		return slices.ContainsFunc(e.Causes, func(c *jsonschema.ValidationError) bool { return notMeant(c, depth) })
	case *kind.Type:
		return len(e.InstanceLocation) == depth
	case *kind.Const:
		return len(e.InstanceLocation) <= depth+1
	}
	return false
}

// ruleOf is the keyword that was not kept, in the form of all rules.
func ruleOf(e *jsonschema.ValidationError) string {
	switch e.ErrorKind.(type) {
	case *kind.Not:
		return "not"
	case *kind.Dependency:
		return "dependencies"
	case *kind.FalseSchema:
		return falseRule(e.SchemaURL)
	case *kind.RefCycle:
		return "ref"
	}
	path := e.ErrorKind.KeywordPath()
	if len(path) == 0 {
		return "schema"
	}
	return snakeCase(path[0])
}

// falseRule is the keyword that forbids what is there, if its place in the schema
// tells it.
func falseRule(location string) string {
	keyword := location[strings.LastIndexByte(location, '/')+1:]
	switch keyword {
	case "unevaluatedProperties", "unevaluatedItems", "items", "additionalItems":
		return snakeCase(keyword)
	}
	return "false_schema"
}

func snakeCase(keyword string) string {
	var b strings.Builder
	for _, r := range keyword {
		if unicode.IsUpper(r) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// maxStep is the length up to which a name stands in a pointer. A pointer ends
// before a longer one, at the object that has it, so that a large request makes
// no large answer.
const maxStep = 100

var pointerEscapes = strings.NewReplacer("~", "~0", "/", "~1")

func pointer(path []string) string {
	var b strings.Builder
	for _, step := range path {
		if len(step) > maxStep {
			break
		}
		b.WriteString("/" + pointerEscapes.Replace(step))
	}
	return b.String()
}

// at is the part of the value that an error is about.
func at(value any, path []string) any {
	for _, step := range path {
		switch v := value.(type) {
		case map[string]any:
			value = v[step]
		case []any:
			if i, err := strconv.Atoi(step); err == nil && i < len(v) {
				value = v[i]
			}
		}
	}
	return value
}

// maxNumber is the length up to which a number is shown: all of 64 bits are.
const maxNumber = 20

// kindOf says of a value what may be said: its kind, and a short number itself.
func kindOf(value any) string {
	switch v := value.(type) {
	case map[string]any:
		return "an object"
	case []any:
		return "an array"
	case string:
		return "a string"
	case bool:
		return "a boolean"
	case json.Number:
		if len(v) <= maxNumber {
			return v.String()
		}
		return "a longer number"
	}
	return "null"
}
