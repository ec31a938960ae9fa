package gateway

import (
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/middleware"
)

// maxConcurrency and maxRate are beyond what one database carries.
const (
	maxConcurrency = 100_000
	maxRate        = 1_000_000_000
)

// limit is what bounds the jobs of the type over all processes. Where the rate is
// not understood checkLimit says so.
func (t JobType) limit() job.Limit {
	limit := job.Limit{Concurrency: t.Concurrency}
	if rate, err := middleware.ParseRate(t.Rate); err == nil {
		limit.Rate = job.Rate{Count: rate.Count, Per: rate.Per}
	}
	return limit
}

func (t JobType) checkLimit(k *check, path string) {
	if t.Concurrency != 0 {
		k.that(t.Concurrency >= 1 && t.Concurrency <= maxConcurrency, path+".concurrency", t.Concurrency, "takes 1 to 100000 jobs at once, or 0 for no limit")
	}
	if t.Rate != "" {
		rate, err := middleware.ParseRate(t.Rate)
		k.that(err == nil && rate.Count <= maxRate, path+".rate", t.Rate, "takes a rate such as 50/s, 600/m or 1000/h")
	}
}
