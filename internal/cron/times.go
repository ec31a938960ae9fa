package cron

import (
	"time"

	"github.com/netresearch/go-cron"
)

// Times are the times of one expression in one zone. They are whole seconds, and
// the same in every process. Their methods may be called concurrently.
type Times struct {
	// clock finds the next time on a clock that never changes.
	clock *cron.SpecSchedule
	// hourly: the expression holds in every hour of the day.
	hourly   bool
	location *time.Location
	// every is the seconds between two times, counted from 1970 on; 0: clock says.
	every int64
}

// Next is the first time after the given one, in UTC; zero if there is none.
func (t *Times) Next(after time.Time) time.Time {
	if t.every > 0 {
		return time.Unix((after.Unix()/t.every+1)*t.every, 0).UTC()
	}
	after = after.Truncate(time.Second)
	for at := after; ; {
		s := stretchAt(at.In(t.location))
		next := t.within(s, after)
		if next.IsZero() || s.end.IsZero() || next.Before(s.end) {
			return next
		}
		at = s.end // that time is beyond the next change of the clocks
	}
}

// stretch is the time between two changes of a zone's clocks.
type stretch struct {
	start, end time.Time // zero: for ever
	offset     int       // seconds east of UTC
	before     int       // likewise, in the stretch before
}

func stretchAt(at time.Time) stretch {
	start, end := at.ZoneBounds()
	_, offset := at.Zone()
	if !end.IsZero() && !end.After(at) {
		// By the rules of a zone, which hold from 2038 on, package time lets a stretch
		// end with the 365th day of a year.
		end = at.Add(time.Hour)
	}
	s := stretch{start: start, end: end, offset: offset, before: offset}
	if !start.IsZero() {
		_, s.before = start.Add(-time.Second).Zone()
	}
	return s
}

// within is the first time after the given one, as the clocks of the stretch show
// it. The stretch holds those times that its clocks show and the one before did
// not, and, at its start, those that were skipped.
func (t *Times) within(s stretch, after time.Time) time.Time {
	from := shown(after, s.offset)
	if after.Before(s.start) {
		from = shown(s.start, s.offset).Add(-time.Second)
	}
	if !s.start.IsZero() && !t.hourly {
		seen := shown(s.start, s.before).Add(-time.Second) // the last that the clocks showed before
		if after.Before(s.start) || seen.After(from) {
			from = seen
		}
	}
	next := t.clock.Next(from)
	if next.IsZero() {
		return time.Time{}
	}
	next = next.Add(-time.Duration(s.offset) * time.Second)
	if next.Before(s.start) {
		return s.start.UTC() // skipped
	}
	return next
}

// shown is what a clock with the offset shows, written as if it were UTC.
func shown(at time.Time, offset int) time.Time {
	return at.UTC().Add(time.Duration(offset) * time.Second)
}
