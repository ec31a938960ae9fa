package telemetry_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sekali/sekali/internal/telemetry"
)

func TestKeyLog(t *testing.T) {
	t.Parallel()
	if attr := (telemetry.KeyLog{}).Attr("order-42"); attr.Key != "idempotency_key" || attr.Value.String() != "order-42" {
		t.Errorf("got %v", attr)
	}
	redacted := telemetry.KeyLog{Redact: true}
	first, again, other := redacted.Attr("order-42").Value.String(), redacted.Attr("order-42").Value.String(), redacted.Attr("order-43").Value.String()
	if strings.Contains(first, "order") || first != again || first == other || len(first) != len("sha256:")+12 {
		t.Errorf("got %s, %s, %s", first, again, other)
	}
	if got := redacted.BusinessAttr(""); got.Value.String() != "" {
		t.Errorf("no key becomes %v", got)
	}
}

// Every name has the prefix, and closed label sets stand at zero at once.
func TestNewMetrics_ClosedSeriesStandAtZero(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := telemetry.NewMetrics(registry, []string{"echo", "report"})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, family := range families {
		if !strings.HasPrefix(family.GetName(), "sekali_") || family.GetHelp() == "" {
			t.Errorf("%s: %q", family.GetName(), family.GetHelp())
		}
		series[family.GetName()] = len(family.GetMetric())
	}
	for name, want := range map[string]int{
		"sekali_submissions_total": 3 * 4, "sekali_attempts_total": 2 * 5, "sekali_jobs_running": 2, "sekali_jobs_claimed_total": 2,
		"sekali_replays_total": 1, "sekali_mismatches_total": 1, "sekali_duplicates_ignored_total": 1, "sekali_keyed_runs_total": 7, "sekali_stale_calls_total": 7,
		"sekali_lock_calls_total": 4 + 4 + 2, "sekali_status_cache_finds_total": 3, "sekali_status_cache_writes_total": 4,
		"sekali_notices_total": 2, "sekali_degraded": 2, "sekali_running_past_lease": 1, "sekali_jobs_rescued_total": 1, "sekali_attempts_abandoned_total": 1,
	} {
		if series[name] != want {
			t.Errorf("%s has %d series, want %d", name, series[name], want)
		}
	}
	if m.TypeLabel("echo") != "echo" || m.TypeLabel("other") != telemetry.UnknownType {
		t.Error("labels of types are not closed")
	}
	if telemetry.MethodLabel("GET") != "GET" || telemetry.MethodLabel("BREW") != telemetry.OtherMethod {
		t.Error("labels of methods are not closed")
	}
}
