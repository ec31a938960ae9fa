package handlers

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// domain is what the handlers need of job.Jobs.
type domain interface {
	Submit(ctx context.Context, req idempotency.Request, d job.Draft) (job.Receipt, error)
	SubmitAll(ctx context.Context, items []job.Item) ([]job.Receipt, []error)
	Refuse(ctx context.Context, req idempotency.Request, why error) (job.Receipt, error)
	Get(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (job.Receipt, error)
	List(ctx context.Context, f job.Filter) ([]job.Job, error)
	Await(ctx context.Context, r job.Receipt, wait time.Duration, anyChange bool) (job.Receipt, error)
	History(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (job.History, error)
	Cancel(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (job.Receipt, error)
	Retry(ctx context.Context, req idempotency.Request, key idempotency.Key) (job.Receipt, error)
	Resolve(ctx context.Context, req idempotency.Request, key idempotency.Key, to job.Status, result *job.Result) (job.Receipt, error)
}

var _ domain = (*job.Jobs)(nil)

// defaultMaxWait is short of what proxies commonly allow a silent connection.
const defaultMaxWait = 60 * time.Second

// JobsConfig is what Jobs needs besides the domain.
type JobsConfig struct {
	MaxWait time.Duration // longest Prefer: wait that is granted; 0 means 60 s
	Waiters waiterLimit   // nil: any number may wait
	// Draining says that the process is about to end, which ends every wait; nil
	// means never.
	Draining func() bool
	Clock    job.Clock
	Batch    Batch
}

// waiterLimit is what the handlers need of job.WaiterLimit.
type waiterLimit interface {
	Enter(t idempotency.Tenant) (leave func(), ok bool)
}

var _ waiterLimit = (*job.WaiterLimit)(nil)

// Batch says what the items of a batch may be: the same as single requests.
type Batch struct {
	KeyRule     idempotency.KeyRule
	KeyRequired bool
	ItemLimit   int64 // bytes of one item
}

// Jobs answers the requests about jobs.
type Jobs struct {
	domain  domain
	maxWait time.Duration
	waiters waiterLimit
	// draining is never nil.
	draining func() bool
	clock    job.Clock
	batch    Batch
}

// NewJobs makes the handlers of /jobs.
func NewJobs(d domain, c JobsConfig) *Jobs {
	j := &Jobs{
		domain: d, maxWait: cmp.Or(c.MaxWait, defaultMaxWait), waiters: c.Waiters, draining: c.Draining, clock: c.Clock, batch: c.Batch,
	}
	if j.draining == nil {
		j.draining = func() bool { return false }
	}
	return j
}

// Get answers GET /jobs/{key}: the job as it is now, or 304. With a preference
// to wait it blocks until the job has finished or, if the client names the
// version that it knows, until there is another one.
func (j *Jobs) Get(w http.ResponseWriter, r *http.Request) error {
	wait, err := j.waitAsked(r)
	if err != nil {
		return err
	}
	receipt, err := j.find(r)
	if err != nil {
		return err
	}
	h := w.Header()
	conditional := r.Header.Get("If-None-Match") != ""
	known := api.NoneMatch(r, api.JobETag(receipt.Job))
	crowded := false
	if wait != nil && (known || !conditional) {
		if receipt, crowded, err = j.await(r.Context(), receipt, *wait, conditional); err != nil {
			return err
		}
	}
	if wait != nil && j.cutShort(receipt.Job) {
		wait = nil
		h.Set("Connection", "close")
	}
	if wait != nil && !crowded {
		h.Set("Preference-Applied", api.WaitApplied(*wait))
	}
	j.setJobHeader(h, receipt, "")
	h.Add("Vary", "Prefer")
	h.Set("ETag", api.JobETag(receipt.Job))
	j.setPace(h, receipt.Job, wait, crowded)
	if api.NoneMatch(r, api.JobETag(receipt.Job)) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	api.WriteJob(w, http.StatusOK, receipt.Job)
	return nil
}

// Result answers GET /jobs/{key}/result with the bytes that the executor gave.
func (j *Jobs) Result(w http.ResponseWriter, r *http.Request) error {
	receipt, err := j.find(r)
	if err != nil {
		return err
	}
	found := receipt.Job
	if !found.Status.Finished() {
		return &api.NotFinishedError{Key: found.Key, RetryIn: api.RetryAfter(found, j.clock.Now())}
	}
	if found.Status == job.Succeeded && !found.ResultExpiredAt.IsZero() {
		return &api.ResultExpiredError{Key: found.Key, ExpiredAt: found.ResultExpiredAt}
	}
	if found.Status != job.Succeeded || found.Result == nil {
		return &api.NoResultError{Key: found.Key}
	}
	h := w.Header()
	j.setJobHeader(h, receipt, "/result")
	h.Set("ETag", api.ResultETag(*found.Result))
	api.SetExpires(h, found.ExpiresAt)
	if api.NoneMatch(r, api.ResultETag(*found.Result)) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	api.WriteResult(w, *found.Result)
	return nil
}

// find reads the job that the path names.
func (j *Jobs) find(r *http.Request) (job.Receipt, error) {
	key, err := named(r)
	if err != nil {
		return job.Receipt{}, err
	}
	tenant := idempotency.TenantOf(r.Context())
	receipt, err := j.domain.Get(r.Context(), tenant, key)
	if err != nil {
		return job.Receipt{}, err
	}
	receipt.Record.Tenant, receipt.Record.Key = tenant, key
	api.ReportOf(r.Context()).Job = receipt.Job
	return receipt, nil
}

// named reads the key in the path, and reports it. One that cannot exist is not
// looked for: it would be the database's problem to say so.
func named(r *http.Request) (idempotency.Key, error) {
	text, err := url.PathUnescape(chi.URLParam(r, "key"))
	key := idempotency.Key(text)
	if err != nil || !key.Valid() {
		return "", job.ErrNotFound
	}
	api.ReportOf(r.Context()).Request = idempotency.Request{Tenant: idempotency.TenantOf(r.Context()), Key: key}
	return key, nil
}

// waitAsked is how long a GET may wait, nil if it does not ask to. The header
// wins over the query; HEAD never waits.
func (j *Jobs) waitAsked(r *http.Request) (*time.Duration, error) {
	if r.Method == http.MethodHead {
		return nil, nil
	}
	prefer := api.ParsePrefer(r.Header.Values("Prefer"))
	if prefer.Wait == nil {
		wait, err := api.ParseWait(r.URL.Query())
		if err != nil {
			return nil, err
		}
		prefer.Wait = wait
	}
	granted, ok := prefer.Grant(j.maxWait)
	if !ok {
		return nil, nil
	}
	return &granted, nil
}

// await waits, if there is room for one more who does (contract row 90).
func (j *Jobs) await(ctx context.Context, receipt job.Receipt, wait time.Duration, anyChange bool) (now job.Receipt, crowded bool, err error) {
	if j.waiters != nil && wait > 0 && !receipt.Job.Status.Finished() {
		leave, ok := j.waiters.Enter(receipt.Record.Tenant)
		if !ok {
			return receipt, true, nil
		}
		defer leave()
	}
	now, err = j.domain.Await(ctx, receipt, wait, anyChange)
	return now, false, err
}

// cutShort reports that a wait was not granted, or ended before its time: the
// process is about to end. Who asks again at once would only ask it again.
func (j *Jobs) cutShort(found job.Job) bool { return j.draining() && !found.Status.Finished() }

// setPace tells when asking again is worth it: never once the job has finished,
// at once for who has just waited.
func (j *Jobs) setPace(h http.Header, found job.Job, waited *time.Duration, crowded bool) {
	switch {
	case found.Status.Finished():
		api.SetExpires(h, found.ExpiresAt)
	case crowded:
		api.SetRetryAfter(h, api.CrowdedPace)
	case waited != nil && *waited > 0:
		api.SetRetryAfter(h, 0)
	default:
		api.SetRetryAfter(h, api.RetryAfter(found, j.clock.Now()))
	}
}

// setJobHeader sets what all answers about one job share. An alias names the
// job that it stands for; what comes from the cache tells how old it is.
func (j *Jobs) setJobHeader(h http.Header, receipt job.Receipt, below string) {
	h.Set("Cache-Control", "private, no-cache")
	if receipt.Alias {
		h.Set("Content-Location", api.JobURL(receipt.Job.Key)+below)
	}
	if receipt.Duplicate() {
		h.Set("Idempotency-Status", job.DuplicateIgnored)
	}
	if !receipt.CachedAt.IsZero() {
		api.SetAge(h, j.clock.Now().Sub(receipt.CachedAt))
	}
}
