package middleware

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"

	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/internal/telemetry"
)

// describing lists headers of the answer that did not come about.
var describing = []string{"Location", "Content-Location", "ETag", "Retry-After", "Preference-Applied", "Job-Status", "Idempotency-Expires"}

// Recover answers a panic with 500 and logs its stack. http.ErrAbortHandler
// goes on, as does any panic once an answer has begun: breaking the connection
// is then the only way to tell the client that the answer is not whole.
func Recover(log *slog.Logger) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			recorded := chimiddleware.NewWrapResponseWriter(w, r.ProtoMajor)
			defer func() {
				value := recover()
				if value == nil {
					return
				}
				err, ok := value.(error)
				if ok && errors.Is(err, http.ErrAbortHandler) {
					panic(value)
				}
				log.ErrorContext(r.Context(), "handler panicked",
					telemetry.RequestID, r.Header.Get(requestIDHeader),
					telemetry.Error, fmt.Sprint(value), telemetry.Stack, string(debug.Stack()))
				if recorded.Status() != 0 {
					panic(http.ErrAbortHandler)
				}
				for _, name := range describing {
					w.Header().Del(name)
				}
				api.WriteError(w, r, fmt.Errorf("middleware: handler panicked: %v", value))
			}()
			next.ServeHTTP(recorded, r)
		})
	}
}
