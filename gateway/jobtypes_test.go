package gateway_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/gateway"
	"github.com/sekali/sekali/job"
)

// payment is the job type of the documentation.
const payment = `
job_types:
  payment_capture:
    executor: http
    http:
      url: http://payments.internal/capture
      reconcile_url: http://payments.internal/captures/by-key
    operation_key: "payment_capture:{{ .payload.provider_event_id }}"
    business_key: "{{ .payload.order_id }}"
    on_business_key_conflict: queue
    on_unknown_outcome: reconcile
    compensate: payment_void
    lock: business_key
  payment_void:
    executor: http
    http: {url: http://payments.internal/void}
    on_unknown_outcome: park
    compensate: apology
  apology: {executor: sql, sql: {statement: "select {{ .key }}"}}
`

func TestConfig_AJobTypeTellsItsWholeLife(t *testing.T) {
	t.Parallel()
	cfg, err := gateway.Load(file(t, payment), []string{"SEKALI_JOB_TYPES_APOLOGY_LOCK=key"})
	if err != nil {
		t.Fatal(err)
	}
	work, err := gateway.Work(cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := work["payment_capture"].Settings
	if s.OnConflict != job.ConflictQueue || s.OnUnknown != job.UnknownReconcile || s.Lock != job.LockBusinessKey ||
		s.Compensate != "payment_void" || s.Transactional {
		t.Errorf("payment_capture: %+v", s)
	}
	if _, can := work["payment_capture"].Execute.(executor.Reconciler); !can {
		t.Error("payment_capture cannot reconcile")
	}
	j := job.Job{Payload: []byte(`{"provider_event_id":"evt_1","order_id":42}`)}
	operation, err := s.OperationKey(j)
	business, err2 := s.BusinessKey(j)
	if err := errors.Join(err, err2); err != nil || operation != "payment_capture:evt_1" || business != "42" {
		t.Errorf("keys %q and %q, %v", operation, business, err)
	}
	var part *job.KeyPartError
	if _, err := s.OperationKey(job.Job{Payload: []byte(`{}`)}); !errors.As(err, &part) || part.Key != "operation_key" || part.Path != "provider_event_id" {
		t.Errorf("a payload without the event: %v", err)
	}
	void := work["payment_void"]
	if void.Settings.OnUnknown != job.UnknownPark || void.Settings.Lock != job.LockNone || void.Settings.BusinessKey != nil || void.Settings.OperationKey != nil {
		t.Errorf("payment_void: %+v", void.Settings)
	}
	if _, can := void.Execute.(executor.Reconciler); can {
		t.Error("payment_void can reconcile without a reconcile_url")
	}
	apology := work["apology"].Settings
	if !apology.Transactional || apology.OnUnknown != job.UnknownRetry || apology.OnConflict != job.ConflictReturn || apology.Lock != job.LockKey {
		t.Errorf("apology: %+v", apology)
	}
}

func TestConfig_AReconcileURLIsAskedUnlessSomethingElseIsSaid(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]job.UnknownPolicy{
		"": job.UnknownReconcile, "on_unknown_outcome: retry,": job.UnknownRetry, "on_unknown_outcome: park,": job.UnknownPark,
	} {
		cfg, err := gateway.Load(file(t, "job_types: {a: {executor: http, "+said+" http: {url: http://h/, reconcile_url: http://h/r}}}"), nil)
		if err != nil {
			t.Fatal(err)
		}
		work, err := gateway.Work(cfg)
		if got := work["a"].Settings.OnUnknown; err != nil || got != want {
			t.Errorf("%q: %s, %v, want %s", said, got, err, want)
		}
	}
}

func TestConfig_RefusesContradictionsOfJobTypes(t *testing.T) {
	t.Parallel()
	for text, problems := range map[string]map[string]string{
		`a: {executor: http, http: {url: "http://h/"}, on_unknown_outcome: reconcile}`:                         {"on_unknown_outcome": "needs http.reconcile_url"},
		`a: {executor: command, command: {argv: [x]}, on_unknown_outcome: reconcile}`:                          {"on_unknown_outcome": "nobody can be asked"},
		`a: {executor: sql, sql: {statement: select 1}, on_unknown_outcome: park}`:                             {"on_unknown_outcome": "one transaction"},
		`a: {executor: sql, sql: {statement: select 1}, on_unknown_outcome: reconcile}`:                        {"on_unknown_outcome": "one transaction"},
		`a: {executor: echo, on_unknown_outcome: park}`:                                                        {"on_unknown_outcome": "echo does nothing"},
		`a: {executor: echo, on_unknown_outcome: ask}`:                                                         {"on_unknown_outcome": "retry, reconcile, park"},
		`a: {executor: echo, on_business_key_conflict: replace}`:                                               {"on_business_key_conflict": "return, reject, queue"},
		`a: {executor: remote, lock: key}`:                                                                     {"lock": "must be none with executor: remote"},
		`a: {executor: remote, on_unknown_outcome: reconcile}`:                                                 {"on_unknown_outcome": "take retry or park"},
		`a: {executor: remote, http: {url: "http://h/"}}`:                                                      {"http": "is for executor: http"},
		`a: {executor: echo, lock: tenant}`:                                                                    {"lock": "none, key, business_key"},
		`a: {executor: echo, business_key: "{{ .payload.a"}`:                                                   {"business_key": "no closing }}"},
		`a: {executor: echo, operation_key: "{{ .id }}"}`:                                                      {"operation_key": "no id before"},
		`a: {executor: echo, operation_key: "{{ .payload.a }}{{ .payload.b }}"}`:                               {"operation_key": "begins with a sign"},
		`a: {executor: echo, compensate: b}`:                                                                   {"compensate": "configured job type"},
		`a: {executor: echo, compensate: a}`:                                                                   {"compensate": "a → a"},
		`a: {executor: http, http: {url: "http://h/", reconcile_url: "ftp://u:hush@h/"}}`:                      {"http.reconcile_url": "http://host/path"},
		`a: {executor: http, http: {url: "http://h/", reconcile_url: "http://h/?key=hush"}}`:                   {"": "has key, which the executor adds"},
		`a: {executor: http, http: {url: "ftp://h/"}, on_unknown_outcome: reconcile, lock: x, compensate: no}`: {"http.url": "http://", "on_unknown_outcome": "needs", "lock": "takes", "compensate": "takes"},
	} {
		_, err := gateway.Load(file(t, "job_types: {"+text+"}"), nil)
		var wrong *gateway.ConfigError
		if !errors.As(err, &wrong) || len(wrong.Problems) != len(problems) {
			t.Errorf("%s: %v, want %d problem(s)", text, err, len(problems))
			continue
		}
		for _, p := range wrong.Problems {
			where := strings.TrimPrefix(strings.TrimPrefix(p.Path, "job_types.a"), ".")
			if want, expected := problems[where]; !expected || !strings.Contains(p.Want, want) {
				t.Errorf("%s: %s", text, p)
			}
		}
		if strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: the error shows a secret: %v", text, err)
		}
	}
}

