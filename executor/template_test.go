package executor_test

import (
	"strconv"
	"strings"
	"testing"

	"github.com/sekali/sekali/executor"
)

func dollar(n int) string   { return "$" + strconv.Itoa(n) }
func question(n int) string { return "?" + strconv.Itoa(n) }

func never(error) bool { return false }

func parse(statement, existing string, placeholder func(int) string) error {
	_, err := executor.NewSQL(executor.SQLConfig{
		Statement: statement, Existing: existing,
		Placeholder: placeholder, IsUniqueViolation: never, IsPermanent: never,
	})
	return err
}

func TestNewSQL_Refuses(t *testing.T) {
	t.Parallel()
	const quotes = "remove the quotes"
	tests := map[string]struct{ statement, want string }{
		"nothing":                   {"", "empty"},
		"spaces":                    {" \n;", "empty"},
		"only a comment":            {"-- nothing", "empty"},
		"a function":                {"select {{ upper .payload.a }}", "no functions"},
		"a pipeline":                {"select {{ .payload.a | upper }}", "no functions"},
		"a function with a text":    {`select {{ index .payload "a" }}`, "no functions"},
		"no dot":                    {"select {{ payload.a }}", "want .key, .tenant, .id or a path"},
		"an unknown root":           {"select {{ .business_key }}", "{{ .business_key }}"},
		"a path below a key":        {"select {{ .key.a }}", "want .key"},
		"an empty step":             {"select {{ .payload..a }}", "want .key"},
		"a bad index":               {"select {{ .payload.a[x] }}", "want .key"},
		"nothing inside":            {"select {{}}", "want .key"},
		"no end":                    {"select {{ .payload.a", "no closing }}"},
		"in a literal":              {"select '{{ .payload.a }}'", quotes},
		"in a literal, no dot":      {"select '{{ payload.a }}'", quotes},
		"in a literal, function":    {"select '{{ upper .payload.a }}'", quotes},
		"in the midst of a literal": {"select 'it''s {{.key}}!'", quotes},
		"in an escaped literal":     {`select E'it\'s {{ .id }}'`, quotes},
		"in a name":                 {`select * from "{{ .payload.table }}"`, quotes},
		"in a dollar literal":       {"select $body$ {{ .key }} $body$", quotes},
		"in a backticked name":      {"select `{{ .key }}`", quotes},
		"an open literal":           {"select 'abc", "no closing '"},
		"an open name":              {`select "abc`, `no closing "`},
		"an open comment":           {"select 1 /* /* */", "no closing */"},
		"an open dollar literal":    {"select $a$ abc $b$", "no closing $a$"},
		"two statements":            {"insert into a values (1); delete from a", "one statement only"},
		"two statements, hidden":    {"insert into a values (1);{{ .key }}", "one statement only"},
		"a parameter of its own":    {"select $1, {{ .key }}", "bound by placeholders"},
		"a commit":                  {"commit", "transaction in which the job ends"},
		"a rollback":                {" /* x */ ROLLBACK to x", "transaction in which the job ends"},
		"a savepoint":               {"savepoint x", "transaction in which the job ends"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wantProblem(t, parse(test.statement, "", dollar), "sql statement", test.want)
		})
	}
	t.Run("a question mark where it is a parameter", func(t *testing.T) {
		t.Parallel()
		wantProblem(t, parse("select ?, {{ .key }}", "", question), "bound by placeholders")
		if err := parse("select {{ .payload }}::jsonb ? 'a'", "", dollar); err != nil {
			t.Errorf("an operator of Postgres: %v", err)
		}
	})
	t.Run("an existing that is no select", func(t *testing.T) {
		t.Parallel()
		for _, existing := range []string{"delete from a returning id", "with x as (select 1) update a set b = 1 returning b"} {
			wantProblem(t, parse("select 1", existing, dollar), "sql existing", "want a select")
		}
	})
	t.Run("both at once", func(t *testing.T) {
		t.Parallel()
		wantProblem(t, parse("select {{", "select {{ .x }}", dollar), "sql statement", "sql existing")
	})
	t.Run("no dialect", func(t *testing.T) {
		t.Parallel()
		_, err := executor.NewSQL(executor.SQLConfig{Statement: "select 1"})
		wantProblem(t, err, "dialect")
	})
}

func TestNewSQL_Accepts(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{
		"insert into a values ({{ .payload.a.b[0][1].c-d_e.0 }}, {{.key}}, {{ .tenant}}, {{ .id }}, {{ .payload }}, {{ .payload.größe }});",
		"select '{{1,2},{3,4}}'::int[], '{{a,b},{c,d}}'::text[] -- {{ anything }} it's fine",
		"select 1 /* it's /* nested */ {{ x }} ; */ ; ; ",
		`select E'a\'b; commit', 'a\', "x;y", $$ it's; $$, $a$ $$ $a$, a$b$c from t`,
		"(select 1) union (select 2)",
		"with x as (select 1) select * from x",
		"{{ .key }}" + strings.Repeat(" ", 1000),
	} {
		if err := parse(statement, "", dollar); err != nil {
			t.Errorf("%s: %v", statement, err)
		}
	}
	for _, existing := range []string{"select 1", "values (1)", "(select 1)", "WITH x AS (SELECT 1) SELECT 1", "/* a */ Select 1"} {
		if err := parse("select 1", existing, dollar); err != nil {
			t.Errorf("existing %s: %v", existing, err)
		}
	}
}
