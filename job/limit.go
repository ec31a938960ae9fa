package job

import (
	"strconv"
	"time"
)

// Limit bounds what all processes together do with the jobs of one type. The zero
// Limit bounds nothing.
type Limit struct {
	// Concurrency is how many jobs may run at once; 0: any number. A job whose lease
	// has run out counts until it is rescued.
	Concurrency int
	// Rate is how many attempts may start in a time; the zero Rate: any number.
	Rate Rate
}

// None reports that nothing is bounded.
func (l Limit) None() bool { return l.Concurrency <= 0 && l.Rate.None() }

// Rate is how many attempts may start in any stretch of time as long as Per,
// wherever it begins.
type Rate struct {
	Count int
	Per   time.Duration
}

// None reports that nothing is bounded.
func (r Rate) None() bool { return r.Count <= 0 || r.Per <= 0 }

// units are the stretches of time that have a letter.
var units = map[time.Duration]string{time.Second: "s", time.Minute: "m", time.Hour: "h"}

// String is the written form, as in the configuration.
func (r Rate) String() string {
	if unit, known := units[r.Per]; known {
		return strconv.Itoa(r.Count) + "/" + unit
	}
	return strconv.Itoa(r.Count) + " in " + r.Per.String()
}

// rateStep is the shortest time between two steps: a claim takes a few
// milliseconds, and is to be the smaller part of a step.
const rateStep = 20 * time.Millisecond

// Steps spreads the rate evenly: batch attempts may start at once, and the next
// ones not before every has passed. Since no stretch as long as Per has room for
// more than Count/batch steps, no such stretch sees more than Count attempts start.
// Up to fifty a second a batch is one attempt. What does not come out even is
// lost: the rate is never exceeded, and may be missed by a few hundredths.
func (r Rate) Steps() (batch int, every time.Duration) {
	if r.None() {
		return 0, 0
	}
	most := max(1, int(r.Per/rateStep))
	batch = (r.Count + most - 1) / most
	steps := r.Count / batch
	return batch, (r.Per/time.Duration(steps) + time.Millisecond - 1).Truncate(time.Millisecond)
}

// Claims is what a claim under a limit has brought.
type Claims struct {
	Jobs []Claimed
	// Next is how long the rate keeps the type's next job from being claimed; zero:
	// it keeps none, as far as this claim has seen. A claim before then brings
	// nothing.
	Next time.Duration
}
