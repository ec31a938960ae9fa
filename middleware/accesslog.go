package middleware

import (
	"encoding/hex"
	"log/slog"
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/internal/telemetry"
)

// probes are asked every few seconds by machines: they would bury the rest.
var probes = []string{"/healthz", "/readyz", "/metrics"}

// fingerprintPrefix bytes tell two requests apart for somebody who reads logs.
const fingerprintPrefix = 4

// mostAttrs is how many attributes a line has at most.
const mostAttrs = 16

// AccessLog writes one line for each answered request. A duplicate, a refused
// request and a client that left are the ordinary life of this gateway and no
// errors (BR-90); an error is what we failed to do.
func AccessLog(log *slog.Logger, keys telemetry.KeyLog) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, report := api.WithReport(r.Context())
			r = r.WithContext(ctx)
			recorded := chimiddleware.NewWrapResponseWriter(w, r.ProtoMajor)
			watch := telemetry.Start()
			finish := func() {
				status := max(recorded.Status(), http.StatusOK)
				attrs := append(make([]slog.Attr, 0, mostAttrs), requestAttrs(r, status)...)
				attrs = append(attrs,
					slog.Int(telemetry.Bytes, recorded.BytesWritten()),
					telemetry.DurationAttr(watch.Elapsed()))
				attrs = appendReport(attrs, report, keys, w.Header())
				log.LogAttrs(ctx, level(r, status, w.Header()), "request answered", attrs...)
			}
			defer finish() // also when http.ErrAbortHandler passes through
			next.ServeHTTP(recorded, r)
		})
	}
}

// elsewhere lists the statuses of errors whose cause is not in this process.
var elsewhere = []int{http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout}

func level(r *http.Request, status int, h http.Header) slog.Level {
	ofUpstream := status >= http.StatusInternalServerError && h.Get("Error-Source") == "handler"
	switch {
	case ofUpstream, slices.Contains(elsewhere, status):
		return slog.LevelWarn
	case status >= http.StatusInternalServerError:
		return slog.LevelError
	case slices.Contains(probes, r.URL.Path):
		return slog.LevelDebug
	}
	return slog.LevelInfo
}

func requestAttrs(r *http.Request, status int) []slog.Attr {
	return []slog.Attr{
		slog.String(telemetry.RequestID, r.Header.Get(requestIDHeader)),
		slog.String(telemetry.Method, r.Method),
		slog.String(telemetry.Route, route(r)),
		slog.Int(telemetry.Status, status),
		slog.String(telemetry.Remote, r.RemoteAddr),
	}
}

// appendReport leaves out what is not known: a line without a key is about a
// request without one.
func appendReport(attrs []slog.Attr, report *api.Report, keys telemetry.KeyLog, header http.Header) []slog.Attr {
	add := func(name, value string) {
		if value != "" {
			attrs = append(attrs, slog.String(name, value))
		}
	}
	req := report.Request
	add(telemetry.Tenant, string(req.Tenant))
	if req.Key != "" {
		attrs = append(attrs, keys.Attr(string(req.Key)))
	}
	if req.Fingerprint.Version != 0 {
		add(telemetry.Fingerprint, hex.EncodeToString(req.Fingerprint.Body[:fingerprintPrefix]))
	}
	add(telemetry.Replayed, header.Get("Idempotent-Replayed"))
	add(telemetry.ExternalJobID, string(report.JobID))
	if report.BusinessKey != "" {
		attrs = append(attrs, keys.BusinessAttr(report.BusinessKey))
	}
	add(telemetry.Code, report.Code)
	add(telemetry.Instance, report.Instance)
	if report.Err != nil {
		add(telemetry.Error, report.Err.Error())
	}
	return attrs
}

// route is the pattern that the request matched, never its path: keys stand in
// paths, and paths are endless.
func route(r *http.Request) string {
	routed := chi.RouteContext(r.Context())
	if routed == nil || routed.RoutePattern() == "" {
		return telemetry.Unmatched
	}
	return routed.RoutePattern()
}
