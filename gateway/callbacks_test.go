package gateway_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/sekali/sekali/gateway"
)

func TestConfig_Callbacks(t *testing.T) {
	t.Parallel()
	const secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	cfg, err := gateway.Load(file(t, `
callbacks: {allow: ["https://shop.example/hooks/", "10.0.0.1:8080"], secret_file: `+file(t, secret)+`, timeout: 5s, backoff: {cap: 10m}}
job_types: {a: {executor: echo, callback_url: "http://u:hush@shop.internal/hooks?token=hush"}}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Callbacks.Secret != secret || cfg.Callbacks.MaxAttempts != 40 || cfg.Callbacks.Backoff.Base == 0 || len(cfg.Callbacks.Allow) != 2 {
		t.Errorf("%+v", cfg.Callbacks)
	}
	text, err := cfg.YAML()
	if err != nil || strings.Contains(string(text), "hush") || strings.Contains(string(text), secret) {
		t.Errorf("%v: a secret shows in\n%s", err, text)
	}
}

func TestConfig_CallbacksNameWhatIsWrong(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`callbacks: {allow: ["*"]}`:                                       `callbacks.allow[0]: "*": takes URL prefixes`,
		`callbacks: {allow: [shop.example, "https://shop.example/../x"]}`: `callbacks.allow[1]`,
		`callbacks: {secret: "whsec_%hush"}`:                              `callbacks.secret: takes whsec_`,
		`callbacks: {max_attempts: 0}`:                                    `callbacks.max_attempts: "0": takes 1 to 1000`,
		`callbacks: {timeout: 48h}`:                                       `callbacks.timeout`,
		`callbacks: {backoff: {base: 2h}}`:                                `callbacks.backoff.base`,
		`job_types: {sekali.callback: {executor: echo}}`:                  `is the name of a built-in type`,
		`job_types: {a: {executor: echo, callback_url: ftp://x}}`:         `job_types.a.callback_url: "ftp://x": takes http://host/path`,
		`callbacks: {allow: [x]}
job_types: {a: {executor: echo, compensate: sekali.callback}}`: `job_types.a.compensate: "sekali.callback": takes the name of a configured job type`,
	} {
		_, err := gateway.Load(file(t, text), nil)
		var wrong *gateway.ConfigError
		if !errors.As(err, &wrong) || len(wrong.Problems) != 1 || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
