package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sekali/sekali/job"
)

// pace says how long a client should wait before it asks again for something
// of this age. Most jobs end within seconds and are asked for every second
// then; whoever waits for a long one need not ask more than every five.
var pace = []struct{ younger, wait time.Duration }{
	{5 * time.Second, 1 * time.Second},
	{15 * time.Second, 2 * time.Second},
	{30 * time.Second, 3 * time.Second},
	{time.Minute, 4 * time.Second},
}

const slowestPace = 5 * time.Second

// CrowdedPace is when to ask again for who would rather have waited, and was
// refused the place to: more would only keep the place taken.
const CrowdedPace = 2 * slowestPace

// RetryAfter is when to ask again for a job, by its age.
func RetryAfter(j job.Job, now time.Time) time.Duration {
	age := now.Sub(j.CreatedAt)
	for _, step := range pace {
		if age < step.younger {
			return step.wait
		}
	}
	return slowestPace
}

// SetRetryAfter sets the header in whole seconds, rounded up.
func SetRetryAfter(h http.Header, wait time.Duration) {
	h.Set("Retry-After", strconv.FormatInt(wholeSeconds(wait), 10))
}

// SetAge tells how old an answer is that did not come from the database, in
// whole seconds.
func SetAge(h http.Header, age time.Duration) {
	h.Set("Age", strconv.FormatInt(int64(max(age, 0)/time.Second), 10))
}

func wholeSeconds(d time.Duration) int64 {
	return int64((max(d, 0) + time.Second - 1) / time.Second)
}
