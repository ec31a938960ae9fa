package job_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestContract_Row90_WaiterLimit(t *testing.T) {
	t.Parallel()
	l := job.NewWaiterLimit(3, 2)
	enter := func(tenant idempotency.Tenant, want bool) func() {
		t.Helper()
		leave, ok := l.Enter(tenant)
		if ok != want {
			t.Fatalf("%s: entered %t, want %t", tenant, ok, want)
		}
		return leave
	}
	first := enter("a", true)
	enter("a", true)
	enter("a", false) // the tenant's own limit
	other := enter("b", true)
	enter("b", false) // the process's
	other()
	first()
	enter("b", true)
	enter("a", true)
	if _, ok := new(job.WaiterLimit).Enter("a"); ok {
		t.Error("the zero value has room")
	}
}

func TestWaiterLimit_NeverOverfull(t *testing.T) {
	t.Parallel()
	l := job.NewWaiterLimit(4, 4)
	var inside, most atomic.Int64
	var group sync.WaitGroup
	for range 64 {
		group.Go(func() {
			for range 200 {
				leave, ok := l.Enter("a")
				if !ok {
					continue
				}
				if n := inside.Add(1); n > 4 {
					most.Store(n)
				}
				inside.Add(-1)
				leave()
			}
		})
	}
	group.Wait()
	if most.Load() > 4 {
		t.Errorf("%d waited at once", most.Load())
	}
	for range 4 {
		if _, ok := l.Enter("b"); !ok {
			t.Fatal("places are lost")
		}
	}
}
