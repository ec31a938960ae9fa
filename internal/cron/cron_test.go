package cron_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/cron"
)

// tester is a test, or one run of a property.
type tester interface {
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

func location(t tester, name string) *time.Location {
	l, err := cron.Location(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func parse(t tester, expression, zone string) *cron.Times {
	times, err := cron.Parse(expression, location(t, zone))
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	return times
}

// between lists the times after one and before another, as a zone's clocks show
// them.
func between(t testing.TB, times *cron.Times, zone, after, before string) []string {
	t.Helper()
	var list []string
	for at := times.Next(instant(t, after)); at.Before(instant(t, before)); at = times.Next(at) {
		list = append(list, at.In(location(t, zone)).Format("02 15:04:05 -0700"))
	}
	return list
}

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// What an expression does in the hour that is skipped and in the one that comes
// twice, as docs/schedules.md says it.
func TestNext_WhenClocksChange(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		expression, zone, after, before string
		want                            []string
	}{
		"a time that is skipped comes at the end of the gap": {
			"30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", "2026-03-30T12:00:00Z",
			[]string{"29 03:00:00 +0200", "30 02:30:00 +0200"},
		},
		"several skipped times are one": {
			"*/10 2 * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-30T00:00:00Z", []string{"29 03:00:00 +0200"},
		},
		"a skipped time and the end of the gap are one": {
			"0 2,3 * * *", "America/New_York", "2026-03-08T05:00:00Z", "2026-03-08T20:00:00Z", []string{"08 03:00:00 -0400"},
		},
		"a time that comes twice counts once": {
			"30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", "2026-10-26T12:00:00Z",
			[]string{"25 02:30:00 +0200", "26 02:30:00 +0100"},
		},
		"each time of an hour that comes twice counts once": {
			"0,30 1-2 * * *", "Europe/Berlin", "2026-10-24T22:00:00Z", "2026-10-25T12:00:00Z",
			[]string{"25 01:00:00 +0200", "25 01:30:00 +0200", "25 02:00:00 +0200", "25 02:30:00 +0200"},
		},
		"midnight may be skipped as well": {
			"0 0 * * *", "Africa/Cairo", "2026-04-23T00:00:00Z", "2026-04-25T00:00:00Z",
			[]string{"24 01:00:00 +0300", "25 00:00:00 +0300"},
		},
		"what holds in every hour leaves the gap out": {
			"15 * * * *", "Europe/Berlin", "2026-03-29T00:00:00Z", "2026-03-29T03:00:00Z",
			[]string{"29 01:15:00 +0100", "29 03:15:00 +0200", "29 04:15:00 +0200"},
		},
		"what holds in every hour is due in both equal hours": {
			"0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z", "2026-10-25T02:30:00Z",
			[]string{"25 02:00:00 +0200", "25 02:00:00 +0100", "25 03:00:00 +0100"},
		},
		"a gap of half an hour": {
			"15 2 * * *", "Australia/Lord_Howe", "2026-10-03T00:00:00Z", "2026-10-04T12:00:00Z", []string{"04 02:30:00 +1100"},
		},
		"a day that a zone left out comes at its end": {
			"0 12 * * *", "Pacific/Apia", "2011-12-29T12:00:00Z", "2011-12-31T20:00:00Z",
			[]string{"29 12:00:00 -1000", "31 00:00:00 +1400", "31 12:00:00 +1400"},
		},
	} {
		got := between(t, parse(t, test.expression, test.zone), test.zone, test.after, test.before)
		if !slices.Equal(got, test.want) {
			t.Errorf("%s: %s in %s: %v, want %v", name, test.expression, test.zone, got, test.want)
		}
	}
}

// A schedule of one per second is due each second of real time, whatever the
// clocks show.
func TestNext_EachSecondOnceWhenClocksChange(t *testing.T) {
	t.Parallel()
	for _, expression := range []string{"* * * * * *", "@every 1s"} {
		for zone, change := range map[string]string{"Europe/Berlin": "2026-03-29T01:00:00Z", "America/New_York": "2026-11-01T06:00:00Z"} {
			times, at := parse(t, expression, zone), instant(t, change).Add(-2*time.Hour)
			for range 4 * 3600 {
				next := times.Next(at)
				if next.Sub(at) != time.Second {
					t.Fatalf("%s in %s: after %v comes %v", expression, zone, at, next)
				}
				at = next
			}
		}
	}
}

func TestNext_Expressions(t *testing.T) {
	t.Parallel()
	const after = "2026-02-27T12:34:56Z" // a Friday
	for expression, want := range map[string]string{
		"* * * * *":        "2026-02-27T12:35:00Z",
		"*/20 * * * * *":   "2026-02-27T12:35:00Z",
		"57 34 12 * * *":   "2026-02-27T12:34:57Z",
		"56 34 12 * * *":   "2026-02-28T12:34:56Z",
		"0 9 * * MON-FRI":  "2026-03-02T09:00:00Z",
		"0 9 * * 7":        "2026-03-01T09:00:00Z",
		"0 0 13 * FRI":     "2026-03-06T00:00:00Z", // either of the two
		"0 0 29 2 *":       "2028-02-29T00:00:00Z",
		"0 0 31 */2 *":     "2026-03-31T00:00:00Z",
		"  0  0 1 jan *  ": "2027-01-01T00:00:00Z",
		"@yearly":          "2027-01-01T00:00:00Z",
		"@monthly":         "2026-03-01T00:00:00Z",
		"@weekly":          "2026-03-01T00:00:00Z",
		"@daily":           "2026-02-28T00:00:00Z",
		"@hourly":          "2026-02-27T13:00:00Z",
		"@every 90s":       "2026-02-27T12:36:00Z",
		"@every 24h":       "2026-02-28T00:00:00Z",
	} {
		if got := parse(t, expression, "").Next(instant(t, after)); !got.Equal(instant(t, want)) || got.Location() != time.UTC {
			t.Errorf("%s: %v, want %s", expression, got, want)
		}
	}
	if got := parse(t, "30 2 * * *", "Europe/Berlin").Next(instant(t, "2040-12-31T12:00:00Z")); !got.Equal(instant(t, "2041-01-01T01:30:00Z")) {
		t.Errorf("after the 366th day comes %v", got)
	}
	leap := parse(t, "0 0 29 2 *", "Asia/Jakarta")
	if got := leap.Next(instant(t, "2096-03-01T00:00:00Z")); !got.Equal(instant(t, "2104-02-28T17:00:00Z")) {
		t.Errorf("the leap day after 2096 is %v", got)
	}
	if got := leap.Next(leap.Next(instant(t, after)).Add(-time.Nanosecond)); !got.Equal(instant(t, "2028-02-28T17:00:00Z")) {
		t.Errorf("a nanosecond before its time: %v", got)
	}
}

func TestParse_SaysWhichFieldIsWrong(t *testing.T) {
	t.Parallel()
	for expression, want := range map[string]string{
		"":                       "has 0 fields",
		"* * * *":                "has 4 fields",
		"* * * * * * *":          "has 7 fields",
		"61 * * * *":             `the minute is "61" and takes 0 to 59`,
		"60 * * * * *":           `the second is "60"`,
		"0 24 * * *":             `the hour is "24" and takes 0 to 23`,
		"0 0 0 * *":              `the day of the month is "0" and takes 1 to 31`,
		"0 0 * 13 *":             `the month is "13" and takes 1 to 12`,
		"0 0 * * MOM":            `the day of the week is "MOM"`,
		"0 0 , * *":              `the day of the month is ","`,
		"*/0 * * * *":            `the minute is "*/0"`,
		"5-1 * * * *":            `the minute is "5-1"`,
		"*-5 * * * *":            `the minute is "*-5"`,
		"1,,2 * * * *":           `the minute is "1,,2"`,
		"0 +5 * * *":             `the hour is "+5"`,
		"0 0 ? * *":              `the day of the month is "?"`,
		"0 0 30 2 *":             "a day that never comes",
		"TZ=UTC * * * * *":       `the second is "TZ=UTC"`,
		"CRON_TZ=Asia/Tokyo 0 0": "has 3 fields",
		"@reboot":                "takes @yearly",
		"@every":                 "takes @yearly",
		"@every 0s":              "whole seconds",
		"@every 1500ms":          "whole seconds",
		"@every soon":            "whole seconds",
		"@every 9000h":           "1s to 8760h",
	} {
		_, err := cron.Parse(expression, time.UTC)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", expression, err, want)
		}
	}
}

func TestLocation(t *testing.T) {
	t.Parallel()
	if l := location(t, ""); l != time.UTC {
		t.Errorf("no name is %v", l)
	}
	for _, name := range []string{"Local", "Asia/Nowhere", "../etc/passwd"} {
		if _, err := cron.Location(name); err == nil {
			t.Errorf("%s is taken for a zone", name)
		}
	}
}
