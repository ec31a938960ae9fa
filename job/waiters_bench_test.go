package job_test

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/sekali/sekali/job"
)

// What one who waits costs: bytes/waiter is what stays while it waits, the rest
// is for coming and leaving by the end of its patience.
func BenchmarkWaiters(b *testing.B) {
	const waiting = 10_000
	for _, jobs := range []int{1, waiting} {
		b.Run(fmt.Sprint("jobs=", jobs), func(b *testing.B) {
			ids := make([]job.ID, jobs)
			for i := range ids {
				ids[i] = job.ID(fmt.Sprintf("00000000-0000-7000-8000-%012d", i))
			}
			var held uint64
			for b.Loop() {
				var w job.Waiters
				before := heap()
				stops := make([]func(), waiting)
				for i := range stops {
					_, stops[i] = w.Wait(ids[i%jobs], 1, true)
				}
				held += heap() - before
				for _, stop := range stops {
					stop()
				}
			}
			b.ReportMetric(float64(held)/float64(b.N)/waiting, "bytes/waiter")
		})
	}
}

// heap is what lives.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
