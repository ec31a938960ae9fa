package job

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// Draft is what a client asks for; nil and zero members take the type's values.
type Draft struct {
	Type        Type
	Payload     []byte // JSON; empty means null
	BusinessKey string
	RunAt       time.Time // in the past means now
	Delay       time.Duration
	Priority    *int
	MaxAttempts *int
	Timeout     *time.Duration
	// ExpiresIn is how long after its accept the job may start; nil: any time.
	ExpiresIn *time.Duration
	// CallbackURL is where the job's end is told; "": where the type says.
	CallbackURL string
}

// Jobs is the client's side of the domain: submit, read, and what operators do.
type Jobs struct {
	Types Types
	// Unknown is for jobs whose type is not configured any more.
	Unknown  Settings
	Acceptor Acceptor
	Bulk     Bulk // for batches
	Reader   Reader
	Leases   Leases
	Operator Operator
	Clock    Clock
	Waiters  *Waiters
	// Cache knows jobs without asking the database; nil: none.
	Cache StatusCache
	// Facts answers repetitions without asking the database; nil: none.
	Facts Facts
	// Repeats counts replays and mismatches for the timeline; nil: nobody does.
	Repeats *Repeats
	// Render makes the stored 202 of a new job, RenderCurrent the stored 200 of one
	// as it is. They are pure functions: record, response and job are committed
	// together, before anybody is answered.
	Render        func(Job) idempotency.Response
	RenderCurrent func(Job) idempotency.Response
	// Document is a job as JSON, the payload of a compensation.
	Document func(Job) []byte
	// Callback is what is told of a job's end at that time, as JSON.
	Callback func(j Job, at time.Time) []byte
	// CallbackSettings are those of CallbackType, also where no type of that name is
	// among Types: another process may know whom to call.
	CallbackSettings Settings
	// CheckCallback looks at a callback URL that a request names; nil: it may name
	// none. Error: *CallbackError.
	CheckCallback func(url string) error
	// Wake is told the type of each accepted job that may run now.
	Wake func(Type)
	// Cancelling is told of running attempts that were asked to cancel.
	Cancelling func(Lease)
	// Moved is told of each job that an operator or a client moved, after the
	// commit.
	Moved func(Job)
	// Quota bounds the unfinished jobs of each tenant; nil: nothing does.
	Quota *Quota
	// AfterExpiry says that the Acceptor takes a request with an expired key for
	// a first one.
	AfterExpiry bool
}

// Submit accepts the draft under the request's key, or returns what the key
// was accepted for. Errors: ErrUnknownType, *PayloadError, *CallbackError, ErrQuota,
// *KeyPartError, ErrQueueFull, those of idempotency.Answer, and those of Acceptor.
func (s *Jobs) Submit(ctx context.Context, req idempotency.Request, d Draft) (Receipt, error) {
	if receipt, ok := s.fact(req); ok {
		return s.answered(ctx, receipt, req)
	}
	settings, err := s.settings(d)
	if err != nil {
		return s.Refuse(ctx, req, err)
	}
	room, err := s.Quota.room(ctx, req.Tenant)
	if err != nil {
		return Receipt{}, err
	}
	if room == 0 {
		return s.Refuse(ctx, req, ErrQuota)
	}
	submission, err := s.submission(req, d, settings)
	if err != nil {
		return s.Refuse(ctx, req, err)
	}
	receipt, err := s.Acceptor.Accept(ctx, submission)
	if err != nil {
		return Receipt{}, err
	}
	return s.accepted(ctx, receipt, req)
}

// Known is Submit for a request that is in memory: its key stands for a job that
// has succeeded, and it is the same request. What it asks for need not be read
// then. It reports false for any other request, which Submit is for.
func (s *Jobs) Known(ctx context.Context, req idempotency.Request) (Receipt, bool) {
	receipt, ok := s.fact(req)
	if !ok || receipt.Record.Fingerprint.Differs(req.Fingerprint) != "" {
		return Receipt{}, false
	}
	receipt, err := s.answered(ctx, receipt, req)
	return receipt, err == nil
}

