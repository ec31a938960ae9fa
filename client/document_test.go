package client_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sekali/sekali/client"
	"github.com/sekali/sekali/client/wire"
)

// The types of this package have the members that the OpenAPI document has, from
// which those of wire are generated.
func TestTypesFollowTheDocument(t *testing.T) {
	t.Parallel()
	for _, pair := range [][2]any{
		{client.Job{}, wire.Job{}},
		{client.AttemptProblem{}, wire.AttemptProblem{}},
		{client.Attempt{}, wire.Attempt{}},
		{client.Event{}, wire.Event{}},
		{client.ExecutorList{}, wire.ExecutorList{}},
		{client.Executor{}, wire.Executor{}},
		{client.Running{}, wire.Running{}},
		{client.Waiting{}, wire.Waiting{}},
		{client.Worker{}, wire.Worker{}},
		{client.Execution{}, wire.Execution{}},
		{client.ExecutionHeartbeat{}, wire.ExecutionHeartbeat{}},
		{client.FieldError{}, wire.FieldError{}},
		{client.BatchResult{}, wire.BatchResult{}},
		{client.Problem{}, wire.Problem{}},
	} {
		ours, theirs := membersOf(pair[0]), membersOf(pair[1])
		if _, ok := pair[0].(client.Problem); ok {
			ours = slices.Sorted(slices.Values(append(ours, "retry_after_ms"))) // read by hand, into RetryAfter
		}
		if !slices.Equal(ours, theirs) {
			t.Errorf("%T has %v,\nthe document %v", pair[0], ours, theirs)
		}
	}
}

func membersOf(document any) []string {
	var members []string
	for field := range reflect.TypeOf(document).Fields() {
		if name, _, _ := strings.Cut(field.Tag.Get("json"), ","); name != "-" && name != "" {
			members = append(members, name)
		}
	}
	return slices.Sorted(slices.Values(members))
}

// Each page of docs/problems has its constant, and the other way round.
func TestFailure_BR88_EachProblemHasItsCode(t *testing.T) {
	t.Parallel()
	pages, err := os.ReadDir("../docs/problems")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, page := range pages {
		if code, ok := strings.CutSuffix(page.Name(), ".md"); ok && code != "README" {
			documented = append(documented, code)
		}
	}
	file, err := parser.ParseFile(token.NewFileSet(), "codes.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var codes []string
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok {
			code, _ := strconv.Unquote(literal.Value)
			codes = append(codes, code)
		}
		return true
	})
	slices.Sort(documented)
	slices.Sort(codes)
	if !slices.Equal(documented, codes) {
		t.Errorf("codes %v,\ndocumented %v", codes, documented)
	}
}
