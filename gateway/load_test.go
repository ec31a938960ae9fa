package gateway_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/gateway"
)

func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "sekali.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestLoad_EnvironmentWinsOverFileWinsOverDefault(t *testing.T) {
	t.Parallel()
	name := file(t, `
listen: 127.0.0.1:9000
limits: {body: 64KiB}
defaults: {max_attempts: 3, backoff: {base: 2s}}
job_types:
  report: {executor: command, command: {argv: [./report, --daily], env: {SIZE: "200"}}, timeout: 30s, priority: 0}
`)
	cfg, err := gateway.Load(name, []string{
		"SEKALI_LISTEN=127.0.0.1:9001", "SEKALI_DEFAULTS_LEASE=12s", "SEKALI_DISPATCHER_SLOTS=5", "DATABASE_URL=postgres://u:p@db/x",
		"SEKALI_JOB_TYPES_REPORT_TIMEOUT=40s", "SEKALI_JOB_TYPES_REPORT_PRIORITY=-7", "SEKALI_DEFAULTS_HEARTBEAT=4s",
	})
	if err != nil {
		t.Fatal(err)
	}
	report := cfg.JobTypes["report"]
	switch {
	case cfg.Listen != "127.0.0.1:9001", cfg.Limits.Body != 64<<10, cfg.Limits.Result != 1<<20, cfg.DatabaseURL != "postgres://u:p@db/x",
		cfg.Defaults.Lease != 12*time.Second, cfg.Defaults.MaxAttempts != 3, cfg.Defaults.Backoff.Base != 2*time.Second,
		cfg.Defaults.Backoff.Cap != time.Hour, cfg.Dispatcher.Slots != 5,
		report.Timeout != 40*time.Second, report.Priority == nil || *report.Priority != -7, report.Command.Env["SIZE"] != "200":
		t.Errorf("%+v\n%+v", cfg, report)
	}
}

func TestLoad_ReportsEverythingAtOnce(t *testing.T) {
	t.Parallel()
	name := file(t, `
listn: 127.0.0.1:9000
listen: [a]
database_url: mysql://hush@host/db
idempotency: {max_key_length: 300, key_pattern: "("}
limits: {body: lots, wait: 0s}
log: {level: loud, redact_keys: yes please}
dispatcher: {slots: 1.5, poll_interval: 10}
defaults: {lease: 10s, heartbeat: 9s, backoff: {base: 2h}}
job_types:
  "bad name": {executor: echo}
  nothing: {executor: http}
  other: {executor: sql, command: {argv: []}, concurrency: -3, rate: 50 a second, sql: {statement: "select '{{ .payload.x }}'"}}
  gone: {executor: func}
  url: {executor: http, http: {url: "ftp://x", retries: 3}}
`)
	_, err := gateway.Load(name, []string{"SEKALI_DEFUALTS_LEASE=3s", "SEKALI_URL=x", "SEKALI_PORT_80_TCP=x", "SEKALI_DEFAULTS_PRIORITY=101"})
	var wrong *gateway.ConfigError
	if !errors.As(err, &wrong) {
		t.Fatalf("error %v", err)
	}
	found := map[string]string{}
	for _, p := range wrong.Problems {
		found[p.Path] += p.String() + "\n"
	}
	for path, want := range map[string]string{
		"listn": "unknown key", "listen": "one value", "database_url": "sqlite:FILE", "idempotency.max_key_length": "1 to 255",
		"idempotency.key_pattern": "regular expression", "limits.body": "64KiB", "limits.wait": "1s", "log.level": "debug, info, warn, error",
		"log.redact_keys": "true or false", "dispatcher.slots": "whole number", "dispatcher.poll_interval": "30s",
		"defaults.heartbeat": "half", "defaults.backoff.base": "1h",
		"job_types.bad name": "letters, digits", "job_types.nothing.http": "missing", "job_types.other.command": "executor: command",
		"job_types.other.concurrency": "1 to 100000", "job_types.other.rate": "50/s, 600/m or 1000/h", "job_types.gone.executor": "Go function", "job_types.url.http.url": "https://",
		"job_types.url.http.retries": "unknown key", "SEKALI_DEFUALTS_LEASE": "no key", "defaults.priority": "-100 to 100",
	} {
		if !strings.Contains(found[path], want) {
			t.Errorf("%s: %q does not say %q", path, found[path], want)
		}
		delete(found, path)
	}
	for path, text := range found {
		if path != "job_types.other.command.argv" {
			t.Errorf("not expected: %s", text)
		}
	}
	if strings.Contains(err.Error(), "hush") {
		t.Error("the error shows the database URL")
	}
}

