package job

import "time"

// Backoff is how long a job waits between attempts: Base, doubled with each
// attempt, at most Cap, of which a random share between one half and all is
// taken, so that jobs that failed together do not come back together.
type Backoff struct {
	Base time.Duration
	Cap  time.Duration
}

// Delay returns the wait after the given attempt (1 is the first). random must
// return a number in [0, 1). The result lies between half of the capped delay
// and all of it, for any attempt number: doubling stops at the cap, so nothing
// can overflow (BR-67).
func (b Backoff) Delay(attempt int, random func() float64) time.Duration {
	delay := b.Base
	for range attempt - 1 {
		if delay >= b.Cap/2 {
			delay = b.Cap
			break
		}
		delay *= 2
	}
	delay = min(delay, b.Cap)
	half := delay / 2
	return half + time.Duration(random()*float64(delay-half))
}