// submission is everything that accepting the draft writes.
func (s *Jobs) submission(req idempotency.Request, d Draft, settings Settings) (Submission, error) {
	j, err := s.build(req, d, settings)
	if err != nil {
		return Submission{}, err
	}
	return Submission{Request: req, Job: j, Response: s.Render(j), OnConflict: settings.OnConflict}, nil
}

// accepted gives a new job to the dispatcher, and compares any other receipt
// with the request.
func (s *Jobs) accepted(ctx context.Context, receipt Receipt, req idempotency.Request) (Receipt, error) {
	if !receipt.Record.Fresh || receipt.Alias {
		return s.answered(ctx, receipt, req)
	}
	s.Quota.add(req.Tenant)
	if receipt.Job.Status == Pending {
		s.Wake(receipt.Job.Type)
	}
	return receipt, nil
}

// Refuse is for a request that cannot be accepted: if its key was accepted
// before (the rules may have changed since), the client gets that answer
// (contract row 70), else the reason why.
func (s *Jobs) Refuse(ctx context.Context, req idempotency.Request, why error) (Receipt, error) {
	receipt, err := s.Reader.Find(ctx, req.Tenant, req.Key)
	if errors.Is(err, ErrNotFound) {
		return Receipt{}, why
	}
	if err != nil {
		return Receipt{}, err
	}
	if s.AfterExpiry && receipt.Record.State == idempotency.Retired {
		return Receipt{}, why
	}
	return s.answered(ctx, receipt, req)
}

// answered compares the request with what its key stands for.
func (s *Jobs) answered(ctx context.Context, receipt Receipt, req idempotency.Request) (Receipt, error) {
	response, err := idempotency.Answer(receipt.Record, req)
	s.Repeats.note(receipt.Job.ID, idempotency.SenderOf(ctx), err)
	if err != nil {
		return Receipt{}, err
	}
	s.remember(receipt)
	receipt.Record.Response = response
	return receipt, nil
}

// fact is what the key is known to stand for, if that cannot have changed.
func (s *Jobs) fact(req idempotency.Request) (Receipt, bool) {
	if s.Facts == nil {
		return Receipt{}, false
	}
	receipt, ok := s.Facts.Find(req.Tenant, req.Key)
	return receipt, ok && s.Clock.Now().Before(receipt.Job.ExpiresAt)
}

// remember notes a receipt that cannot change any more. An alias has no answer of
// its own: it tells of a job as that is now.
func (s *Jobs) remember(r Receipt) {
	if s.Facts == nil || r.Alias || r.Job.Status != Succeeded || r.Record.State != idempotency.Completed || r.Brief {
		return
	}
	s.Facts.Put(r)
}

func (s *Jobs) build(req idempotency.Request, d Draft, settings Settings) (Job, error) {
	now := s.Clock.Now()
	j := Job{
		Tenant:      req.Tenant,
		Key:         req.Key,
		Type:        d.Type,
		Status:      Pending,
		Payload:     d.payload(),
		BusinessKey: d.BusinessKey,
		CallbackURL: cmp.Or(d.CallbackURL, settings.CallbackURL),
		Priority:    settings.Priority,
		RunAt:       now,
		Timeout:     settings.Timeout,
		MaxAttempts: settings.MaxAttempts,
		Generation:  1,
		Version:     1,
		CreatedAt:   now,
	}
	if at := d.RunAt.UTC().Truncate(time.Millisecond); at.After(now) {
		j.RunAt = at
	}
	if d.Delay > 0 {
		j.RunAt = now.Add(d.Delay)
	}
	if j.RunAt.After(now) {
		j.Status = Scheduled
	}
	if d.Priority != nil {
		j.Priority = *d.Priority
	}
	if d.MaxAttempts != nil {
		j.MaxAttempts = *d.MaxAttempts
	}
	if d.Timeout != nil {
		j.Timeout = *d.Timeout
	}
	if d.ExpiresIn != nil {
		j.Deadline = now.Add(*d.ExpiresIn)
	}
	if err := nameKeys(&j, settings); err != nil {
		return Job{}, err
	}
	j.ID = NewID(now, slotFor(j.Tenant, j.Key, j.Type, j.BusinessKey))
	return j, nil
}

