package handlers_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// BenchmarkSubmit is what POST /jobs costs outside the domain: reading, decoding
// and answering, for a new job and for a replay. Compare versions with benchstat.
func BenchmarkSubmit(b *testing.B) {
	const body = `{"type":"echo","payload":{"order_id":"order-42","total":4200,"note":"`
	whole := body + strings.Repeat("x", 300-len(body)-len(`"}}`)) + `"}}`
	for name, fresh := range map[string]bool{"new": true, "replay": false} {
		b.Run(name, func(b *testing.B) {
			h := serve(domain{submit: func(idempotency.Request, job.Draft) (job.Receipt, error) {
				return receipt(pendingJob(), fresh), nil
			}}, start)
			b.ReportAllocs()
			for b.Loop() {
				r := httptest.NewRequestWithContext(b.Context(), http.MethodPost, "/jobs", strings.NewReader(whole))
				r.Header.Set("Idempotency-Key", "order-42")
				r.Header.Set("Content-Type", "application/json")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != http.StatusAccepted {
					b.Fatalf("status %d: %s", w.Code, w.Body)
				}
			}
		})
	}
}
