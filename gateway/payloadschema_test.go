package gateway_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sekali/sekali/gateway"
	"github.com/sekali/sekali/job"
)

// folder holds files by name.
func folder(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func payloadSchema(t *testing.T, text string) func(string) []string {
	t.Helper()
	check, err := gateway.NewPayloadSchema(filepath.Join(folder(t, map[string]string{"s.json": text}), "s.json"))
	if err != nil {
		t.Fatal(err)
	}
	return func(payload string) []string { return found(t, check([]byte(payload))) }
}

// found writes each violation in a line.
func found(t *testing.T, err error) []string {
	t.Helper()
	var refused *job.PayloadError
	if err != nil && !errors.As(err, &refused) {
		t.Fatalf("error %v, want a *job.PayloadError", err)
	}
	var lines []string
	if refused != nil {
		for _, v := range refused.Violations {
			lines = append(lines, fmt.Sprintf("%s %s: %s", v.Pointer, v.Rule, v.Detail))
		}
	}
	return lines
}

func TestPayloadSchema_SaysInPlainWordsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ schema, payload, want string }{
		{`{"type":"object"}`, `null`, ` type: must be an object, not null`},
		{`{"type":["string","null"]}`, `{}`, ` type: must be null or a string, not an object`},
		{`{"type":"integer"}`, `1.5`, ` type: must be an integer, not 1.5`},
		{`{"type":"string"}`, `123456789012345678901`, ` type: must be a string, not a longer number`},
		{`{"type":"number"}`, `"hush"`, ` type: must be a number, not a string`},
		{`{"items":{"type":"boolean"}}`, `[true,[]]`, `/1 type: must be a boolean, not an array`},
		{`{"type":"array"}`, `true`, ` type: must be an array, not a boolean`},
		{`{"required":["a","b"]}`, `{"b":1}`, `/a required: must be given`},
		{`{"minimum":1}`, `0`, ` minimum: must be at least 1, not 0`},
		{`{"maximum":0.05}`, `1e400`, ` maximum: must be at most 0.05, not 1e400`},
		{`{"exclusiveMinimum":1e300}`, `1e300`, ` exclusive_minimum: must be more than 1e+300, not 1e300`},
		{`{"exclusiveMaximum":-2.50}`, `-2.5`, ` exclusive_maximum: must be less than -2.5, not -2.5`},
		{`{"multipleOf":0.01}`, `1.005`, ` multiple_of: must be a multiple of 0.01, not 1.005`},
		{`{"minLength":1}`, `""`, ` min_length: must have at least 1 character, not 0`},
		{`{"maxLength":2}`, `"äöü"`, ` max_length: must have at most 2 characters, not 3`},
		{`{"pattern":"^[A-Z]+$"}`, `"hush"`, ` pattern: must match the pattern ^[A-Z]+$`},
		{`{"format":"date-time"}`, `"hush"`, ` format: must be of the format date-time`},
		{`{"enum":["EUR","USD",null]}`, `"hush"`, ` enum: must be one of "EUR", "USD", null`},
		{`{"enum":["EUR",1]}`, `7`, ` enum: must be one of "EUR", 1, not 7`},
		{`{"enum":[` + strings.Repeat("0,", 20) + `0.5]}`, `7`, ` enum: must be one of the 21 values that the schema lists, not 7`},
		{`{"const":"x"}`, `"hush"`, ` const: must be "x"`},
		{`{"minProperties":1}`, `{}`, ` min_properties: must have at least 1 member, not 0`},
		{`{"maxProperties":1}`, `{"a":1,"b":2}`, ` max_properties: must have at most 1 member, not 2`},
		{`{"additionalProperties":false,"properties":{"a":{}}}`, `{"a":1,"b/~":2}`, `/b~1~0 additional_properties: is no member that the schema knows`},
		{`{"unevaluatedProperties":false}`, `{"b":2}`, `/b unevaluated_properties: must not be given`},
		{`{"prefixItems":[{}],"items":false}`, `[1,2]`, `/1 items: must not be given`},
		{`{"properties":{"a":false}}`, `{"a":1}`, `/a false_schema: must not be given`},
		{`{"dependentRequired":{"a":["b"]}}`, `{"a":1}`, `/b dependent_required: must be given together with a`},
		{`{"minItems":2}`, `[1]`, ` min_items: must have at least 2 items, not 1`},
		{`{"maxItems":0}`, `[1]`, ` max_items: must have at most 0 items, not 1`},
		{`{"uniqueItems":true}`, `[1,2,1.0]`, ` unique_items: must have no equal items: those at 0 and 2 are`},
		{`{"contains":{"type":"string"}}`, `[1]`, ` contains: must have an item that fits what the schema asks for (contains)`},
		{`{"contains":{"type":"string"},"minContains":2}`, `["hush"]`, ` min_contains: must have at least 2 items that fit what the schema asks for (contains), not 1`},
		{`{"contains":{"type":"string"},"maxContains":1}`, `["a","b"]`, ` max_contains: must have at most 1 item that fit what the schema asks for (contains), not 2`},
		{`{"not":{"type":"string"}}`, `"hush"`, ` not: must not fit what the schema excludes (not)`},
		{`{"oneOf":[{"minimum":1},{"maximum":2}]}`, `1.5`, ` one_of: must fit exactly one of the alternatives (oneOf), and fits more`},
		{`{"anyOf":[{"minimum":9},{"multipleOf":4}]}`, `7`, ` any_of: must fit one of the 2 alternatives of the schema, and fits none`},
		{`{"if":{"required":["a"]},"then":{"required":["b"]}}`, `{"a":1}`, `/b required: must be given`},
		{`{"$ref":"#"}`, `7`, ` ref: cannot be checked: its schema refers to itself without end`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","dependencies":{"a":["b"]}}`, `{"a":1}`, `/b dependencies: must be given together with a`},
		{`{"$schema":"http://json-schema.org/draft-07/schema#","items":[{}],"additionalItems":false}`, `[1,2]`, ` additional_items: must not have the last 1 item`},
		{`false`, `1`, ` false_schema: must not be given`},
		{`{}`, `1e1001`, ` number: must have no number of more than 1000 digits, or with an exponent beyond 1000`},
		{`{}`, `[1e-99999999999999999999]`, ` number: must have no number of more than 1000 digits, or with an exponent beyond 1000`},
		{`{}`, strings.Repeat("9", 1001), ` number: must have no number of more than 1000 digits, or with an exponent beyond 1000`},
		{`{}`, `{`, ` json: must be JSON`},
	} {
		got := payloadSchema(t, tt.schema)(tt.payload)
		if len(got) != 1 || got[0] != tt.want {
			t.Errorf("%s with %s\ngot  %q\nwant %q", tt.schema, tt.payload, got, tt.want)
		}
		if strings.Contains(strings.Join(got, ""), "hush") {
			t.Errorf("%s shows the payload: %q", tt.schema, got)
		}
	}
}

