package middleware

import (
	"net/http"
	"strconv"

	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/internal/telemetry"
)

// Metrics counts each answered request. What became of a keyed request is read
// from the answer itself, so that no handler has to count, and every kind of
// keyed route is counted alike.
func Metrics(m *telemetry.Metrics) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, report := api.WithReport(r.Context())
			if ctx != r.Context() {
				r = r.WithContext(ctx)
			}
			// AccessLog outside has one already.
			recorded, ok := w.(chimiddleware.WrapResponseWriter)
			if !ok {
				recorded = chimiddleware.NewWrapResponseWriter(w, r.ProtoMajor)
			}
			watch := telemetry.Start()
			defer func() {
				pattern := route(r)
				status := strconv.Itoa(max(recorded.Status(), http.StatusOK))
				m.HTTPRequests.WithLabelValues(telemetry.MethodLabel(r.Method), pattern, status).Inc()
				m.HTTPSeconds.WithLabelValues(pattern).Observe(watch.Elapsed().Seconds())
				count(m, report, w.Header())
			}()
			next.ServeHTTP(recorded, r)
		})
	}
}

func count(m *telemetry.Metrics, report *api.Report, h http.Header) {
	if report.Items == nil {
		countItem(m, api.ItemReport{
			Type: report.Type, Code: report.Code, Replayed: h.Get("Idempotent-Replayed") == "true",
			Duplicate: report.Type != "" && h.Get("Idempotency-Status") == telemetry.SubmitDuplicateIgnored,
		})
	}
	for _, item := range report.Items {
		countItem(m, item)
	}
}

func countItem(m *telemetry.Metrics, item api.ItemReport) {
	result := telemetry.SubmitAccepted
	switch {
	case item.Code != "":
		result = telemetry.SubmitRefused
	case item.Replayed:
		result = telemetry.SubmitReplayed
		m.Replays.Inc()
	case item.Duplicate:
		result = telemetry.SubmitDuplicateIgnored
		m.DuplicatesIgnored.Inc()
	}
	if item.Code == api.CodeKeyReused {
		m.Mismatches.Inc()
	}
	if item.Type != "" {
		m.Submissions.WithLabelValues(m.TypeLabel(string(item.Type)), result).Inc()
	}
}
