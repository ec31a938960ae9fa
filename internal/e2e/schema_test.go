package e2e_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// orderSchema asks for an order with lines.
const orderSchema = `{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "type": "object",
  "required": ["order_id", "lines"],
  "additionalProperties": false,
  "properties": {
    "order_id": {"type": "integer", "minimum": 1, "maximum": 9007199254740993},
    "lines": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/line"}},
    "note": {"type": ["string", "null"], "maxLength": 5}
  },
  "$defs": {"line": {"type": "object", "required": ["sku"], "properties": {"sku": {"type": "string", "pattern": "^[A-Z0-9-]+$"}}}}
}`

// schemaFile writes a schema and returns its name.
func schemaFile(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "schema.json")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func ordersType(file string) string {
	return "job_types: {order: {executor: echo, schema: " + file + "}}"
}

// wrong are pointer and rule of each thing that the problem names.
func wrong(t testing.TB, p map[string]any) []string {
	t.Helper()
	list, _ := p["errors"].([]any)
	lines := make([]string, len(list))
	for i := range list {
		e, _ := list[i].(map[string]any)
		lines[i] = fmt.Sprint(e["pointer"], " ", e["rule"])
		if e["detail"] == "" || e["detail"] == nil {
			t.Errorf("%s has no detail", lines[i])
		}
	}
	return lines
}

func TestContract_Row69_PayloadsAreCheckedAgainstTheSchemaOfTheirType(t *testing.T) {
	file := schemaFile(t, orderSchema)
	onGateway(t, ordersType(file), func(t *testing.T, g *gateway) {
		for i, tt := range []struct {
			payload string
			want    []string
		}{
			{`{"order_id":0,"lines":[{"sku":"A-1"},{"sku":"hush hush"},{}],"note":"hush hush","mode":"hush"}`, []string{
				"/payload/lines/1/sku pattern", "/payload/lines/2/sku required", "/payload/mode additional_properties",
				"/payload/note max_length", "/payload/order_id minimum",
			}},
			{`{"order_id":9007199254740994,"lines":[{"sku":"A"}]}`, []string{"/payload/order_id maximum"}},
			{`{"order_id":1e400,"lines":[{"sku":"A"}]}`, []string{"/payload/order_id maximum"}},
			{`null`, []string{"/payload type"}},
			{`"hush"`, []string{"/payload type"}},
			{``, []string{"/payload type"}},
		} {
			key := fmt.Sprint("order-", i)
			body := `{"type":"order","payload":` + tt.payload + `}`
			if tt.payload == "" {
				body = `{"type":"order"}`
			}
			a := g.submit(key, body)
			p := a.refused(t, http.StatusBadRequest, "validation-failed", false)
			if got := wrong(t, p); !slices.Equal(got, tt.want) {
				t.Errorf("%s: %q, want %q", tt.payload, got, tt.want)
			}
			if strings.Contains(string(a.body), "hush") {
				t.Errorf("the answer shows the payload: %s", a.body)
			}
			// The corrected body with the same key; the bytes stay as they came.
			const sound = `{ "lines":[{"sku":"A-1"}], "order_id" : 9007199254740993 }`
			g.submit(key, `{"type":"order","payload":`+sound+`}`).want(t, http.StatusAccepted, "Idempotent-Replayed: false")
			g.finished(key)
			if result := g.get("/jobs/"+key+"/result").want(t, http.StatusOK); string(result.body) != sound {
				t.Errorf("%s: payload became %s", key, result.body)
			}
		}
		if strings.Contains(g.logged(), "hush") {
			t.Errorf("the log shows the payload:\n%s", g.logged())
		}
		g.submit("free", `{"type":"echo","payload":7}`).want(t, http.StatusAccepted)
	})
}

func TestContract_Row69_OneAnswerListsSomeOfVeryMuchThatIsWrong(t *testing.T) {
	file := schemaFile(t, orderSchema)
	onGateway(t, ordersType(file), func(t *testing.T, g *gateway) {
		lines := strings.TrimSuffix(strings.Repeat("0,", 2000), ",")
		a := g.submit("many", `{"type":"order","payload":{"order_id":1,"lines":[`+lines+`]}}`)
		p := a.refused(t, http.StatusBadRequest, "validation-failed", false)
		if got := wrong(t, p); len(got) != 32 || !strings.Contains(fmt.Sprint(p["detail"]), "2000") {
			t.Errorf("%d errors, %v", len(got), p["detail"])
		}
		g.keyIsFree(t, "many")
	})
}

