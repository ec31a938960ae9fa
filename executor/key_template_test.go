package executor_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

func submitted(payload string) job.Job {
	return job.Job{Tenant: "acme", Key: "order-42", Payload: []byte(payload)}
}

func mustKey(t *testing.T, template *executor.KeyTemplate, err error) *executor.KeyTemplate {
	t.Helper()
	if err != nil {
		t.Fatalf("template: %v", err)
	}
	return template
}

func businessKey(t *testing.T, text string) *executor.KeyTemplate {
	t.Helper()
	template, err := executor.NewBusinessKey(text)
	return mustKey(t, template, err)
}

func operationKey(t *testing.T, text string) *executor.KeyTemplate {
	t.Helper()
	template, err := executor.NewOperationKey(text)
	return mustKey(t, template, err)
}

func TestKeyTemplate_Key(t *testing.T) {
	t.Parallel()
	const payload = ` { "id": "evt_1" , "n": 42, "big": 12345678901234567890, "f": 1.0, "e": 1e3, "neg": -5, "yes": true, "no": false,
		"s": " a b ", "p": "50%", "c": "1:2", "lines": [{"sku":"x-1"}, ["deep"]], "größe": "ü", "quoted": "\"\\\u00e9" } `
	for text, want := range map[string]string{
		"{{ .payload.id }}":                              "evt_1",
		"payment_capture:{{.payload.id}}":                "payment_capture:evt_1",
		"{{ .payload.id }}!":                             "evt_1!",
		"{{ .payload.n }}":                               "42",
		"{{ .payload.big }}":                             "12345678901234567890",
		"{{ .payload.f }}":                               "1.0",
		"{{ .payload.e }}":                               "1e3",
		"{{ .payload.yes }}/{{ .payload.no }}":           "true/false",
		"{{ .payload.s }}":                               " a b ",
		"{{ .payload.p }}":                               "50%",
		"{{ .payload.c }}":                               "1:2",
		"{{ .payload.lines[0].sku }}":                    "x-1",
		"{{ .payload.lines[1][0] }}":                     "deep",
		"{{ .payload.größe }}":                           "ü",
		"{{ .payload.quoted }}":                          `"\é`,
		"{{ .tenant }}/{{ .key }}":                       "acme/order-42",
		"all of them":                                    "all of them",
		"a { b } c":                                      "a { b } c",
		"{{ .payload.c }}:{{ .payload.p }}":              "1%3A2:50%25",
		"{{ .payload.id }}-{{ .payload.neg }}":           "evt_1-%2D5",
		"{{.payload.id}}/{{.payload.c}} {{.payload.s}}.": "evt_1/1:2 %20a%20b%20.",
	} {
		if got, err := operationKey(t, text).Key(submitted(payload)); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", text, got, err, want)
		}
	}
}

// Jobs of different values must never be taken for one another.
func TestKeyTemplate_DifferentValuesNeverMakeTheSameKey(t *testing.T) {
	t.Parallel()
	letters := []string{"a", "3", "A", ":", "%", "·"}
	for _, text := range []string{
		"a:{{ .payload.x }}:{{ .payload.y }}",
		"{{ .payload.x }}::{{ .payload.y }}",
		"{{ .payload.x }}:a{{ .payload.y }}3",
		"{{ .payload.x }}·{{ .payload.y }}",
	} {
		template := operationKey(t, text)
		made := map[string][2]string{}
		for _, x := range combinations(letters, 3) {
			for _, y := range combinations(letters, 2) {
				payload, err := json.Marshal(map[string]string{"x": x, "y": y})
				if err != nil {
					t.Fatal(err)
				}
				key, err := template.Key(submitted(string(payload)))
				if err != nil {
					t.Fatalf("%s with %q and %q: %v", text, x, y, err)
				}
				if other, taken := made[key]; taken {
					t.Fatalf("%s: %q for %q and for %q", text, key, other, [2]string{x, y})
				}
				made[key] = [2]string{x, y}
			}
		}
	}
}

// combinations are all texts of one to most of the letters.
func combinations(letters []string, most int) []string {
	all, last := []string(nil), []string{""}
	for range most {
		var longer []string
		for _, text := range last {
			for _, letter := range letters {
				longer = append(longer, text+letter)
			}
		}
		all, last = append(all, longer...), longer
	}
	return all
}

