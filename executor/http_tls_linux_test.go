package executor_test

import (
	"encoding/pem"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/sekali/sekali/executor"
)

// trustReceivers makes the certificate of httptest known to this program: on
// Linux Go reads the variable when it first needs the system's certificates.
func trustReceivers() (forget func(), err error) {
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	f, err := os.CreateTemp("", "sekali-test-*.pem")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := pem.Encode(f, &pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}); err != nil {
		return nil, err
	}
	return func() { _ = os.Remove(f.Name()) }, os.Setenv("SSL_CERT_FILE", f.Name())
}

// newTLS serves with the certificate that trustReceivers made a known one. It is
// valid for 127.0.0.1 and not for localhost.
func newTLS(t *testing.T, answer http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(answer)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError) // broken calls are what it is for
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func TestHTTP_TheOutcomeBehindTLS(t *testing.T) {
	t.Parallel()
	tests := map[string]http.HandlerFunc{
		"no answer": func(w http.ResponseWriter, _ *http.Request) { hangUp(w) },
		"half a body": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "10")
			_, _ = io.WriteString(w, "half")
			panic(http.ErrAbortHandler)
		},
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := newHTTP(t, executor.HTTPConfig{URL: newTLS(t, answer).URL}).Execute(t.Context(), claimed("{}"))
			wantFailure(t, err, executor.CodeConnection, false)
			wantUnknown(t, err, true)
		})
	}
}

func TestHTTP_ARequestToAStrangerIsNotSent(t *testing.T) {
	t.Parallel()
	url := strings.Replace(newTLS(t, status(http.StatusOK)).URL, "127.0.0.1", "localhost", 1)
	_, err := newHTTP(t, executor.HTTPConfig{URL: url}).Execute(t.Context(), claimed("{}"))
	wantFailure(t, err, executor.CodeConnection, false)
	wantUnknown(t, err, false)
}

func TestHTTP_EachAttemptBehindTLSKnowsItsOwnCallOnly(t *testing.T) {
	t.Parallel()
	checkOwnCallOnly(t, newTLS)
}