func TestPayloadSchema_OfAlternativesItExplainsTheOneThatWasMeant(t *testing.T) {
	t.Parallel()
	nullable := payloadSchema(t, `{"properties":{"a":{"anyOf":[{"$ref":"#/$defs/sku"},{"type":"null"}]}},"$defs":{"sku":{"type":"string","maxLength":2}}}`)
	if got := nullable(`{"a":"long"}`); !slices.Equal(got, []string{"/a max_length: must have at most 2 characters, not 4"}) {
		t.Errorf("%q", got)
	}
	told := payloadSchema(t, `{"oneOf":[
		{"properties":{"by":{"const":"card"},"number":{"type":"string"}},"required":["by","number"]},
		{"properties":{"by":{"const":"bank"},"iban":{"type":"string"}},"required":["by","iban"]}]}`)
	if got := told(`{"by":"bank"}`); !slices.Equal(got, []string{"/iban required: must be given"}) {
		t.Errorf("%q", got)
	}
	if got := told(`{"by":"cash"}`); !slices.Equal(got, []string{" one_of: must fit one of the 2 alternatives of the schema, and fits none"}) {
		t.Errorf("%q", got)
	}
}

func TestPayloadSchema_FindsEverythingInTheSameOrder(t *testing.T) {
	t.Parallel()
	check := payloadSchema(t, `{"type":"object","required":["id"],"additionalProperties":false,"properties":{"id":{},
		"lines":{"type":"array","items":{"allOf":[{"$ref":"#/$defs/line"}]}}},
		"$defs":{"line":{"required":["sku"],"properties":{"sku":{"type":"string"},"n":{"minimum":1,"type":"integer"}}}}}`)
	want := []string{
		"/id required: must be given", "/lines/0/n minimum: must be at least 1, not 0", "/lines/0/sku type: must be a string, not null",
		"/lines/1/n type: must be an integer, not a string", "/lines/1/sku required: must be given", "/x additional_properties: is no member that the schema knows",
		"/y additional_properties: is no member that the schema knows",
	}
	for range 20 {
		if got := check(`{"y":1,"x":1,"lines":[{"sku":null,"n":0},{"n":"1"},{"sku":"","n":1}]}`); !slices.Equal(got, want) {
			t.Fatalf("got  %q\nwant %q", got, want)
		}
	}
}

