package job

import "context"

// Notice is what one process tells the others that share its database, after the
// commit. It is a hint and may get lost: it saves them the wait until they look
// for themselves, and nothing else.
type Notice struct {
	// Claimable are types with jobs that the sender does not run itself.
	Claimable []Type
	// Ended are jobs that have finished.
	Ended map[ID]Version
	// Cancelling are leases whose holder was asked to cancel.
	Cancelling []Lease
	// More says that there was too much to name: look at all types and at all jobs
	// that somebody waits for.
	More bool
}

// Empty reports whether the notice tells nothing.
func (n Notice) Empty() bool {
	return len(n.Claimable) == 0 && len(n.Ended) == 0 && len(n.Cancelling) == 0 && !n.More
}

// Notices carries notices between the processes that share a database.
type Notices interface {
	// Send tells the others, with one short statement of its own, and reports
	// whether it did: where nobody else listens, or this process does not, there is
	// nothing to send. What does not fit is left out or becomes Notice.More.
	Send(ctx context.Context, n Notice) (sent bool, err error)
	// Listen hands on what the others send until ctx ends or the connection is lost,
	// which is an error. It calls listening when it begins to hear: what was sent
	// before that is missed. Neither function may wait for anything. A database that
	// has no notices is errors.ErrUnsupported.
	Listen(ctx context.Context, listening func(), heard func(Notice)) error
}
