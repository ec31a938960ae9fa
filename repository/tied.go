package repository

import (
	"context"
	"time"
)

// tied gives a transaction a context that ends with the caller's until release. That
// reports whether the caller's had not ended by then: only in that case may the
// transaction be committed, and a commit is not cut off, which would leave unknown
// what became of it. end frees what is held.
func tied(ctx context.Context) (detached context.Context, release func() bool, end func()) {
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	untie := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	// A context has ended before its AfterFunc runs, and a function that waits for
	// the end may be done in between (BR-80): both are asked.
	release = func() bool { return untie() && ctx.Err() == nil }
	end = func() {
		untie()
		cancel(nil)
	}
	return detached, release, end
}

// sameDeadline has the deadline of another context without ending at it: the
// connection takes its own bound from there.
type sameDeadline struct {
	context.Context
	of context.Context
}

// Deadline implements context.Context.
func (s sameDeadline) Deadline() (time.Time, bool) { return s.of.Deadline() }
