package gateway_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/gateway"
)

var update = flag.Bool("update", false, "write docs/configuration.md instead of comparing it")

const referenceFile = "../docs/configuration.md"

// The tables of docs/configuration.md are written from Config: the paths and types
// from its fields, the defaults from Default, the meaning from the comments.
// go test ./gateway -run Reference -update writes them.
func TestReference_IsThatOfTheCode(t *testing.T) {
	t.Parallel()
	jobType, rule := gateway.InForce()
	comments := fieldComments(t)
	text, err := os.ReadFile(referenceFile)
	if err != nil {
		t.Fatal(err)
	}
	want := string(text)
	for name, table := range map[string][]string{
		"keys":         rows(t, comments, reflect.ValueOf(gateway.Default()), "", ""),
		"job types":    rows(t, comments, reflect.ValueOf(jobType), "", "job_types.NAME."),
		"schedules":    rows(t, comments, reflect.ValueOf(gateway.ScheduleInForce()), "", "schedules.NAME."),
		"proxy routes": rows(t, comments, reflect.ValueOf(rule), "", "[]"),
	} {
		head := []string{"| key | variable | type | default | meaning |", "|---|---|---|---|---|"}
		want = between(t, want, name, strings.Join(append(head, table...), "\n"))
	}
	if *update {
		if err := os.WriteFile(referenceFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(text) {
		t.Errorf("%s is not that of the code; run: go test ./gateway -run Reference -update", referenceFile)
	}
}

// between puts the table between its two marks.
func between(t *testing.T, text, name, table string) string {
	t.Helper()
	begin := fmt.Sprintf("<!-- begin of the %s: written by go test ./gateway -run Reference -update -->\n", name)
	end := fmt.Sprintf("<!-- end of the %s -->", name)
	before, rest, ok := strings.Cut(text, begin)
	_, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		t.Fatalf("%s has no marks for the %s: %s … %s", referenceFile, name, strings.TrimSpace(begin), end)
	}
	return before + begin + "\n" + table + "\n\n" + end + after
}

// rows writes one row for each key below v. within is the path of job types or
// rules, which the key leaves out and the variable does not.
func rows(t *testing.T, comments map[string]string, v reflect.Value, path, within string) []string {
	t.Helper()
	var list []string
	for i := range v.NumField() {
		f := v.Type().Field(i)
		key := f.Tag.Get("yaml")
		if key == "-" || key == "job_types" || key == "schedules" || key == "proxy" {
			continue
		}
		at, value := key, v.Field(i)
		if path != "" {
			at = path + "." + key
		}
		if nested(value.Type()) {
			if value.Kind() == reflect.Pointer {
				value = reflect.New(value.Type().Elem()).Elem()
			}
			list = append(list, rows(t, comments, value, at, within)...)
			continue
		}
		meaning := comments[v.Type().Name()+"."+f.Name]
		if meaning == "" {
			t.Errorf("%s.%s has no comment that says what %s means", v.Type().Name(), f.Name, at)
		}
		list = append(list, fmt.Sprintf("| `%s` | %s | %s | %s | %s |", at, variableOf(within, at, value.Type()), kindOf(value.Type()), defaultOf(within, value), linked(meaning)))
	}
	return list
}

// nested reports whether keys stand below a field of the type.
func nested(t reflect.Type) bool {
	return t.Kind() == reflect.Struct || t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Struct
}

// variableOf names the variable; lists and maps have none, and nothing in a list
// has one.
func variableOf(within, path string, t reflect.Type) string {
	if within == "[]" || t.Kind() == reflect.Slice || t.Kind() == reflect.Map {
		return ""
	}
	return "`" + gateway.Variable(within+path) + "`"
}

func kindOf(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return "duration"
	case t == reflect.TypeFor[gateway.Size]():
		return "size"
	case t == reflect.TypeFor[gateway.JSON]():
		return "any value"
	case t.Kind() == reflect.Bool:
		return "true, false"
	case t.Kind() == reflect.Int, t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Int:
		return "number"
	case t.Kind() == reflect.Slice:
		return "list"
	case t.Kind() == reflect.Map:
		return "texts by name"
	}
	return "text"
}

var zeros = regexp.MustCompile(`([hm])0[ms](0s)?$`)

// defaultOf is the value that holds when nothing is said. A zero of a job type or
// a rule is none: the meaning says what holds then.
func defaultOf(within string, v reflect.Value) string {
	if v.Kind() == reflect.String && v.Len() == 0 || within != "" && v.Kind() != reflect.Bool && v.IsZero() {
		return ""
	}
	switch value := v.Interface().(type) {
	case time.Duration:
		if value == 0 {
			return "`0`"
		}
		return "`" + zeros.ReplaceAllString(value.String(), "$1") + "`"
	case string, gateway.Size, gateway.JSON, bool, int:
		return fmt.Sprintf("`%v`", value)
	}
	return ""
}

var document = regexp.MustCompile(`docs/([a-z-]+\.md)(#[a-z-]+)?`)

// linked makes links of the documents that a comment names.
func linked(text string) string {
	return document.ReplaceAllStringFunc(strings.ReplaceAll(text, "|", `\|`), func(found string) string {
		name, anchor, _ := strings.Cut(strings.TrimPrefix(found, "docs/"), "#")
		switch {
		case name == "configuration.md":
			return "[below](#" + anchor + ")"
		case anchor != "":
			return "[" + name + "](" + name + "#" + anchor + ")"
		}
		return "[" + name + "](" + name + ")"
	})
}

// fieldComments are the comments of all fields in config.go, by type and field.
func fieldComments(t *testing.T) map[string]string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	comments := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		named, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if fields, ok := named.Type.(*ast.StructType); ok {
			for _, field := range fields.Fields.List {
				for _, name := range field.Names {
					comments[named.Name.Name+"."+name.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
				}
			}
		}
		return true
	})
	return comments
}
