package job_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sekali/sekali/internal/cron"
	"github.com/sekali/sekali/job"
)

// fatal is a test, or one run of a property.
type fatal interface {
	Fatal(args ...any)
}

func schedule(t fatal, expression, zone string, missed job.MissedPolicy) job.Schedule {
	location, err := cron.Location(zone)
	if err != nil {
		t.Fatal(err)
	}
	times, err := cron.Parse(expression, location)
	if err != nil {
		t.Fatal(err)
	}
	return job.Schedule{Name: "nightly", Type: "report", Tenant: "acme", Cron: expression, Timezone: zone, Missed: missed, Times: times}
}

func instant(t *testing.T, text string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func clocks(times []time.Time) []string {
	list := make([]string, len(times))
	for i, one := range times {
		list[i] = one.Format("15:04:05")
	}
	return list
}

func TestSchedule_MissedFirings(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cron, last, now string
		missed          job.MissedPolicy
		fire            []string
		skipped         int
		until           string
	}{
		"in time":                          {"0 * * * *", "09:00:00", "10:00:00", job.MissedSkip, []string{"10:00:00"}, 0, ""},
		"late by seconds is not missed":    {"0 * * * *", "09:00:00", "10:00:05", job.MissedSkip, []string{"10:00:00"}, 0, ""},
		"nothing is due":                   {"0 * * * *", "10:00:00", "10:59:59.999", job.MissedRunAll, nil, 0, ""},
		"the clock went back":              {"0 * * * *", "10:00:00", "09:30:00", job.MissedRunAll, nil, 0, ""},
		"run_last makes the last":          {"0 * * * *", "03:00:00", "10:30:00", job.MissedRunLast, []string{"10:00:00"}, 6, "09:00:00"},
		"run_last of one":                  {"0 * * * *", "09:00:00", "10:30:00", job.MissedRunLast, []string{"10:00:00"}, 0, ""},
		"run_last and one in time":         {"0 * * * *", "07:00:00", "10:00:01", job.MissedRunLast, []string{"09:00:00", "10:00:00"}, 1, "08:00:00"},
		"skip makes none":                  {"0 * * * *", "07:00:00", "10:30:00", job.MissedSkip, nil, 3, "10:00:00"},
		"skip makes what is in time":       {"0 * * * *", "07:00:00", "10:00:03", job.MissedSkip, []string{"10:00:00"}, 2, "09:00:00"},
		"run_all makes all":                {"0 * * * *", "07:00:00", "10:30:00", job.MissedRunAll, []string{"08:00:00", "09:00:00", "10:00:00"}, 0, ""},
		"seconds, in time and last missed": {"* * * * * *", "10:00:00.25", "10:00:08.500", job.MissedRunLast, []string{"10:00:03", "10:00:04", "10:00:05", "10:00:06", "10:00:07", "10:00:08"}, 2, "10:00:02"},
	} {
		const day = "2026-03-08T"
		due := schedule(t, test.cron, "", test.missed).Due(instant(t, day+test.last+"Z"), instant(t, day+test.now+"Z"))
		until := ""
		if !due.SkippedLast.IsZero() {
			until = due.SkippedLast.Format("15:04:05")
		}
		if !slices.Equal(clocks(due.Fire), test.fire) || due.Skipped != test.skipped || until != test.until || due.SkippedMore {
			t.Errorf("%s: %v, %d skipped until %q (more: %v)", name, clocks(due.Fire), due.Skipped, until, due.SkippedMore)
		}
	}
}

// Whoever comes back after a year gets an answer at once, and bounded work.
func TestSchedule_AYearOfMissedSeconds(t *testing.T) {
	t.Parallel()
	last, now := instant(t, "2025-03-08T00:00:00Z"), instant(t, "2026-03-08T00:00:00.5Z")
	for missed, most := range map[job.MissedPolicy]int{job.MissedRunAll: job.MostMissed, job.MissedRunLast: 1, job.MissedSkip: 0} {
		due := schedule(t, "* * * * * *", "Europe/Berlin", missed).Due(last, now)
		want := most + int(job.FiringTolerance/time.Second)
		if len(due.Fire) != want || !due.SkippedMore || due.Skipped != 10_000 || !due.Fire[len(due.Fire)-1].Equal(now.Truncate(time.Second)) {
			t.Errorf("%s: %d to make, want %d; %d skipped", missed, len(due.Fire), want, due.Skipped)
		}
		if !due.SkippedLast.Equal(due.Fire[0].Add(-time.Second)) {
			t.Errorf("%s: skipped until %v, first made %v", missed, due.SkippedLast, due.Fire[0])
		}
	}
}

// A year of days in zones whose clocks change, with gateways that are away now and
// then for up to a day: no time is made twice, none is passed over but by the policy,
// and with a gateway that is never away each time is made once.
func TestSchedule_AYearOfFirings(t *testing.T) {
	t.Parallel()
	expressions := []string{"30 2 * * *", "*/15 1-3 * * *", "0 0 * * *", "5 * * * *", "0 9 * * MON-FRI", "@every 90m", "0 3 1 * *"}
	zones := []string{"", "Asia/Jakarta", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo"}
	policies := []job.MissedPolicy{job.MissedRunLast, job.MissedSkip, job.MissedRunAll}
	rapid.Check(t, func(t *rapid.T) {
		s := schedule(t, rapid.SampledFrom(expressions).Draw(t, "cron"), rapid.SampledFrom(zones).Draw(t, "zone"), rapid.SampledFrom(policies).Draw(t, "missed"))
		begin := time.Date(rapid.IntRange(2020, 2030).Draw(t, "year"), 1, rapid.IntRange(1, 365).Draw(t, "day"), 0, 0, 0, 0, time.UTC)
		seldom := rapid.IntRange(1, 60).Draw(t, "seldom")
		away := rapid.SliceOfN(rapid.Int64Range(1, 24*3600), 1, 20).Draw(t, "away")
		made, skipped, last, expected := 0, 0, begin, s.Times.Next(begin)
		for now, step := begin, 0; step < 366; step++ {
			late := time.Duration(0)
			if step%seldom == 0 {
				late = time.Duration(away[step/seldom%len(away)]) * time.Second
			}
			now = s.Times.Next(now).Add(late)
			due := s.Due(last, now)
			for range due.Skipped {
				if late <= job.FiringTolerance || s.Missed == job.MissedRunAll {
					t.Fatalf("%v: skipped %v", now, expected)
				}
				last, expected, skipped = expected, s.Times.Next(expected), skipped+1
			}
			for _, fire := range due.Fire {
				if !fire.Equal(expected) {
					t.Fatalf("%v: made %v, want %v", now, fire, expected)
				}
				last, expected, made = expected, s.Times.Next(expected), made+1
			}
			if !expected.After(now) {
				t.Fatalf("%v: neither made nor skipped: %v", now, expected)
			}
		}
		if made == 0 && skipped == 0 {
			t.Fatal("nothing was due")
		}
	})
}

func TestFiringKey(t *testing.T) {
	t.Parallel()
	when := instant(t, "2026-03-08T02:30:00+07:00")
	if key := job.FiringKey("nightly", when); key != "schedule:nightly:2026-03-07T19:30:00Z" {
		t.Errorf("key %s", key)
	}
	longest := job.FiringKey(fmt.Sprintf("%0100d", 1), when)
	if len(longest) > 255 {
		t.Errorf("the key of the longest name has %d characters", len(longest))
	}
}
