package dispatcher_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/job"
)

// unaccepting is a replica's way to a database that takes none of its submissions.
type unaccepting struct{ *shared }

func (unaccepting) Accept(context.Context, job.Submission) (job.Receipt, error) {
	return job.Receipt{}, job.ErrUnavailable
}

// What one replica could not do and another one did is done: the first one does not
// go on looking for it.
func TestSchedules_AFiringThatAnotherReplicaMadeIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		db, clock := newShared(), &machine{}
		list := []job.Schedule{recurs(t, "s", "0 * * * *", "", job.MissedRunLast)}
		one := schedulingBy(t, db, unaccepting{db}, clock, list...)
		two := scheduling(t, db, clock, list...)
		elapse(61 * time.Minute)
		if n := len(db.keys()); n != 1 {
			t.Fatalf("%d firings", n)
		}
		before := db.looks()
		elapse(30 * time.Minute)
		// Each looks every ten seconds.
		if n := db.looks() - before; n > 2*30*60/10+100 {
			t.Errorf("%d looks in half an hour in which nothing is due", n)
		}
		one.end()
		two.end()
	})
}