func TestKeyTemplate_WhatMakesNoKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 256)
	for name, test := range map[string]struct {
		template           *executor.KeyTemplate
		payload            string
		key, place, reason string
	}{
		"missing":           {businessKey(t, "{{ .payload.order_id }}"), `{}`, "business_key", "order_id", "is missing"},
		"missing below":     {operationKey(t, "{{ .payload.a.b }}"), `{"a":"x"}`, "operation_key", "a.b", "is missing"},
		"beyond the end":    {operationKey(t, "{{ .payload.lines[2].sku }}"), `{"lines":[1]}`, "operation_key", "lines[2].sku", "is missing"},
		"null":              {businessKey(t, "{{ .payload.a }}"), `{"a":null}`, "business_key", "a", "is null"},
		"an object":         {businessKey(t, "{{ .payload.a }}"), `{"a":{}}`, "business_key", "a", "must be a string"},
		"an array":          {businessKey(t, "{{ .payload[0] }}"), `[[1]]`, "business_key", "[0]", "must be a string"},
		"no payload":        {businessKey(t, "{{ .payload }}"), `null`, "business_key", "", "is null"},
		"empty":             {operationKey(t, "payment:{{ .payload.a }}"), `{"a":""}`, "operation_key", "a", "is empty"},
		"no ASCII":          {businessKey(t, "{{ .payload.a }}"), `{"a":"é"}`, "business_key", "a", "printable ASCII"},
		"a tab":             {businessKey(t, "{{ .payload.a }}"), `{"a":"\t"}`, "business_key", "a", "printable ASCII"},
		"a NUL":             {operationKey(t, "{{ .payload.a }}"), `{"a":"x\u0000"}`, "operation_key", "a", "control characters"},
		"half a surrogate":  {operationKey(t, "{{ .payload.a }}"), `{"a":"\ud800"}`, "operation_key", "a", "control characters"},
		"too long":          {businessKey(t, "{{ .payload.a }}"), `{"a":"` + long + `"}`, "business_key", "a", "longer than 255"},
		"too long together": {operationKey(t, "{{ .payload.a }}:{{ .payload.b }}"), `{"a":"x","b":"` + long + long + `"}`, "operation_key", "b", "longer than 512"},
		"long when escaped": {businessKey(t, "{{ .payload.a }}:{{ .payload.b }}"), `{"a":"x","b":"` + strings.Repeat(":", 90) + `"}`, "business_key", "b", "longer than 255"},
		"the second one":    {operationKey(t, "{{ .payload.a }}:{{ .payload.b }}"), `{"a":"x"}`, "operation_key", "b", "is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key, err := test.template.Key(submitted(test.payload))
			var part *job.KeyPartError
			if !errors.As(err, &part) {
				t.Fatalf("key %q, error %v, want a *job.KeyPartError", key, err)
			}
			if part.Key != test.key || part.Path != test.place || !strings.Contains(part.Reason, test.reason) {
				t.Errorf("error = %+v, want %s, %s, %s", part, test.key, test.place, test.reason)
			}
		})
	}
	for template, most := range map[*executor.KeyTemplate]int{businessKey(t, "{{ .payload.a }}"): 255, operationKey(t, "{{ .payload.a }}"): 512} {
		payload := `{"a":"` + strings.Repeat("x", most) + `"}`
		if key, err := template.Key(submitted(payload)); err != nil || len(key) != most {
			t.Errorf("%d bytes: %d, %v", most, len(key), err)
		}
	}
}

func TestNewKeyTemplate_Refuses(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"nothing":                 {"", "it is empty"},
		"a function":              {"{{ upper .payload.a }}", "no functions"},
		"no dot":                  {"{{ payload.a }}", "want .key"},
		"an unknown root":         {"{{ .type }}", "want .key"},
		"the id":                  {"a:{{ .id }}", "no id before"},
		"no end":                  {"a:{{ .payload.a", "no closing }}"},
		"no beginning":            {"a }} b", "closes nothing"},
		"no end, later beginning": {"{{ .key }} }} {{ .key }}", "closes nothing"},
		"three braces":            {"{{{ .payload.a }}}", "want .key"},
		"side by side":            {"{{ .payload.a }}{{ .payload.b }}", "begins with a sign"},
		"parted by a letter":      {"{{ .payload.a }}x:{{ .payload.b }}", "begins with a sign"},
		"parted by a digit":       {"{{ .payload.a }}3{{ .payload.b }}", "begins with a sign"},
		"parted by a percent":     {"{{ .payload.a }}%{{ .payload.b }}", "begins with a sign"},
		"a line break":            {"a\n{{ .key }}", "want"},
		"a line break at the end": {"{{ .key }}\n", "want"},
		"no UTF-8":                {"\xff{{ .key }}", "want"},
		"too long":                {strings.Repeat("x", 513), "512 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := executor.NewOperationKey(test.text)
			wantProblem(t, err, "executor: operation_key: ", test.want)
		})
	}
	_, err := executor.NewBusinessKey("ü:{{ .key }}")
	wantProblem(t, err, "executor: business_key: ", "printable ASCII")
	_, err = executor.NewBusinessKey(strings.Repeat("x", 256) + "{{ .key }}")
	wantProblem(t, err, "255 bytes")
}
