package executor_test

import (
	"strings"
	"testing"

	"github.com/sekali/sekali/executor"
)

func TestContract_SectionI_SQLParameters(t *testing.T) {
	t.Parallel()
	const payload = `{"s":"it's \"x\"; drop table invoices --\u00e9","max":9223372036854775807,"over":9223372036854775808,"dec":12345678901234567890.10,
		"exp":1e3,"t":true,"f":false,"n":null,"o": {"b": 1.0,"a":[ 1 ]},"l":[[10,20],{"sku":"a"}],"0":"zero","a-b":1}`
	tests := map[string]struct{ path, want string }{
		"string":                   {".payload.s", `"it's \"x\"; drop table invoices --é"`},
		"largest integer":          {".payload.max", "9223372036854775807"},
		"beyond 64 bits":           {".payload.over", `"9223372036854775808"`},
		"decimal":                  {".payload.dec", `"12345678901234567890.10"`},
		"exponent":                 {".payload.exp", `"1e3"`},
		"null":                     {".payload.n", "null"},
		"missing":                  {".payload.x.y[3]", "null"},
		"below a scalar":           {".payload.s.x", "null"},
		"beyond the array":         {".payload.l[2]", "null"},
		"object":                   {".payload.o", `"{\"b\": 1.0,\"a\":[ 1 ]}"`},
		"element of an array":      {".payload.l[0][1]", "20"},
		"element, with a dot":      {".payload.l.0.1", "20"},
		"member of an element":     {".payload.l[1].sku", `"a"`},
		"member that is a number":  {".payload.0", `"zero"`},
		"member with a dash":       {".payload.a-b", "1"},
		"name of an array element": {".payload.l.sku", "null"},
	}
	onEachEngine(t, "create table x (i int)", func(t *testing.T, db engine) {
		for name, test := range tests {
			t.Run(name, func(t *testing.T) {
				cast := "{{ " + test.path + " }}"
				if db.name == "postgres" && !strings.HasPrefix(test.want, `"`) && test.want != "null" {
					cast += "::bigint"
				}
				done, err := db.run(t.Context(), db.executor(t, executor.SQLConfig{Statement: "select " + cast + " as v"}), claimed(payload))
				wantResult(t, done.Result, err, `{"v":`+test.want+`}`, "application/json")
			})
		}
		t.Run("booleans", func(t *testing.T) {
			s := db.executor(t, executor.SQLConfig{Statement: "select 1 as n where {{ .payload.t }} and not {{ .payload.f }}"})
			done, err := db.run(t.Context(), s, claimed(payload))
			wantResult(t, done.Result, err, `{"n":1}`, "application/json")
		})
		t.Run("the whole payload", func(t *testing.T) {
			s := db.executor(t, executor.SQLConfig{Statement: "select {{ .payload }} as v"})
			done, err := db.run(t.Context(), s, claimed(` {"a" : 1.50} `))
			wantResult(t, done.Result, err, `{"v":"{\"a\" : 1.50}"}`, "application/json")
			done, err = db.run(t.Context(), s, claimed(``))
			wantResult(t, done.Result, err, `{"v":null}`, "application/json")
		})
		t.Run("one value in places of two types", func(t *testing.T) {
			s := db.executor(t, executor.SQLConfig{
				Statement: "select cast({{ .payload.l[0][0] }} as text) as t, cast({{ .payload.l[0][0] }} as int) + 1 as i",
			})
			done, err := db.run(t.Context(), s, claimed(payload))
			wantResult(t, done.Result, err, `{"t":"10","i":11}`, "application/json")
		})
	})
}

func TestContract_SectionI_SQLColumnsOfPostgres(t *testing.T) {
	t.Parallel()
	db := openPostgres(t, "create type mood as enum ('fine')")
	for expression, want := range map[string]string{
		"1::smallint":               "1",
		"9223372036854775807":       "9223372036854775807",
		"12345678901234567890.10":   "12345678901234567890.10",
		"'NaN'::numeric":            `"NaN"`,
		"0.1::real":                 "0.1",
		"1e300::float8":             "1e+300",
		"'-Infinity'::float8":       `"-Infinity"`,
		"'NaN'::float8":             `"NaN"`,
		"true":                      "true",
		"null::int":                 "null",
		"'é<'::text":                `"é<"`,
		"'a'::char(3)":              `"a  "`,
		`'{"b": 1.0, "a":2}'::json`: `{"b": 1.0, "a":2}`,
		`'{"b": 1.0}'::jsonb`:       `{"b": 1.0}`,
		`'null'::jsonb`:             "null",
		`'\x00ff'::bytea`:           `"AP8="`,
		`'abc'::bytea`:              `"YWJj"`,
		"'0198f3a0-1234-7abc-8def-0123456789ab'::uuid": `"0198f3a0-1234-7abc-8def-0123456789ab"`,
		"array[1,2]":         `"{1,2}"`,
		"'fine'::mood":       `"fine"`,
		"'fine'::mood::name": `"fine"`,
		"interval '1 day'":   `"1 day"`,
		"timestamptz '2026-03-01 12:00:00.123456+02:00'": `"2026-03-01T10:00:00.123456Z"`,
		"timestamp '2026-03-01 12:00:00'":                `"2026-03-01T12:00:00Z"`,
		"timestamptz 'infinity'":                         `"infinity"`,
		"date '2026-03-01'":                              `"2026-03-01"`,
		"time '12:00:00.5'":                              `"12:00:00.5"`,
		"timetz '12:00:00+02:00'":                        `"12:00:00+02:00"`,
		"pg_sleep(0)":                                    `""`,
	} {
		t.Run(expression, func(t *testing.T) {
			t.Parallel()
			done, err := db.run(t.Context(), db.executor(t, executor.SQLConfig{Statement: "select " + expression + " as v"}), claimed("{}"))
			wantResult(t, done.Result, err, `{"v":`+want+`}`, "application/json")
		})
	}
}

func TestContract_SectionI_SQLColumnsOfSQLite(t *testing.T) {
	t.Parallel()
	db := openSQLite(t, `create table x (i integer, r real, t text, b blob, yes boolean, at timestamp, day date, doc json, bad json, n numeric, u);
		insert into x values (1, 0.1, 'é<', x'00ff', true, '2026-03-01 12:00:00+02:00', '2026-03-01', '{"b": 1.0}', '{', 1.5, 'text')`)
	done, err := db.run(t.Context(), db.executor(t, executor.SQLConfig{
		Statement: "select i, r, t, b, yes, at, day, doc, bad, n, u, x'616263' as e, 1 > 0 as c, 1e999 as inf from x",
	}), claimed("{}"))
	wantResult(t, done.Result, err, `{"i":1,"r":0.1,"t":"é<","b":"AP8=","yes":true,"at":"2026-03-01T10:00:00Z","day":"2026-03-01",`+
		`"doc":{"b": 1.0},"bad":"{","n":1.5,"u":"text","e":"YWJj","c":1,"inf":"Infinity"}`, "application/json")
}