func TestLoad_RefusesWhatWouldBeIgnored(t *testing.T) {
	t.Parallel()
	for text, path := range map[string]string{
		"job_types: {a: {executor: echo, max_attempts: 0}}":     "job_types.a.max_attempts",
		"job_types: {a: {executor: echo, lease: 0s}}":           "job_types.a.lease",
		"job_types: {a: {executor: echo, backoff: {cap: 0s}}}":  "job_types.a.backoff.cap",
		"listen: 127.0.0.1:99999":                               "listen",
		"redis_url: redis://127.0.0.1:99999/zz":                 "redis_url",
		"job_types: {a: {executor: echo}, a: {executor: echo}}": "job_types.a",
	} {
		_, err := gateway.Load(file(t, text), nil)
		var wrong *gateway.ConfigError
		if !errors.As(err, &wrong) || len(wrong.Problems) != 1 || wrong.Problems[0].Path != path {
			t.Errorf("%s: %v, want one problem at %s", text, err, path)
		}
	}
	if _, err := gateway.Load(file(t, "defaults: {timeout: 1}"), nil); err == nil || strings.Count(err.Error(), "defaults.timeout") != 1 {
		t.Errorf("a duration without a unit: %v, want it reported once", err)
	}
	if _, err := gateway.Load(file(t, "job_types: {a: {executor: echo, priority: 0}}"), nil); err != nil {
		t.Errorf("priority 0: %v", err)
	}
	for _, executor := range []string{"echo", "remote"} {
		if _, err := gateway.Load(file(t, "job_types: {a: {executor: "+executor+", lease: 3s}}"), nil); err != nil {
			t.Errorf("a short lease without a heartbeat: %v", err)
		}
	}
	if cfg, err := gateway.Load("", []string{"DATABASE_URL_FILE=" + file(t, "postgres://u@db/x")}); err != nil || cfg.DatabaseURL != "postgres://u@db/x" {
		t.Errorf("DATABASE_URL_FILE: %q, %v", cfg.DatabaseURL, err)
	}
	empty := file(t, "\n")
	if _, err := gateway.Load("", []string{"SEKALI_DATABASE_URL_FILE=" + empty}); err == nil {
		t.Error("an empty secret file is no error")
	}
}

func TestLoad_SecretsFromFiles(t *testing.T) {
	t.Parallel()
	secret := file(t, "postgres://u:hush@db/x\n")
	cfg, err := gateway.Load("", []string{"SEKALI_DATABASE_URL_FILE=" + secret})
	if err != nil || cfg.DatabaseURL != "postgres://u:hush@db/x" {
		t.Fatalf("%q, %v", cfg.DatabaseURL, err)
	}
	name := file(t, "database_url_file: "+secret+"\njob_types: {pay: {executor: http, http: {url: http://x/, secret_file: "+file(t, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")+"}}}")
	cfg, err = gateway.Load(name, nil)
	if err != nil || cfg.DatabaseURL != "postgres://u:hush@db/x" || !strings.HasPrefix(cfg.JobTypes["pay"].HTTP.Secret, "whsec_") {
		t.Fatalf("%+v, %v", cfg, err)
	}
	if _, err := gateway.Load("", []string{"SEKALI_DATABASE_URL_FILE=/nowhere/at/all"}); err == nil {
		t.Error("a secret file that is not there is no error")
	}
	if _, err := gateway.Load("", []string{"SEKALI_DATABASE_URL_FILE=" + secret, "SEKALI_DATABASE_URL=sqlite:x"}); err == nil {
		t.Error("a secret given twice is no error")
	}
}

func TestConfig_RefusesPublicAddressesWithoutAuthentication(t *testing.T) {
	t.Parallel()
	for listen, fine := range map[string]bool{"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true, ":8080": false, "0.0.0.0:1": false, "10.0.0.1:1": false} {
		cfg := gateway.Default()
		cfg.Listen = listen
		if err := cfg.Validate(); (err == nil) != fine {
			t.Errorf("%s: %v", listen, err)
		}
		cfg.Auth.AllowPublic = true
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s with allow_public: %v", listen, err)
		}
	}
}

func TestConfig_RedactedHidesSecrets(t *testing.T) {
	t.Parallel()
	cfg := gateway.Default()
	cfg.DatabaseURL = "postgres://u:hush@db/x?password=hush"
	cfg.RedisURL = "redis://:hush@r/0"
	cfg.JobTypes = map[string]gateway.JobType{"a": {
		HTTP: &gateway.HTTP{
			URL: "http://u:hush@h/", ReconcileURL: "http://u:hush@h/?token=hush", Secret: "hush", Headers: map[string]string{"Authorization": "hush"},
		},
		Command: &gateway.Command{Env: map[string]string{"TOKEN": "hush"}},
	}}
	r := cfg.Redacted()
	text := r.DatabaseURL + r.RedisURL + r.JobTypes["a"].HTTP.URL + r.JobTypes["a"].HTTP.ReconcileURL + r.JobTypes["a"].HTTP.Secret +
		r.JobTypes["a"].HTTP.Headers["Authorization"] + r.JobTypes["a"].Command.Env["TOKEN"]
	if strings.Contains(text, "hush") {
		t.Errorf("a secret shows in %s", text)
	}
	if cfg.JobTypes["a"].HTTP.Secret != "hush" || cfg.JobTypes["a"].Command.Env["TOKEN"] != "hush" {
		t.Error("the configuration itself was changed")
	}
}

func TestSize(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]gateway.Size{"0": 0, "512": 512, "512B": 512, "64KiB": 64 << 10, "1MiB": 1 << 20, "2 GiB": 2 << 30} {
		var s gateway.Size
		if err := s.UnmarshalText([]byte(text)); err != nil || s != want {
			t.Errorf("%q: %d, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "-1", "1.5MiB", "1MB", "MiB", "9999999999GiB", "1e3"} {
		var s gateway.Size
		if err := s.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: %d, no error", text, s)
		}
	}
	for want, s := range map[string]gateway.Size{"1MiB": 1 << 20, "1536KiB": 1536 << 10, "513": 513, "0": 0} {
		if got := s.String(); got != want {
			t.Errorf("%d: %q, want %q", s, got, want)
		}
	}
}
