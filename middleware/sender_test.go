package middleware_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
)

func TestSender_IsShortAndPlain(t *testing.T) {
	t.Parallel()
	for agent, want := range map[string]string{
		"":                       "",
		"shop/1.2 (linux)":       "shop/1.2 (linux)",
		"evil\x1b[2J\u00e9":      "evil?[2J?",
		strings.Repeat("a", 500): strings.Repeat("a", 80),
	} {
		got := "the handler was not reached"
		through(middleware.Sender, func(_ http.ResponseWriter, r *http.Request) { got = idempotency.SenderOf(r.Context()) },
			post("", http.Header{"User-Agent": {agent}}))
		if got != want {
			t.Errorf("%q: got %q, want %q", agent, got, want)
		}
	}
}
