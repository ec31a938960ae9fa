package e2e_test

import (
	"bytes"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sekali/sekali/docs/openapi"
)

// People copy examples, and generators make mocks of them.
func TestContract_Document_ExamplesFitTheirSchemas(t *testing.T) {
	t.Parallel()
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(openapi.JSON()))
	if err != nil {
		t.Fatal(err)
	}
	r, err := newReader(parsed)
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	walk(parsed, func(o object) {
		schema, of := o["schema"], o
		if schema == nil && o["type"] != nil {
			schema = o // an example of the schema itself
		}
		if schema == nil {
			return
		}
		for _, example := range r.examples(of) {
			checked++
			if err := r.schema(schema).Validate(example); err != nil {
				t.Errorf("%v does not fit %v: %v", example, schema, err)
			}
		}
	})
	if checked < 100 {
		t.Errorf("%d examples were found", checked)
	}
}

// examples are those that stand beside a schema, or in it.
func (r *reader) examples(o object) []any {
	var found []any
	if example, one := o["example"]; one {
		found = append(found, example)
	}
	named, _ := o["examples"].(object)
	for _, example := range named {
		found = append(found, r.resolve(example)["value"])
	}
	return found
}

// walk visits all objects below v.
func walk(v any, visit func(object)) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			walk(one, visit)
		}
	case object:
		visit(v)
		for _, one := range v {
			walk(one, visit)
		}
	}
}