// nameKeys gives the job the keys that its type makes from the payload. A
// business key that the client named wins.
func nameKeys(j *Job, settings Settings) (err error) {
	if settings.BusinessKey != nil && j.BusinessKey == "" {
		if j.BusinessKey, err = settings.BusinessKey(*j); err != nil {
			return err
		}
	}
	if settings.OperationKey != nil {
		j.OperationKey, err = settings.OperationKey(*j)
	}
	return err
}

// Get returns the tenant's job of the key as it is now, and whether the key is
// an alias of it. A success is final, so the cache may tell of it; any other end
// it may tell of while the database is away. Errors: ErrNotFound,
// *ExpiredError, ErrUnavailable.
func (s *Jobs) Get(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (Receipt, error) {
	if s.Cache == nil {
		return s.current(ctx, tenant, key)
	}
	cached, known := s.Cache.Find(ctx, tenant, key)
	known = known && s.Clock.Now().Before(cached.Job.ExpiresAt)
	if known && cached.Job.Status == Succeeded {
		return cached.receipt(tenant, key), nil
	}
	receipt, err := s.current(ctx, tenant, key)
	switch {
	case known && errors.Is(err, ErrUnavailable):
		return cached.receipt(tenant, key), nil
	case err == nil && receipt.Job.Status.Finished() && !receipt.Alias && (!known || cached.Job.Version != receipt.Job.Version):
		s.Cache.Put(receipt.Job)
	}
	return receipt, err
}

// current is Get from the database.
func (s *Jobs) current(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (Receipt, error) {
	receipt, err := s.Reader.Find(ctx, tenant, key)
	if err != nil {
		return Receipt{}, err
	}
	if receipt.Record.State == idempotency.Retired {
		return Receipt{}, &ExpiredError{ExpiredAt: receipt.Record.ExpiresAt, Status: receipt.Job.Status}
	}
	return receipt, nil
}

// List returns a page of jobs, newest first.
func (s *Jobs) List(ctx context.Context, f Filter) ([]Job, error) { return s.Reader.List(ctx, f) }

// Await blocks until the receipt's job has finished (or, with anyChange, has
// moved past the version it has there), wait is over, or ctx ends, and makes the
// receipt what it is then. Waiting holds no connection of the database, and little
// memory: thousands may wait, so what is large is not in the frames that do.
func (s *Jobs) Await(ctx context.Context, r *Receipt, wait time.Duration, anyChange bool) error {
	if r.Brief {
		return s.refresh(ctx, r)
	}
	if r.Job.Status.Finished() {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	before := r.Job.Version
	for {
		woken, stop := s.Waiters.Wait(r.Job.ID, r.Job.Version, !anyChange)
		// The job may have moved before the registration; and what wakes is a hint.
		err := s.refresh(ctx, r)
		if err != nil || r.Job.Status.Finished() || anyChange && r.Job.Version != before || s.Waiters.Ended() {
			stop()
			return err
		}
		select {
		case <-ctx.Done():
			stop()
			return context.Cause(ctx)
		case <-timer.C:
			stop()
			return s.refresh(ctx, r)
		case <-woken:
			stop()
		}
	}
}

// refresh makes the receipt what its key stands for now.
func (s *Jobs) refresh(ctx context.Context, r *Receipt) error {
	now, err := s.Get(ctx, r.Record.Tenant, r.Record.Key)
	if err == nil {
		*r = now
	}
	return err
}
