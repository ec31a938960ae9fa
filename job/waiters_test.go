package job_test

import (
	"testing"

	"github.com/sekali/sekali/job"
)

func woken(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestWaiters(t *testing.T) {
	t.Parallel()
	var w job.Waiters
	change, stopChange := w.Wait("a", 2, false)
	end, stopEnd := w.Wait("a", 2, true)
	other, stopOther := w.Wait("b", 0, false)
	defer stopOther()

	w.Changed("a", job.Version{Number: 2, Status: job.Processing})
	if woken(change) || woken(end) {
		t.Fatal("the version that was seen already woke somebody")
	}
	w.Changed("a", job.Version{Number: 3, Status: job.Retrying})
	if !woken(change) || woken(end) {
		t.Fatal("a new version must wake who waits for change, and not who waits for the end")
	}
	w.Changed("a", job.Version{Number: 6, Status: job.Failed})
	if !woken(end) || woken(other) {
		t.Fatal("the end must wake who waits for it, and nobody of another job")
	}
	stopChange()
	stopEnd()
	if got := w.IDs(); len(got) != 1 || got[0] != "b" {
		t.Fatalf("still waited for: %v", got)
	}
	w.End()
	late, _ := w.Wait("c", 0, true)
	if !woken(other) || !woken(late) {
		t.Fatal("after End nobody may wait")
	}
}

// Those who leave, in whatever order, take nobody's place in the line with them.
func TestWaiters_OfOneJobLeaveInAnyOrder(t *testing.T) {
	t.Parallel()
	for _, leaver := range []int{0, 1, 2} {
		var w job.Waiters
		var channels []<-chan struct{}
		var stops []func()
		for range 3 {
			c, stop := w.Wait("a", 1, false)
			channels, stops = append(channels, c), append(stops, stop)
		}
		stops[leaver]()
		stops[leaver]()
		w.Changed("a", job.Version{Number: 2, Status: job.Processing})
		for i, c := range channels {
			if woken(c) != (i != leaver) {
				t.Errorf("%d left: %d was woken: %v", leaver, i, woken(c))
			}
			stops[i]()
		}
		if len(w.IDs()) != 0 {
			t.Errorf("%d left: %v are waited for", leaver, w.IDs())
		}
	}
}
