package job

import (
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
	// Repeats counts replays and mismatches for the timeline; nil: nobody does.
	Repeats *Repeats
	// Render makes the stored 202 of a new job, RenderCurrent the stored 200 of one
	// as it is. They are pure functions: record, response and job are committed
	// together, before anybody is answered.
	Render        func(Job) idempotency.Response
	RenderCurrent func(Job) idempotency.Response
	// Document is a job as JSON, the payload of a compensation.
	Document func(Job) []byte
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
// was accepted for. Errors: ErrUnknownType, ErrQuota, *KeyPartError, those of
// idempotency.Answer, and those of Acceptor.
func (s *Jobs) Submit(ctx context.Context, req idempotency.Request, d Draft) (Receipt, error) {
	settings, ok := s.Types[d.Type]
	if !ok {
		return s.Refuse(ctx, req, ErrUnknownType)
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
	return s.accepted(receipt, req)
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
func (s *Jobs) accepted(receipt Receipt, req idempotency.Request) (Receipt, error) {
	if !receipt.Record.Fresh || receipt.Alias {
		return s.answered(receipt, req)
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
	return s.answered(receipt, req)
}

// answered compares the request with what its key stands for.
func (s *Jobs) answered(receipt Receipt, req idempotency.Request) (Receipt, error) {
	response, err := idempotency.Answer(receipt.Record, req)
	s.Repeats.note(receipt.Job.ID, err)
	if err != nil {
		return Receipt{}, err
	}
	receipt.Record.Response = response
	return receipt, nil
}

func (s *Jobs) build(req idempotency.Request, d Draft, settings Settings) (Job, error) {
	now := s.Clock.Now()
	j := Job{
		Tenant:      req.Tenant,
		Key:         req.Key,
		Type:        d.Type,
		Status:      Pending,
		Payload:     d.Payload,
		BusinessKey: d.BusinessKey,
		Priority:    settings.Priority,
		RunAt:       now,
		Timeout:     settings.Timeout,
		MaxAttempts: settings.MaxAttempts,
		Generation:  1,
		Version:     1,
		CreatedAt:   now,
	}
	if len(j.Payload) == 0 {
		j.Payload = []byte("null")
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
// moved past the version it has there), wait is over, or ctx ends, and returns
// the receipt as it is then. Waiting holds no connection of the database.
func (s *Jobs) Await(ctx context.Context, r Receipt, wait time.Duration, anyChange bool) (Receipt, error) {
	if r.Job.Status.Finished() {
		return r, nil
	}
	woken, stop := s.Waiters.Wait(r.Job.ID, r.Job.Version, !anyChange)
	defer stop()
	// The job may have moved between the read of r and the registration.
	now, err := s.Get(ctx, r.Record.Tenant, r.Record.Key)
	if err != nil || now.Job.Status.Finished() || anyChange && now.Job.Version != r.Job.Version {
		return now, err
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return now, context.Cause(ctx)
	case <-timer.C:
	case <-woken:
	}
	return s.Get(ctx, r.Record.Tenant, r.Record.Key)
}
