package handlers

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// executors is what the handlers need of job.Executors.
type executors interface {
	Overview(ctx context.Context) (job.Overview, error)
	Pause(ctx context.Context, t job.Type) error
	Resume(ctx context.Context, t job.Type) error
}

var _ executors = job.Executors(nil)

// ExecutorsConfig is what Executors needs besides the domain.
type ExecutorsConfig struct {
	// Kinds are the job types that are configured here, with the kinds of their
	// executors: http, command, sql, echo, func.
	Kinds map[job.Type]string
	// Limits are those of the types that have one.
	Limits map[job.Type]job.Limit
	// AllTenants lists running jobs whosever they are: there is one tenant.
	AllTenants bool
	Clock      job.Clock
}

// Executors answers the requests about executors, one for each job type.
type Executors struct {
	domain     executors
	kinds      map[job.Type]string
	limits     map[job.Type]job.Limit
	allTenants bool
	clock      job.Clock

	turn chan struct{} // held by who uses last
	last reading
}

// reading is an overview, or why there is none.
type reading struct {
	overview job.Overview
	err      error
	at       time.Time
}

// NewExecutors makes the handlers of /executors.
func NewExecutors(d executors, c ExecutorsConfig) *Executors {
	return &Executors{domain: d, kinds: c.Kinds, limits: c.Limits, allTenants: c.AllTenants, clock: c.Clock, turn: make(chan struct{}, 1)}
}

// List answers GET /executors.
//
//	@ID	listExecutors
//	@Summary	List the executors
//	@Description	For each job type: what runs where, what waits and why, and how attempts of the last hour ended.
//	@Tags	executors
//	@Produce	application/problem+json
//	@Produce	json
//	@Success	200 {object} api.ExecutorList "The executors."
//	@Router	/executors [get]
func (e *Executors) List(w http.ResponseWriter, r *http.Request) error {
	overview, err := e.overview(r.Context())
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "private, no-cache")
	api.WriteJSON(w, http.StatusOK, e.view(r).FromOverview(overview))
	return nil
}

// Get answers GET /executors/{name}.
//
//	@ID	getExecutor
//	@Summary	Get an executor
//	@Description	How the jobs of one type stand over all processes.
//	@Tags	executors
//	@Param	name path string true "The job type." example(invoice_generate)
//	@Produce	application/problem+json
//	@Failure	404 {object} api.Problem "executor-not-found"
//	@Produce	json
//	@Success	200 {object} api.Executor "The executor."
//	@Router	/executors/{name} [get]
func (e *Executors) Get(w http.ResponseWriter, r *http.Request) error {
	document, _, err := e.one(r)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "private, no-cache")
	api.WriteJSON(w, http.StatusOK, document)
	return nil
}

// Pause answers POST /executors/{name}/pause: from now on no process claims jobs
// of the type. It may be repeated.
//
//	@ID	pauseExecutor
//	@Summary	Pause a job type
//	@Description	From now on no process starts jobs of the type; accepted jobs wait, and what runs runs on. It may be repeated.
//	@Tags	executors
//	@Param	name path string true "The job type." example(invoice_generate)
//	@Produce	application/problem+json
//	@Failure	404 {object} api.Problem "executor-not-found"
//	@Produce	json
//	@Success	200 {object} api.Executor "The executor, paused."
//	@Router	/executors/{name}/pause [post]
func (e *Executors) Pause(w http.ResponseWriter, r *http.Request) error {
	return e.change(w, r, e.domain.Pause)
}

// Resume answers POST /executors/{name}/resume.
//
//	@ID	resumeExecutor
//	@Summary	Resume a job type
//	@Description	Lets jobs of a paused type start again. It may be repeated.
//	@Tags	executors
//	@Param	name path string true "The job type." example(invoice_generate)
//	@Produce	application/problem+json
//	@Failure	404 {object} api.Problem "executor-not-found"
//	@Produce	json
//	@Success	200 {object} api.Executor "The executor."
//	@Router	/executors/{name}/resume [post]
func (e *Executors) Resume(w http.ResponseWriter, r *http.Request) error {
	return e.change(w, r, e.domain.Resume)
}

// change pauses or resumes a type that exists, and answers with how it stands
// then.
func (e *Executors) change(w http.ResponseWriter, r *http.Request, change func(context.Context, job.Type) error) error {
	_, t, err := e.one(r)
	if err != nil {
		return err
	}
	if err := change(r.Context(), t); err != nil {
		return err
	}
	if err := e.forget(r.Context()); err != nil {
		return err
	}
	document, _, err := e.one(r)
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	api.WriteJSON(w, http.StatusOK, document)
	return nil
}

// one renders the executor that the path names.
func (e *Executors) one(r *http.Request) (api.Executor, job.Type, error) {
	name, err := url.PathUnescape(chi.URLParam(r, "name"))
	if err != nil {
		return api.Executor{}, "", api.ErrExecutorNotFound
	}
	overview, err := e.overview(r.Context())
	if err != nil {
		return api.Executor{}, "", err
	}
	t := job.Type(name)
	document, found := e.view(r).One(overview, t)
	if !found {
		return api.Executor{}, "", api.ErrExecutorNotFound
	}
	return document, t, nil
}

func (e *Executors) view(r *http.Request) api.ExecutorsView {
	v := api.ExecutorsView{Kinds: e.kinds, Limits: e.limits, Now: e.clock.Now()}
	if !e.allTenants {
		v.Tenant = idempotency.TenantOf(r.Context())
	}
	return v
}

// overviewAge is how long an overview is used again: dashboards of a whole team
// cost the database one reading a second.
const overviewAge = time.Second

// overview reads how everything stands, or waits for who does so already.
func (e *Executors) overview(ctx context.Context) (job.Overview, error) {
	leave, err := e.enter(ctx)
	if err != nil {
		return job.Overview{}, err
	}
	defer leave()
	now := e.clock.Now()
	if now.Sub(e.last.at) < overviewAge {
		return e.last.overview, e.last.err
	}
	overview, err := e.domain.Overview(ctx)
	if ctx.Err() == nil {
		// A database that is away is not asked by each in turn either.
		e.last = reading{overview: overview, err: err, at: now}
	}
	return overview, err
}

// forget makes the next overview a new one.
func (e *Executors) forget(ctx context.Context) error {
	leave, err := e.enter(ctx)
	if err == nil {
		e.last = reading{}
		leave()
	}
	return err
}

// enter takes the turn.
func (e *Executors) enter(ctx context.Context) (leave func(), err error) {
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case e.turn <- struct{}{}:
		return func() { <-e.turn }, nil
	}
}
