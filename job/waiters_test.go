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