func TestConfig_CompensationsGoInNoCircle(t *testing.T) {
	t.Parallel()
	_, err := gateway.Load(file(t, `
job_types:
  to: {executor: echo, compensate: a}
  a: {executor: echo, compensate: b}
  b: {executor: echo, compensate: c}
  c: {executor: echo, compensate: a}
  d: {executor: echo, compensate: e}
  e: {executor: echo, compensate: echo}
`), nil)
	var wrong *gateway.ConfigError
	if !errors.As(err, &wrong) || len(wrong.Problems) != 3 {
		t.Fatalf("%v, want a problem for each of the circle", err)
	}
	for i, way := range []string{"a → b → c → a", "b → c → a → b", "c → a → b → c"} {
		if p := wrong.Problems[i]; p.Path != "job_types."+way[:1]+".compensate" || !strings.Contains(p.Want, "("+way+")") {
			t.Errorf("%s, want %s", p, way)
		}
	}
}

// reconciling is a Go executor that can be asked.
type reconciling struct{ executor.Func }

func (reconciling) Reconcile(context.Context, job.Claimed) (executor.Reconciliation, error) {
	return executor.Reconciliation{}, nil
}

func TestConfig_GoExecutorsAreJobTypesToo(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context, job.Claimed) (*job.Result, error) { return nil, nil }
	nothingTx := func(context.Context, *sql.Tx, job.Claimed) (*job.Result, error) { return nil, nil }
	cfg := gateway.Default()
	cfg.JobTypes = map[string]gateway.JobType{
		"plain": {Executor: "func", OnUnknownOutcome: "park", BusinessKey: "{{ .key }}", Compensate: "tx"},
		"asked": {Executor: "func", OnUnknownOutcome: "reconcile", Compensate: "bare"},
		"shell": {Executor: "command", Command: &gateway.Command{Argv: []string{"true"}}},
	}
	cfg.Executors = map[string]executor.Executor{
		"plain": executor.Func(nothing), "bare": executor.Func(nothing), "asked": reconciling{nothing},
	}
	cfg.TxExecutors = map[string]executor.TxExecutor{"tx": executor.TxFunc(nothingTx)}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	work, err := gateway.Work(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for name, kind := range map[job.Type]string{"plain": "func", "bare": "func", "tx": "func", "asked": "func", "shell": "command", "echo": "echo"} {
		w := work[name]
		if w.Kind != kind || (w.Execute == nil) == (w.ExecuteTx == nil) || w.Settings.Transactional != (w.ExecuteTx != nil) || w.Settings.Lease == 0 {
			t.Errorf("%s: %+v, want kind %s", name, w, kind)
		}
	}
	if len(work) != 6 {
		t.Errorf("%d types, want 6", len(work))
	}
	if key, err := work["plain"].Settings.BusinessKey(job.Job{Key: "k"}); err != nil || key != "k" {
		t.Errorf("business key %q, %v", key, err)
	}

	for name, wrong := range map[string]gateway.JobType{
		"plain": {Executor: "func", OnUnknownOutcome: "reconcile"},
		"tx":    {Executor: "func", OnUnknownOutcome: "park"},
	} {
		cfg.JobTypes = map[string]gateway.JobType{name: wrong}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "job_types."+name+".on_unknown_outcome") {
			t.Errorf("%s with %s: %v", name, wrong.OnUnknownOutcome, err)
		}
	}
}

// What print shows is a configuration that means the same.
func TestConfig_PrintedJobTypesCanBeRead(t *testing.T) {
	t.Parallel()
	cfg, err := gateway.Load(file(t, payment), nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := cfg.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := gateway.Load(file(t, string(text)), nil)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	capture := again.JobTypes["payment_capture"]
	if capture.OnUnknownOutcome != "reconcile" || capture.Lock != "business_key" || capture.Compensate != "payment_void" ||
		capture.OperationKey != cfg.JobTypes["payment_capture"].OperationKey || again.JobTypes["apology"].OnUnknownOutcome != "retry" {
		t.Errorf("printed as %s", text)
	}
}

func TestExamples_AreConfigurations(t *testing.T) {
	t.Parallel()
	names, err := filepath.Glob("../examples/*/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("%d files, %v", len(names), err)
	}
	for _, name := range names {
		if _, err := gateway.Load(name, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
