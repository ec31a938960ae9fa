package job

import (
	"sort"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// Schedule is recurring work: a job that is submitted again and again.
type Schedule struct {
	Name        string
	Type        Type
	Tenant      idempotency.Tenant
	Payload     []byte // JSON; empty means null
	BusinessKey string
	Priority    *int // nil: the type's
	Cron        string
	Timezone    string
	Missed      MissedPolicy
	Times       Times
}

// Times tells when a schedule is due: in whole seconds, the same in every process.
type Times interface {
	// Next is the first time after the given one; zero if there is none.
	Next(after time.Time) time.Time
}

// MissedPolicy says what becomes of firings for which no gateway was there in time.
type MissedPolicy string

// The missed policies.
const (
	// MissedRunLast makes the last one of them.
	MissedRunLast MissedPolicy = "run_last"
	// MissedSkip makes none of them.
	MissedSkip MissedPolicy = "skip"
	// MissedRunAll makes all of them, the newest MostMissed if there are more.
	MissedRunAll MissedPolicy = "run_all"
)

const (
	// FiringTolerance is how late a firing may come without being missed: a
	// restart, or a database that is away for a moment, misses none.
	FiringTolerance = 5 * time.Second
	// MostMissed bounds how many missed firings are made up for. Somebody who
	// comes back after a month does not want two million jobs at once.
	MostMissed = 1000
	// skippedCounted is up to where skipped firings are counted.
	skippedCounted = 10_000
)

// Definition says what the schedule's times hang on: with another one, it begins
// anew.
func (s Schedule) Definition() string { return s.Cron + " " + s.Timezone }

// Due is what a schedule has to do.
type Due struct {
	Fire []time.Time // oldest first
	// Skipped is how many missed firings before them are not made, and SkippedLast
	// the last of those. SkippedMore: there are even more.
	Skipped     int
	SkippedLast time.Time
	SkippedMore bool
}

// Due tells what is due at now, where everything up to last is settled.
func (s Schedule) Due(last, now time.Time) Due {
	intime := now.Add(-FiringTolerance)
	if intime.Before(last) {
		intime = last.Add(time.Nanosecond)
	}
	missed, skipped := s.missed(last, intime)
	due := Due{Fire: missed}
	if !skipped.IsZero() {
		due.SkippedLast = skipped
		due.Skipped = s.count(last, skipped.Add(time.Nanosecond), skippedCounted+1)
		if due.Skipped > skippedCounted {
			due.Skipped, due.SkippedMore = skippedCounted, true
		}
	}
	for at := s.Times.Next(intime.Add(-time.Nanosecond)); !at.IsZero() && !at.After(now); at = s.Times.Next(at) {
		due.Fire = append(due.Fire, at)
	}
	return due
}

// missed returns the firings after one time and before another that are to be
// made, and the last one that is not.
func (s Schedule) missed(after, before time.Time) (fire []time.Time, skipped time.Time) {
	most := 1
	switch s.Missed {
	case MissedRunAll:
		most = MostMissed
	case MissedSkip:
		most = 0
	case MissedRunLast:
	}
	from := s.newest(after, before, most)
	if from.After(after) {
		skipped = from
	}
	for at := s.Times.Next(from); !at.IsZero() && at.Before(before); at = s.Times.Next(at) {
		fire = append(fire, at)
	}
	return fire, skipped
}

// newest is a time after which there are no more than most firings before the
// given end: the time after itself, or that of the firing that is one too many. It
// looks at few of the firings, however many there are.
func (s Schedule) newest(after, before time.Time, most int) time.Time {
	if s.count(after, before, most+1) <= most {
		return after
	}
	first := after.Truncate(time.Second)
	seconds := int(before.Sub(first)/time.Second) + 1
	found := sort.Search(seconds, func(i int) bool {
		return s.count(first.Add(time.Duration(i)*time.Second), before, most+1) <= most
	})
	return first.Add(time.Duration(found) * time.Second)
}

// count counts the firings between two times, both exclusive, up to most.
func (s Schedule) count(after, before time.Time, most int) int {
	n := 0
	for at := s.Times.Next(after); n < most && !at.IsZero() && at.Before(before); at = s.Times.Next(at) {
		n++
	}
	return n
}
