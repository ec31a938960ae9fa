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
	Known(ctx context.Context, req idempotency.Request) (job.Receipt, bool)
	SubmitAll(ctx context.Context, items []job.Item) ([]job.Receipt, []error)
	Refuse(ctx context.Context, req idempotency.Request, why error) (job.Receipt, error)
	Get(ctx context.Context, tenant idempotency.Tenant, key idempotency.Key) (job.Receipt, error)
	List(ctx context.Context, f job.Filter) ([]job.Job, error)
	Await(ctx context.Context, r *job.Receipt, wait time.Duration, anyChange bool) error
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
	// Still returns an error if the caller would not be let in any more, after a wait;
	// nil means that it always would.
	Still func(*http.Request) error
	Clock job.Clock
	Batch Batch
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
	// draining and still are never nil.
	draining func() bool
	still    func(*http.Request) error
	clock    job.Clock
	batch    Batch
}

// NewJobs makes the handlers of /jobs.
func NewJobs(d domain, c JobsConfig) *Jobs {
	j := &Jobs{
		domain: d, maxWait: cmp.Or(c.MaxWait, defaultMaxWait), waiters: c.Waiters, draining: c.Draining, still: c.Still, clock: c.Clock, batch: c.Batch,
	}
	if j.draining == nil {
		j.draining = func() bool { return false }
	}
	if j.still == nil {
		j.still = func(*http.Request) error { return nil }
	}
	return j
}

// Get answers GET /jobs/{key}: the job as it is now, or 304. With a preference
// to wait it blocks until the job has finished or, if the client names the
// version that it knows, until there is another one.
//
//	@ID	getJob
//	@Summary	Get a job
//	@Description	The job as it is now. With a preference to wait the answer comes when the job has finished, or when it has another version than the one that If-None-Match names, or when the time is over.
//	@Tags	jobs
//	@Param	key path string true "The key of the job, percent-encoded once: a slash is %2F." example(order-42)
//	@Param	wait query int false "As Prefer: wait, for clients that cannot set a header." minimum(0)
//	@Param	Prefer header string false "RFC 7240: wait=N waits up to N seconds for the job to finish; respond-async does not wait; return=minimal leaves out the body. Unknown preferences are ignored." example(wait=10)
//	@Param	If-None-Match header string false "An ETag that the client knows; 304 if it still holds."
//	@Produce	application/problem+json
//	@Failure	400 {object} api.Problem "validation-failed"
//	@Failure	404 {object} api.Problem "job-not-found"
//	@Failure	410 {object} api.Problem "job-expired"
//	@Produce	json
//	@Success	200 {object} api.Job "The job."
//	@Success	304 "The version that the client knows."
//	@Router	/jobs/{key} [get]
func (j *Jobs) Get(w http.ResponseWriter, r *http.Request) error {
	wait, err := j.waitAsked(r)
	if err != nil {
		return err
	}
	receipt, err := j.find(r)
	if err != nil {
		return err
	}
	conditional := r.Header.Get("If-None-Match") != ""
	crowded := false
	if wait != nil && (!conditional || knows(r, receipt)) {
		if crowded, err = j.await(r, receipt, *wait, conditional); err != nil {
			return err
		}
	}
	return j.tell(w, r, receipt, wait, crowded)
}

// knows reports that the client has the job's version.
func knows(r *http.Request, receipt *job.Receipt) bool {
	return api.NoneMatch(r, api.JobETag(receipt.Job))
}

// tell answers with the job, after a wait if there was one.
func (j *Jobs) tell(w http.ResponseWriter, r *http.Request, receipt *job.Receipt, wait *time.Duration, crowded bool) error {
	h := w.Header()
	if wait != nil && j.cutShort(receipt.Job) {
		wait = nil
		h.Set("Connection", "close")
	}
	if wait != nil && !crowded {
		h.Set("Preference-Applied", api.WaitApplied(*wait))
	}
	j.setJobHeader(h, *receipt, "")
	h.Add("Vary", "Prefer")
	h.Set("ETag", api.JobETag(receipt.Job))
	j.setPace(h, receipt.Job, wait, crowded)
	if knows(r, receipt) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	api.WriteJob(w, http.StatusOK, receipt.Job)
	return nil
}

// Result answers GET /jobs/{key}/result with the bytes that the executor gave.
//
//	@ID	getResult
//	@Summary	Get the result of a job
//	@Description	The bytes that the executor returned, in its media type.
//	@Tags	jobs
//	@Param	key path string true "The key of the job, percent-encoded once: a slash is %2F." example(order-42)
//	@Param	If-None-Match header string false "An ETag that the client knows; 304 if it still holds."
//	@Produce	application/problem+json
//	@Failure	404 {object} api.Problem "job-not-found, job-has-no-result"
//	@Failure	409 {object} api.Problem "job-not-finished"
//	@Failure	410 {object} api.Problem "job-expired, result-expired"
//	@Produce	json
//	@Success	200 {object} api.AnyJSON "The result."
//	@Success	304 "The result that the client knows."
//	@Router	/jobs/{key}/result [get]
func (j *Jobs) Result(w http.ResponseWriter, r *http.Request) error {
	receipt, err := j.find(r)
	if err != nil {
		return err
	}
	found := &receipt.Job
	if !found.Status.Finished() {
		return &api.NotFinishedError{Key: found.Key, RetryIn: api.RetryAfter(*found, j.clock.Now())}
	}
	if found.Status == job.Succeeded && !found.ResultExpiredAt.IsZero() {
		return &api.ResultExpiredError{Key: found.Key, ExpiredAt: found.ResultExpiredAt}
	}
	if found.Status != job.Succeeded || found.Result == nil {
		return &api.NoResultError{Key: found.Key}
	}
	h := w.Header()
	j.setJobHeader(h, *receipt, "/result")
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
func (j *Jobs) find(r *http.Request) (*job.Receipt, error) {
	key, err := named(r)
	if err != nil {
		return nil, err
	}
	tenant := idempotency.TenantOf(r.Context())
	receipt, err := j.domain.Get(r.Context(), tenant, key)
	if err != nil {
		return nil, err
	}
	receipt.Record.Tenant, receipt.Record.Key = tenant, key
	api.ReportOf(r.Context()).Names(&receipt.Job)
	return &receipt, nil
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

// await waits, if there is room for one more who does (contract row 90). Whoever is
// not let in any more afterwards, because its token was revoked, must not be told.
func (j *Jobs) await(r *http.Request, receipt *job.Receipt, wait time.Duration, anyChange bool) (crowded bool, err error) {
	if wait == 0 || receipt.Job.Status.Finished() {
		return false, j.domain.Await(r.Context(), receipt, wait, anyChange)
	}
	if crowded, err = j.awaitInPlace(r.Context(), receipt, wait, anyChange); crowded || err != nil {
		return crowded, err
	}
	return false, j.still(r)
}

// awaitInPlace takes a place for as long as it waits, and not for what follows.
func (j *Jobs) awaitInPlace(ctx context.Context, receipt *job.Receipt, wait time.Duration, anyChange bool) (crowded bool, err error) {
	if j.waiters != nil {
		leave, ok := j.waiters.Enter(receipt.Record.Tenant)
		if !ok {
			return true, nil
		}
		defer leave()
	}
	return false, j.domain.Await(ctx, receipt, wait, anyChange)
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
