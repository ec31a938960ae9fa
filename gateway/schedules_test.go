package gateway_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sekali/sekali/gateway"
)

func TestLoad_Schedules(t *testing.T) {
	t.Parallel()
	cfg, err := gateway.Load(file(t, `
schedules:
  nightly:
    type: echo
    cron: 0 2 * * *
    timezone: Asia/Jakarta
    missed: skip
    tenant: acme
    business_key: report
    priority: 0
    payload:
      z: 1.50
      a: [0x10, 1_000, .5, .inf, true, ~, 2026-01-01, "2", yes, 123456789012345678901234567890]
  plain: {type: echo, cron: "@hourly"}
`), []string{`SEKALI_SCHEDULES_PLAIN_PAYLOAD={"from": "the environment"}`})
	if err != nil {
		t.Fatal(err)
	}
	nightly := cfg.Schedules["nightly"]
	if nightly.Timezone != "Asia/Jakarta" || nightly.Missed != "skip" || nightly.Tenant != "acme" || nightly.BusinessKey != "report" || *nightly.Priority != 0 {
		t.Errorf("schedule %+v", nightly)
	}
	const payload = `{"z":1.50,"a":[16,1000,0.5,".inf",true,null,"2026-01-01","2","yes",123456789012345678901234567890]}`
	if nightly.Payload != payload {
		t.Errorf("payload %s\nwant    %s", nightly.Payload, payload)
	}
	if cfg.Schedules["plain"].Payload != `{"from": "the environment"}` {
		t.Errorf("payload %s", cfg.Schedules["plain"].Payload)
	}
	printed, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := gateway.Load(file(t, string(printed)), nil)
	if err != nil || again.Schedules["nightly"].Payload != payload || again.Schedules["plain"].Missed != "run_last" || again.Schedules["plain"].Timezone != "UTC" {
		t.Errorf("%v\n%s", err, printed)
	}
}

func TestLoad_SchedulesThatCannotBe(t *testing.T) {
	t.Parallel()
	const head = "job_types: {paid: {executor: echo, business_key: '{{ .payload.order }}'}}\n"
	for text, want := range map[string]string{
		`schedules: {a: {type: echo, cron: "0 2 * *"}}`:                                               `schedules.a.cron: "0 2 * *": has 4 fields`,
		`schedules: {a: {type: echo, cron: "0 25 * * *"}}`:                                            `schedules.a.cron: "0 25 * * *": the hour is "25" and takes 0 to 23`,
		`schedules: {a: {type: echo}}`:                                                                `schedules.a.cron: has 0 fields`,
		`schedules: {a: {type: nothing, cron: "@daily"}}`:                                             `schedules.a.type: "nothing": takes the name of a configured job type`,
		`schedules: {a: {type: echo, cron: "@daily", timezone: Asia/Nowhere}}`:                        `schedules.a.timezone: "Asia/Nowhere": takes the IANA name`,
		`schedules: {a: {type: echo, cron: "@daily", missed: twice}}`:                                 `schedules.a.missed: "twice": takes one of run_last, skip, run_all`,
		`schedules: {"a b": {type: echo, cron: "@daily"}}`:                                            `schedules.a b: "a b": takes letters, digits`,
		`schedules: {a: {type: echo, cron: "@daily", tenant: "a b"}}`:                                 `schedules.a.tenant: "a b": takes 1 to 100`,
		`schedules: {a: {type: echo, cron: "@daily", priority: 101}}`:                                 `schedules.a.priority: "101": takes -100 to 100`,
		`schedules: {a: {type: echo, cron: "@daily", business_key: "ö"}}`:                             `schedules.a.business_key`,
		`schedules: {a: {type: echo, cron: "@daily", payload: {<<: {x: 1}}}}`:                         `schedules.a.payload: takes plain names`,
		`schedules: {a: {type: echo, cron: "@daily", payload: {x: 1, x: 2}}}`:                         `schedules.a.payload: has the member "x" twice`,
		`schedules: {a: {type: echo, crno: "@daily", cron: "@daily"}}`:                                `schedules.a.crno: unknown key "crno"; known here: business_key, cron`,
		head + `schedules: {a: {type: paid, cron: "@daily", payload: {}}}`:                            `schedules.a.payload: lacks what the business_key of paid is made of: order`,
		`schedules: {a: {type: echo, cron: "@daily", payload: "` + strings.Repeat("x", 1<<20) + `"}}`: `takes at most limits.body`,
	} {
		_, err := gateway.Load(file(t, text), nil)
		var wrong *gateway.ConfigError
		if !errors.As(err, &wrong) || len(wrong.Problems) != 1 || !strings.Contains(wrong.Problems[0].String(), want) {
			t.Errorf("%.100s: %.300v, want one problem: %s", text, err, want)
		}
	}
	if _, err := gateway.Load(file(t, head+`schedules: {a: {type: paid, cron: "@daily", business_key: b}}`), nil); err != nil {
		t.Errorf("a schedule that names the business key itself: %v", err)
	}
	_, err := gateway.Load(file(t, `schedules: {a: {type: echo, cron: "@daily"}}`), []string{"SEKALI_SCHEDULES_A_PAYLOAD={"})
	if err == nil || !strings.Contains(err.Error(), "written as JSON") {
		t.Errorf("a payload in the environment that is no JSON: %v", err)
	}
}
