package executor_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sekali/sekali/executor"
)

func TestNewHTTP_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	const url = "http://127.0.0.1/x"
	header := func(name, value string) executor.HTTPConfig {
		return executor.HTTPConfig{URL: url, Headers: map[string]string{name: value}}
	}
	tests := map[string]struct {
		cfg  executor.HTTPConfig
		want []string
	}{
		"no url":            {executor.HTTPConfig{}, []string{"http url"}},
		"other scheme":      {executor.HTTPConfig{URL: "ftp://u:canary@h/x"}, []string{"want http://", "xxxxx"}},
		"no host":           {executor.HTTPConfig{URL: "http:///x"}, []string{"want http://"}},
		"broken url":        {executor.HTTPConfig{URL: "http://u:canary@h:port/"}, []string{"http url"}},
		"own header":        {header("idempotency-key", "x"), []string{"idempotency-key", "set by the executor"}},
		"own prefix":        {header("sekali-KEY", "x"), []string{"set by the executor"}},
		"signature header":  {header("webhook-signature", "x"), []string{"set by the executor"}},
		"content type":      {header("content-type", "x"), []string{"set by the executor"}},
		"not a header name": {header("a b", "x"), []string{"not a header name"}},
		"line break":        {header("X-A", "canary\r\nX-B: 1"), []string{"X-A", "printable ASCII"}},
		"secret":            {executor.HTTPConfig{URL: url, Secret: "whsec_canary!"}, []string{"base64"}},
		"empty secret":      {executor.HTTPConfig{URL: url, Secret: "whsec_"}, []string{"nothing follows"}},
		"all at once": {
			executor.HTTPConfig{URL: "x", Headers: map[string]string{"Host": "h", "": "x"}, Secret: "whsec_"},
			[]string{"http url", "Host", `""`, "secret"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := executor.NewHTTP(test.cfg)
			wantProblem(t, err, test.want...)
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("error %q shows a secret", err)
			}
		})
	}
}

func TestHTTP_UserAndPasswordBecomeBasicAuthentication(t *testing.T) {
	t.Parallel()
	s := newSink(t, status(http.StatusOK))
	h := newHTTP(t, executor.HTTPConfig{URL: strings.Replace(s.URL, "://", "://me:pass@", 1)})
	if _, err := h.Execute(t.Context(), claimed("{}")); err != nil {
		t.Fatalf("Execute: %v", err)
	}
	r := http.Request{Header: s.all()[0].header}
	if user, password, _ := r.BasicAuth(); user != "me" || password != "pass" {
		t.Errorf("basic authentication = %q, %q", user, password)
	}
}
