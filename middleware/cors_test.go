package middleware_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/middleware"
)

func preflightOf(origin, headers string) *http.Request {
	r := post("", header("Origin", origin, "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", headers))
	r.Method = http.MethodOptions
	return r
}

func TestContract_Row63_Failure_BR36_Preflight(t *testing.T) {
	t.Parallel()
	const ours = "https://app.example"
	tests := []struct {
		name, origin, headers string
		allowed               bool
	}{
		{"ours", ours, "content-type,idempotency-key,authorization", true},
		{"every header", ours, "Idempotency-Key, Prefer, If-None-Match, Content-Type, Authorization", true},
		{"foreign origin", "https://evil.example", "content-type,idempotency-key", false},
		{"foreign header", ours, "x-admin", false},
	}
	h := middleware.CORS([]string{ours})(unreachable(t)) // the preflight ends here: no authentication, no key
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := send(h, preflightOf(tt.origin, tt.headers))
			answers(t, w, 204)
			got := w.Header()
			if vary := strings.Join(got.Values("Vary"), ","); !strings.Contains(vary, "Origin") {
				t.Errorf("Vary is %s", vary)
			}
			if !tt.allowed {
				for name := range got {
					if strings.HasPrefix(name, "Access-Control-") {
						t.Errorf("%s is %s", name, got.Get(name))
					}
				}
				return
			}
			answers(t, w, 204, "Access-Control-Allow-Origin", ours, "Access-Control-Allow-Credentials", "")
			for _, name := range []string{"Idempotency-Key", "Prefer", "If-None-Match", "Content-Type", "Authorization"} {
				if !strings.Contains(got.Get("Access-Control-Allow-Headers"), name) {
					t.Errorf("%s is not allowed: %s", name, got.Get("Access-Control-Allow-Headers"))
				}
			}
			if !strings.Contains(got.Get("Access-Control-Allow-Methods"), "POST") {
				t.Errorf("methods are %s", got.Get("Access-Control-Allow-Methods"))
			}
		})
	}
}

func TestFailure_BR37_PagesCanReadTheHeaders(t *testing.T) {
	t.Parallel()
	h := middleware.CORS([]string{"https://app.example"})(protect(newStore(), middleware.Options{}, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*") // an upstream's own
		api.WriteError(w, r, &api.RateLimitedError{Detail: "Slowly."})
	}))
	for _, origin := range []string{"https://app.example", "https://evil.example"} {
		r := keyedAs("k", "{}")
		r.Header.Set("Origin", origin)
		w := send(h, r)
		answers(t, w, 429, "Retry-After", "1")
		if vary := strings.Join(w.Header().Values("Vary"), ","); vary != "Origin,Prefer" {
			t.Errorf("Vary is %s", vary)
		}
		if origin == "https://evil.example" {
			continue
		}
		if got := w.Header().Values("Access-Control-Allow-Origin"); len(got) != 1 || got[0] != origin {
			t.Errorf("Access-Control-Allow-Origin is %q", got)
		}
		for _, name := range []string{"Location", "Retry-After", "Idempotent-Replayed", "Idempotency-Key", "Idempotency-Status", "Idempotency-Expires", "Job-Status", "X-Request-Id", "Etag", "Preference-Applied", "Link"} {
			if !strings.Contains(w.Header().Get("Access-Control-Expose-Headers"), name) {
				t.Errorf("%s cannot be read: %s", name, w.Header().Get("Access-Control-Expose-Headers"))
			}
		}
	}
}

func TestCORS_NotConfigured(t *testing.T) {
	t.Parallel()
	reached := false
	h := middleware.CORS(nil)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	if w := send(h, preflightOf("https://app.example", "")); !reached || len(w.Header()) != 0 {
		t.Errorf("reached %t, headers are %v", reached, w.Header())
	}
}
