package openapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/handlers"
)

// requests are the documents that clients send: what they must have is in their
// validate tags, which swag reads.
var requests = types(
	api.Submission{}, api.Resolution{},
	api.ExecutionClaim{}, api.ExecutionLease{}, api.ExecutionCompletion{}, api.ExecutionFailure{},
)

// answers are the documents that the gateway sends: they have every member that
// may not be left out.
var answers = types(
	api.Job{}, api.JobList{}, api.AttemptProblem{}, api.Attempt{}, api.AttemptList{}, api.Event{}, api.EventList{},
	api.Execution{}, api.ExecutionList{}, api.ExecutionHeartbeat{},
	api.Executor{}, api.ExecutorList{}, api.Limits{}, api.Running{}, api.Waiting{}, api.Worker{},
	api.Schedule{}, api.ScheduleJob{}, api.ScheduleList{},
	api.BatchResult{}, api.BatchResults{}, api.Problem{}, api.FieldError{}, handlers.Liveness{}, handlers.Readiness{},
)

func types(values ...any) map[string]reflect.Type {
	m := map[string]reflect.Type{}
	for _, v := range values {
		t := reflect.TypeOf(v)
		m[t.Name()] = t
	}
	return m
}

// describe tells in the schemas what only the Go types know: which members are
// always there, which may be null, what their numbers and times are. It refuses
// schemas that do not have the members of their types.
func describe(schemas node) error {
	var problems []error
	for name, schema := range schemas {
		t, isAnswer := answers[name]
		if !isAnswer {
			t = requests[name]
		}
		if t == nil {
			problems = append(problems, fmt.Errorf("openapi: the schema %s is of no type that is known here", name))
			continue
		}
		problems = append(problems, describeOne(schema.(node), t, isAnswer))
	}
	if err := errors.Join(problems...); err != nil {
		return err
	}
	schemas["AnyJSON"] = node{}
	schemas["BatchItem"] = batchItem(schemas["Submission"].(node))
	return nil
}

func describeOne(schema node, t reflect.Type, isAnswer bool) error {
	properties, _ := schema["properties"].(node)
	var required, members []string
	for _, field := range reflect.VisibleFields(t) {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" {
			continue
		}
		members = append(members, name)
		property, found := properties[name].(node)
		if !found {
			return fmt.Errorf("openapi: swag has degraded %s: it lacks the member %s", t, name)
		}
		format(property, field.Type)
		optional := strings.Contains(options, "omitempty")
		if !optional {
			required = append(required, name)
		}
		// An answer has null where there is nothing; of a request null is as good as
		// absent, where that is allowed.
		if field.Type.Kind() == reflect.Pointer && optional != isAnswer {
			properties[name] = nullable(property)
		}
	}
	for name := range properties {
		if !slices.Contains(members, name) {
			return fmt.Errorf("openapi: %s has no member %s", t, name)
		}
	}
	if isAnswer {
		schema["required"] = required
	}
	return nil
}

// format says of numbers, times and JSON what they are.
func format(property node, t reflect.Type) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t == reflect.TypeFor[time.Time]():
		property["format"] = "date-time"
	case t.Kind() == reflect.Int64:
		property["format"] = "int64"
	case t == reflect.TypeFor[json.RawMessage]():
		property["$ref"] = "#/components/schemas/AnyJSON"
	}
}

// nullable is the schema of a member that may be null.
func nullable(property node) node {
	if of, isReference := property["$ref"]; isReference {
		return node{"oneOf": []any{node{"$ref": of}, node{"type": "null"}}}
	}
	property["type"] = []any{property["type"], "null"}
	return property
}

// batchItem is a submission that has its key with it.
func batchItem(submission node) node {
	item, properties := maps.Clone(submission), maps.Clone(submission["properties"].(node))
	properties["key"] = node{
		"type": "string", "minLength": 1, "maxLength": 255, "example": "order-42",
		"description": "The Idempotency-Key of this item, as it would stand in the header.",
	}
	item["properties"] = properties
	item["required"] = []any{"key", "type"}
	return item
}