func TestContract_Row69_Row81_ItemsOfABatchObeyTheSchema(t *testing.T) {
	file := schemaFile(t, orderSchema)
	onGateway(t, ordersType(file), func(t *testing.T, g *gateway) {
		const good = `{"order_id":1,"lines":[{"sku":"A"}]}`
		item := func(key, payload string) string {
			return `{"key":"` + key + `","type":"order","payload":` + payload + `}`
		}
		results := g.batch("[" + strings.Join([]string{
			item("a", good), item("b", `{"order_id":1}`), item("b", good), item("c", `7`), `{"key":"d","type":"order"}`, `{"key":"e","type":"echo"}`,
		}, ",") + "]")
		want := []string{"202", "400 validation-failed", "202", "400 validation-failed", "400 validation-failed", "202"}
		if got := outcomes(results); !slices.Equal(got, want) {
			t.Errorf("got  %q\nwant %q", got, want)
		}
		p, _ := results[1]["problem"].(map[string]any)
		if got := wrong(t, p); !slices.Equal(got, []string{"/payload/lines required"}) {
			t.Errorf("%q", got)
		}
		for _, key := range []string{"c", "d"} {
			g.keyIsFree(t, key)
		}
	})
}

func TestContract_Row70_AKeyThatWasAcceptedUnderAnOlderSchemaIsReplayed(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		file := schemaFile(t, `{"type":"object"}`)
		old := start(t, database, ordersType(file))
		const body = `{"type":"order","payload":{"order":1}}`
		first := old.submit("old", body).want(t, http.StatusAccepted)
		old.submit("waits", `{"type":"order","payload":{"order":2},"delay_seconds":3600}`).want(t, http.StatusAccepted)
		old.signal(syscall.SIGTERM)
		old.wait(20 * time.Second)
		if err := os.WriteFile(file, []byte(orderSchema), 0o600); err != nil {
			t.Fatal(err)
		}

		g := start(t, database, ordersType(file))
		again := g.submit("old", body).want(t, http.StatusAccepted, "Idempotent-Replayed: true")
		if string(again.body) != string(first.body) {
			t.Errorf("replayed as %s, was %s", again.body, first.body)
		}
		g.submit("old", `{"type":"order","payload":{"order":2}}`).problem(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
		g.submit("new", body).invalid(t, "/payload/order_id", "must be given")
		results := g.batch(`[{"key":"old","type":"order","payload":{"order":1}},{"key":"new","type":"order","payload":{"order":1}}]`)
		if got := outcomes(results); !slices.Equal(got, []string{"202 replayed", "400 validation-failed"}) {
			t.Errorf("%q", got)
		}
		g.keyIsFree(t, "new")
		// A job that was accepted can be brought back as it is.
		g.cancel("waits").want(t, http.StatusOK)
		g.retry("waits", "retry-1").want(t, http.StatusAccepted)
		if j := g.finished("waits"); j["status"] != "succeeded" {
			t.Errorf("%v", j)
		}
	})
}

func TestConfig_SchemasThatCannotBeUsedAreReportedAtTheStart(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for name, text := range map[string]string{"sound.json": orderSchema, "bad.json": `{"type":"text"}`, "remote.json": `{"$ref":"https://schemas.example/a.json"}`} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	broken := written(t, `listen: nowhere
job_types:
  sound: {executor: echo, schema: sound.json}
  bad: {executor: echo, schema: bad.json}
  remote: {executor: echo, schema: remote.json}
  missing: {executor: echo, schema: missing.json}
`)
	run := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Dir = folder // relative names count from here
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + folder}
		out, _ := cmd.CombinedOutput()
		return string(out), cmd.ProcessState.ExitCode()
	}
	for _, command := range [][]string{{"serve"}, {"config", "check"}} {
		out, code := run(append(command, "--config", broken)...)
		if code != 2 {
			t.Errorf("%s: exit code %d, want 2", command, code)
		}
		for _, want := range []string{"4 problem(s)", "listen:", "job_types.bad.schema:", "job_types.remote.schema:", "job_types.missing.schema:", "bad.json"} {
			if !strings.Contains(out, want) {
				t.Errorf("%s does not say %q:\n%s", command, want, out)
			}
		}
	}
	if out, code := run("config", "check", "--config", written(t, "job_types: {sound: {executor: echo, schema: sound.json}}")); code != 0 {
		t.Errorf("a sound schema: %d %s", code, out)
	}
}
