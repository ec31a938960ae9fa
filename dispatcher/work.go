package dispatcher

import (
	"context"
	"database/sql"
	"errors"
	"log/slog"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/telemetry"
	"github.com/sekali/sekali/job"
)

// work makes one attempt: the lock, the operation, what an earlier attempt left
// unknown, and then the executor. Each step may end it.
func (d *Dispatcher) work(a *attempt) ended {
	if e, goes := d.takeLock(a); !goes {
		return e
	}
	if a.work.ExecuteTx != nil {
		return d.executeTx(a)
	}
	if e, goes := d.prepare(a); !goes {
		return e
	}
	if a.ctx.Err() != nil { // the steps above may be all that there was time for
		return ended{err: context.Cause(a.ctx), untried: true}
	}
	var e ended
	e.done.Result, e.err = a.work.Execute.Execute(a.ctx, a.Claimed)
	return e
}

// prepare does what an attempt needs before its work begins, whoever does that.
func (d *Dispatcher) prepare(a *attempt) (e ended, goes bool) {
	if e, goes := d.takeOperation(a); !goes {
		return e, false
	}
	return d.reconcile(a)
}

// takeOperation takes the business operation that the job names, if it names
// one. The job goes on if the operation is its own.
func (d *Dispatcher) takeOperation(a *attempt) (e ended, goes bool) {
	if a.OperationKey == "" {
		return ended{}, true
	}
	taken, err := d.Operations.Take(a.ctx, a.Claimed)
	switch {
	case err != nil:
		return ended{err: err, untried: true}, false
	case taken.Mine:
		return ended{}, true
	case taken.Done:
		return ended{duplicate: &taken}, false
	}
	d.note(a.Claimed, job.EventOperationBusy, map[string]any{"held_by": string(taken.By)})
	return ended{putOff: true}, false
}

// reconcile asks what an earlier attempt did, if nobody knows and its type wants
// that asked. The job goes on if nothing was done and it may be tried again.
func (d *Dispatcher) reconcile(a *attempt) (e ended, goes bool) {
	if a.UnknownAsks > 0 && a.work.Settings.OnUnknown == job.UnknownPark {
		return ended{unknown: true}, false // somebody must look before it is tried again
	}
	if !a.inDoubt() {
		return ended{}, true
	}
	found, err := a.work.Execute.(executor.Reconciler).Reconcile(a.ctx, a.Claimed)
	if a.ctx.Err() != nil {
		return ended{err: err, unknown: true}, false
	}
	d.note(a.Claimed, job.EventReconciled, map[string]any{"answer": found.Answer.String(), "asks": a.UnknownAsks})
	d.Metrics.Reconciled.WithLabelValues(found.Answer.String()).Inc()
	d.Log.LogAttrs(a.ctx, slog.LevelInfo, "outcome reconciled",
		append(d.jobAttrs(a.Claimed), slog.String(telemetry.Answer, found.Answer.String()), slog.Any(telemetry.Error, err))...)
	switch found.Answer {
	case executor.ReconcileDone:
		return ended{done: executor.Done{Result: found.Result}}, false
	case executor.ReconcileNotDone:
		a.undone.Store(true)
		_, again := a.work.Settings.NotDone(a.asked())
		return ended{undone: true}, again
	case executor.ReconcileUnknown:
	}
	return ended{err: err, unknown: true}, false
}

// executeTx runs a transactional executor; the job's end and its operation are
// part of its commit. An operation that another job has is looked at: it may
// have been done, or left behind by a job that ended without doing it.
func (d *Dispatcher) executeTx(a *attempt) ended {
	e := d.commit(a)
	if !errors.Is(e.err, job.ErrOperationTaken) {
		return e
	}
	if e, goes := d.takeOperation(a); !goes {
		return e
	}
	e = d.commit(a)
	if errors.Is(e.err, job.ErrOperationTaken) { // somebody else was quicker again
		return ended{putOff: true}
	}
	return e
}

// commit runs the executor's transaction once.
func (d *Dispatcher) commit(a *attempt) ended {
	var e ended
	e.untried = true
	e.err = d.Leases.FinishTx(a.ctx, a.Claimed, func(ctx context.Context, tx *sql.Tx) (job.Ending, error) {
		e.untried = false
		done, err := a.work.ExecuteTx.ExecuteTx(ctx, tx, a.Claimed)
		if err != nil {
			return job.Ending{}, err
		}
		e.done = done
		a.settling.Store(true)
		ending := d.success(a, done)
		err = d.follow(ctx, a.Claimed, &ending) // a success needs no payload, and so no other connection
		e.follow = ending.Follow
		return ending, err
	})
	e.committed = e.err == nil
	if !e.committed {
		a.resume()
	}
	// The database failed the transaction, and not the work in it: nothing of it
	// is left, and the job is not to blame (BR-46, BR-50).
	if errors.Is(e.err, job.ErrUnavailable) || errors.Is(e.err, job.ErrOutcomeUnknown) {
		e.untried = true
	}
	return e
}
