package cron_test

import (
	"fmt"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var zones = []string{
	"", "Asia/Jakarta", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "America/Santiago", "Africa/Cairo", "Asia/Tehran", "Africa/Casablanca",
	"Europe/Dublin", "Asia/Kathmandu", "America/Havana", "Pacific/Chatham",
}

// A year of times is what the rules say, found by looking at every minute, in
// zones whose clocks change in all sorts of ways.
func TestNext_AYearOfTimes(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		zone := rapid.SampledFrom(zones).Draw(t, "zone")
		minutes := numbers(t, "minutes", 0, 59)
		hours := numbers(t, "hours", 0, 23)
		if rapid.Bool().Draw(t, "every hour") {
			hours = nil
		}
		start := time.Date(rapid.IntRange(2018, 2060).Draw(t, "year"), 1, 1+rapid.IntRange(0, 364).Draw(t, "day"), 0, 0, 0, 0, time.UTC)
		end := start.AddDate(1, 0, 0)
		if hours == nil {
			end = start.AddDate(0, 1, 0) // looking at every minute takes its time
		}
		want := plain(minutes, hours, start, end, zone)
		times := parse(t, fmt.Sprintf("%s %s * * *", list(minutes), list(hours)), zone)
		at := start.Add(-time.Second)
		for i, expected := range want {
			next := times.Next(at)
			if !next.Equal(expected) {
				t.Fatalf("%d: after %v comes %v, want %v", i, at, next, expected)
			}
			at = next
		}
	})
}

func numbers(t *rapid.T, name string, least, most int) []int {
	list := rapid.SliceOfNDistinct(rapid.IntRange(least, most), 1, 3, rapid.ID).Draw(t, name)
	slices.Sort(list)
	return list
}

func list(numbers []int) string {
	if numbers == nil {
		return "*"
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(numbers), " ", ","), "[]")
}

// plain finds the times from start until end by the rules alone: without hours,
// all minutes of real time that show one of the minutes; with hours, for each time
// that the calendar has, the first moment at which the clocks show it or have
// left it out.
func plain(minutes, hours []int, start, end time.Time, zone string) []time.Time {
	l, err := time.LoadLocation(zone)
	if err != nil {
		panic(err)
	}
	var found []time.Time
	if hours == nil {
		for at := start; at.Before(end); at = at.Add(time.Minute) {
			if slices.Contains(minutes, at.In(l).Minute()) {
				found = append(found, at)
			}
		}
		return found
	}
	for day := start.AddDate(0, 0, -2); day.Before(end.AddDate(0, 0, 2)); day = day.AddDate(0, 0, 1) {
		for _, hour := range hours {
			for _, minute := range minutes {
				clock := day.Add(time.Duration(hour)*time.Hour + time.Duration(minute)*time.Minute)
				if at := first(clock, l); !at.Before(start) && at.Before(end) {
					found = append(found, at)
				}
			}
		}
	}
	return slices.Compact(found)
}

// first is the first moment, in whole minutes, at which clocks that never went
// back would show the time, written as UTC, or a later one.
func first(clock time.Time, l *time.Location) time.Time {
	const around = 30 * 60 // minutes: no zone is farther from UTC
	from := clock.Add(-around * time.Minute / 2)
	highest := func(minute int) bool { // a clock that never goes back has reached the time
		at := from.Add(time.Duration(minute) * time.Minute)
		for _, moment := range []time.Time{at, before(at, l)} {
			_, offset := moment.In(l).Zone()
			if !moment.Add(time.Duration(offset) * time.Second).Before(clock) {
				return true
			}
		}
		return false
	}
	return from.Add(time.Duration(sort.Search(around, highest)) * time.Minute)
}

// before is the last minute of the stretch before the one of a moment: the highest
// that clocks have shown which then were put back.
func before(at time.Time, l *time.Location) time.Time {
	start, _ := at.In(l).ZoneBounds()
	if start.IsZero() {
		return at
	}
	return start.Add(-time.Minute)
}