// In the library's own errors about names the object's place may be another's.
func TestPayloadSchema_NamesOfMembersAreFoundWhereTheyAre(t *testing.T) {
	t.Parallel()
	check := payloadSchema(t, `{"items":{"propertyNames":{"pattern":"^[a-z]+$","maxLength":4}}}`)
	got := check(`[{"a":1},{"B":1,"C":1},{"d":1},{"lengthy":1},{"d":1}]`)
	want := []string{"/1/B", "/1/C", "/3/lengthy"}
	for i := range want {
		want[i] += " property_names: has a name that the schema does not allow"
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestPayloadSchema_NumbersAreComparedExactly(t *testing.T) {
	t.Parallel()
	for schema, payloads := range map[string][2]string{ // one that fits, one that does not
		`{"const":9007199254740993}`:                       {"9007199254740993", "9007199254740992"},
		`{"maximum":18446744073709551615}`:                 {"18446744073709551615", "18446744073709551616"},
		`{"type":"integer"}`:                               {"1e400", "1e-400"},
		`{"minimum":1e400}`:                                {"1e400", "9.99999999999999999999e399"},
		`{"multipleOf":0.1}`:                               {"0.3", "0.30000000000000004"},
		`{"enum":[1.0]}`:                                   {"1", "1.00000000000000000001"},
		`{"uniqueItems":true}`:                             {"[9007199254740993,9007199254740992]", "[1,1.0]"},
		`{"properties":{"a":{"exclusiveMaximum":1}}}`:      {`{"a":0.9999999999999999999999}`, `{"a":1.0}`},
		`{"prefixItems":[{"const":0.1}],"items":false}`:    {"[0.10]", "[0.1,0]"},
		`{"minLength":1,"items":{"type":"integer"}}`:       {"[12345678901234567890123456789]", "[12345678901234567890123456789.5]"},
		`{"type":"number","exclusiveMaximum":-1e-1000}`:    {"-9e-1000", "-1e-1000"},
		`{"anyOf":[{"const":1e3},{"const":"1000"}]}`:       {"1000.0", "1000.0001"},
		`{"not":{"const":100000000000000000000000000000}}`: {"100000000000000000000000000001", "1e29"},
	} {
		check := payloadSchema(t, schema)
		if got := check(payloads[0]); got != nil {
			t.Errorf("%s refuses %s: %q", schema, payloads[0], got)
		}
		if got := check(payloads[1]); len(got) != 1 {
			t.Errorf("%s with %s: %q", schema, payloads[1], got)
		}
	}
}

// A few hundred bytes must not keep a processor busy for hours: each level of
// this payload is gone through twice.
func TestPayloadSchema_EndsWhatTakesTooManySteps(t *testing.T) {
	t.Parallel()
	check := payloadSchema(t, `{"$defs":{"e":{"oneOf":[{"type":"null"},
		{"type":"object","properties":{"op":{"const":"and"},"of":{"$ref":"#/$defs/e"}},"required":["op","of"]},
		{"type":"object","properties":{"op":{"const":"or"},"of":{"$ref":"#/$defs/e"}},"required":["op","of"]}]}},"$ref":"#/$defs/e"}`)
	nested := func(levels int) string {
		return strings.Repeat(`{"op":"or","of":`, levels) + "null" + strings.Repeat("}", levels)
	}
	if got := check(nested(8)); got != nil {
		t.Errorf("8 levels: %q", got)
	}
	for range 2 { // what was ended does not count for the next one
		if got := check(nested(60)); len(got) != 1 || !strings.HasPrefix(got[0], " effort: must be simpler") {
			t.Errorf("60 levels: %q", got)
		}
		if got := check(nested(8)); got != nil {
			t.Errorf("8 levels afterwards: %q", got)
		}
	}
}

func TestPayloadSchema_LargePayloadsOfOrdinarySchemasAreChecked(t *testing.T) {
	t.Parallel()
	check := payloadSchema(t, `{"type":"array","items":{"type":"object","required":["sku"],"additionalProperties":false,
		"properties":{"sku":{"type":"string","minLength":1},"n":{"anyOf":[{"type":"integer"},{"type":"null"}]}}}}`)
	if got := check("[" + strings.Repeat(`{"sku":"AB","n":3},`, 20_000) + `{"sku":"AB"}]`); got != nil {
		t.Errorf("%d violations, at first %q", len(got), got[0])
	}
}

// A long name stands in no pointer: a large request would make a large answer.
func TestPayloadSchema_PointersStayShort(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("n", 101)
	check := payloadSchema(t, `{"additionalProperties":{"additionalProperties":{"type":"string"}}}`)
	if got := check(`{"a":{"` + long + `":1}}`); !slices.Equal(got, []string{"/a type: must be a string, not 1"}) {
		t.Errorf("%q", got)
	}
}

func TestPayloadSchema_RefersToFilesBesideIt(t *testing.T) {
	t.Parallel()
	root := folder(t, map[string]string{
		"a/order v1.json":     `{"properties":{"total":{"$ref":"common/money.json#/$defs/cents"},"by":{"$ref":"by.json"}}}`,
		"a/common/money.json": `{"$defs":{"cents":{"type":"integer","minimum":0}}}`,
		"a/by.json":           `{"enum":["card","bank"]}`,
	})
	check, err := gateway.NewPayloadSchema(filepath.Join(root, "a", "order v1.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Fatal(err)
	}
	want := []string{`/by enum: must be one of "card", "bank", not null`, "/total minimum: must be at least 0, not -1"}
	done := make(chan []string)
	for range 8 { // more at once than were compiled at the start
		go func() { done <- found(t, check([]byte(`{"total":-1,"by":null}`))) }()
	}
	for range 8 {
		if got := <-done; !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}

func TestConfig_ReportsSchemasThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	root := folder(t, map[string]string{
		"secret.json":          `{}`,
		"s/sound.json":         `{"type":"object"}`,
		"s/empty.json":         ``,
		"s/text.json":          `type: object`,
		"s/trailing.json":      `{} {}`,
		"s/twice.json":         `{"type":"string","type":"null"}`,
		"s/invalid.json":       `{"type":"text","properties":{"a":{"minLength":-1}}}`,
		"s/list.json":          `[]`,
		"s/pattern.json":       `{"pattern":"("}`,
		"s/remote.json":        `{"$ref":"https://schemas.example/common.json"}`,
		"s/identified.json":    `{"$id":"https://schemas.example/a.json","$ref":"common.json"}`,
		"s/meta.json":          `{"$schema":"https://schemas.example/draft"}`,
		"s/parent.json":        `{"$ref":"../secret.json"}`,
		"s/root.json":          `{"$ref":"file:///etc/hosts"}`,
		"s/lost.json":          `{"$ref":"lost/in/space.json"}`,
		"s/nowhere.json":       `{"$ref":"#/$defs/nowhere"}`,
		"s/broken-beside.json": `{"$ref":"text.json"}`,
		"s/number.json":        `{"maximum":1e9999}`,
		"s/deep.json":          strings.Repeat(`{"items":`, 300) + "true" + strings.Repeat("}", 300),
	})
	if err := os.Symlink(filepath.Join(root, "secret.json"), filepath.Join(root, "s", "link.json")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "s", "leads-out.json"), []byte(`{"$ref":"link.json"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	wants := map[string]string{
		"missing": "cannot be read", "empty": "is no JSON", "text": "is no JSON", "trailing": "something follows", "twice": "duplicate",
		"invalid": `/properties/a/minLength must be at least 0, not -1; /type must`, "list": "is no JSON Schema", "pattern": "/pattern",
		"remote": "nothing is fetched", "identified": "nothing is fetched", "meta": "nothing is fetched", "parent": "nothing is fetched",
		"root": "nothing is fetched", "lost": "no such file", "nowhere": "nowhere", "broken-beside": "is no JSON", "number": "a number beyond", "deep": "nested deeper than 256",
		"leads-out": "link.json",
	}
	var text strings.Builder
	text.WriteString("listen: nowhere\njob_types:\n  sound: {executor: echo, schema: " + root + "/s/sound.json}\n")
	for name := range wants {
		fmt.Fprintf(&text, "  %s: {executor: echo, schema: %s/s/%s.json}\n", name, root, name)
	}
	_, err := gateway.Load(file(t, text.String()), nil)
	var wrong *gateway.ConfigError
	if !errors.As(err, &wrong) {
		t.Fatalf("error %v", err)
	}
	for _, p := range wrong.Problems {
		name := strings.TrimSuffix(strings.TrimPrefix(p.Path, "job_types."), ".schema")
		want, expected := wants[name]
		if p.Path != "listen" && (!expected || !strings.Contains(p.Want, want) || strings.ContainsAny(p.Want, "\n") || strings.Contains(p.Want, "file:///folder")) {
			t.Errorf("%s, want it to say %q", p, want)
		}
	}
	if len(wrong.Problems) != len(wants)+1 {
		t.Errorf("%d problems, want one for each and that of listen", len(wrong.Problems))
	}
}

func TestConfig_SchemasAreOfTheirTypeAlone(t *testing.T) {
	t.Parallel()
	name := filepath.Join(folder(t, map[string]string{"s.json": `{"type":"string"}`}), "s.json")
	cfg, err := gateway.Load(file(t, "job_types: {a: {executor: echo}, b: {executor: echo}}"), []string{"SEKALI_JOB_TYPES_A_SCHEMA=" + name})
	if err != nil {
		t.Fatal(err)
	}
	work, err := gateway.Work(cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := found(t, work["a"].Settings.CheckPayload([]byte("7"))); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if work["b"].Settings.CheckPayload != nil || work["echo"].Settings.CheckPayload != nil {
		t.Error("types without a schema check payloads")
	}
	if text, err := cfg.YAML(); err != nil || !strings.Contains(string(text), "schema: "+name) {
		t.Errorf("printed as %s, %v", text, err)
	}
}
