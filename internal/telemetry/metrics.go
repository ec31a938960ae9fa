package telemetry

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Labels for what is outside a closed set.
const (
	UnknownType = "unknown"   // a job type that is not configured
	Unmatched   = "unmatched" // a path that no route matches
	OtherMethod = "other"
	PartRedis   = "redis"
	PartNotices = "notices" // of other processes
)

// The results of a submission.
const (
	SubmitAccepted         = "accepted"
	SubmitReplayed         = "replayed"
	SubmitDuplicateIgnored = "duplicate_ignored" // bound to the holder of its business key
	SubmitRefused          = "refused"
)

// How the run of a keyed handler ended (middleware.Once).
const (
	RunStored      = "stored"       // its response is the answer from now on
	RunNotRetained = "not_retained" // likewise, without the body
	RunReleased    = "released"     // the key may be used again
	RunInterrupted = "interrupted"  // nobody knows what it did
	RunLost        = "lost"         // its claim was taken over meanwhile
	RunNotRecorded = "not_recorded" // the store failed at the end
	RunUnprotected = "unprotected"  // the store failed at the beginning, and it ran all the same
)

// Calls for locks, and what became of them.
const (
	LockAcquire = "acquire"
	LockRefresh = "refresh"
	LockRelease = "release"

	LockDone        = "done"
	LockHeld        = "held"        // by another
	LockLost        = "lost"        // to another
	LockUnavailable = "unavailable" // Redis failed, or is left alone after failures
	LockGivenUp     = "given_up"    // the caller did not wait for the answer
)

// What the reaper takes away.
const (
	ReapedJobs       = "jobs"
	ReapedResponses  = "responses" // stored, of requests that were no jobs
	ReapedTombstones = "tombstones"
	ReapedClaims     = "claims"  // that nobody ended
	ReapedResults    = "results" // of jobs that are kept longer
)

// What becomes of notices between processes.
const (
	NoticeSent  = "sent"
	NoticeHeard = "heard"
)

// What becomes of firings.
const (
	FiringMade    = "made"
	FiringKnown   = "known" // made by another process, or before a restart
	FiringFailed  = "failed"
	FiringSkipped = "skipped" // missed, and left out by the schedule's policy
)

var (
	reaped           = []string{ReapedJobs, ReapedResponses, ReapedTombstones, ReapedClaims, ReapedResults}
	runOutcomes      = []string{RunStored, RunNotRetained, RunReleased, RunInterrupted, RunLost, RunNotRecorded, RunUnprotected}
	submitResults    = []string{SubmitAccepted, SubmitReplayed, SubmitDuplicateIgnored, SubmitRefused}
	attemptOutcomes  = []string{"succeeded", "failed", "lost", "released", "cancelled"}
	staleCalls       = []string{"extend", "finish", "requeue", "heartbeat", "complete", "fail", "release"}
	reconcileAnswers = []string{"done", "not_done", "unknown"}
	lockResults      = map[string][]string{
		LockAcquire: {LockDone, LockHeld, LockUnavailable, LockGivenUp},
		LockRefresh: {LockDone, LockLost, LockUnavailable, LockGivenUp},
		LockRelease: {LockDone, LockUnavailable},
	}
	cacheFinds  = []string{"hit", "miss", "error"}
	cacheWrites = []string{"stored", "kept", "dropped", "error"}
	firings     = []string{FiringMade, FiringKnown, FiringFailed, FiringSkipped}
	methods     = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
)

// Buckets reach from a cache hit to the longest wait, and from a statement to
// the longest attempt that is not exceptional.
var (
	httpBuckets    = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10, 60}
	attemptBuckets = []float64{.005, .025, .1, .5, 1, 5, 15, 60, 300, 1800}
)

// Metrics is every metric of the program. No label carries a key, a path or
// any other text of a client's choice.
type Metrics struct {
	HTTPRequests      *prometheus.CounterVec   // method, route, status
	HTTPSeconds       *prometheus.HistogramVec // route
	Submissions       *prometheus.CounterVec   // type, result
	Replays           prometheus.Counter
	Mismatches        prometheus.Counter
	DuplicatesIgnored prometheus.Counter
	KeyedRuns         *prometheus.CounterVec   // outcome
	Attempts          *prometheus.CounterVec   // type, outcome
	AttemptSeconds    *prometheus.HistogramVec // type
	Running           *prometheus.GaugeVec     // type
	Claimed           *prometheus.CounterVec   // type
	Rescued           prometheus.Counter
	StaleCalls        *prometheus.CounterVec // call
	Reaped            *prometheus.CounterVec // what
	LoopErrors        *prometheus.CounterVec // loop
	RunningPastLease  prometheus.Gauge
	Degraded          *prometheus.GaugeVec // part
	AbandonedAttempts prometheus.Counter
	Unlocked          prometheus.Counter     // attempts that ran without the lock that they should have
	Reconciled        *prometheus.CounterVec // answer
	LockCalls         *prometheus.CounterVec // call, result
	CacheFinds        *prometheus.CounterVec // result
	CacheWrites       *prometheus.CounterVec // result
	Notices           *prometheus.CounterVec // what
	ScheduleFirings   *prometheus.CounterVec // schedule, result
	ScheduleLastFired *prometheus.GaugeVec   // schedule

	types   []string
	factory promauto.Factory
}

// NewMetrics registers all metrics. types are the configured job types: series
// of closed label sets stand at 0 from the start, so that a rate over the first
// event is not lost. Registering twice with one registerer panics.
func NewMetrics(reg prometheus.Registerer, types []string) *Metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "sekali_" + name, Help: help})
	}
	counters := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: "sekali_" + name, Help: help}, labels)
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: "sekali_" + name, Help: help}, labels)
	}
	histograms := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{Name: "sekali_" + name, Help: help, Buckets: buckets}, labels)
	}
	m := &Metrics{
		HTTPRequests:      counters("http_requests_total", "Answered HTTP requests.", "method", "route", "status"),
		HTTPSeconds:       histograms("http_request_seconds", "Time to answer an HTTP request, waiting included.", httpBuckets, "route"),
		Submissions:       counters("submissions_total", "Submissions of jobs.", "type", "result"),
		Replays:           counter("replays_total", "Keyed requests that got the answer of the first one."),
		Mismatches:        counter("mismatches_total", "Keyed requests refused because their key was used for another one."),
		DuplicatesIgnored: counter("duplicates_ignored_total", "Submissions and jobs recognised as done before under another key."),
		KeyedRuns:         counters("keyed_runs_total", "Runs of keyed handlers, by what became of their keys.", "outcome"),
		Attempts:          counters("attempts_total", "Attempts that ended.", "type", "outcome"),
		AttemptSeconds:    histograms("attempt_seconds", "Duration of attempts.", attemptBuckets, "type"),
		Running:           gauges("jobs_running", "Jobs that this process runs now.", "type"),
		Claimed:           counters("jobs_claimed_total", "Jobs that this process claimed.", "type"),
		Rescued:           counter("jobs_rescued_total", "Jobs brought back after their lease had expired."),
		StaleCalls:        counters("stale_calls_total", "Calls refused because their lease was not the job's any more.", "call"),
		Reaped:            counters("reaped_total", "What was taken away after its retention.", "what"),
		LoopErrors:        counters("loop_errors_total", "Rounds of a loop that failed.", "loop"),
		RunningPastLease: f.NewGauge(prometheus.GaugeOpts{
			Name: "sekali_running_past_lease", Help: "Jobs whose lease has expired and that nobody has brought back yet.",
		}),
		Degraded:          gauges("degraded", "1 while a part is away without which the service goes on.", "part"),
		AbandonedAttempts: counter("attempts_abandoned_total", "Attempts that did not return after they were told to stop."),
		Unlocked:          counter("attempts_unlocked_total", "Attempts that ran on their lease alone because no lock could be asked for."),
		Reconciled:        counters("reconciled_total", "Answers to the question what an attempt has done.", "answer"),
		LockCalls:         counters("lock_calls_total", "Calls for locks.", "call", "result"),
		CacheFinds:        counters("status_cache_finds_total", "Jobs looked for in the status cache.", "result"),
		CacheWrites:       counters("status_cache_writes_total", "Statuses of jobs that were to be written to the status cache.", "result"),
		Notices:           counters("notices_total", "Notices between the processes that share a database.", "what"),
		ScheduleFirings:   counters("schedule_firings_total", "Firings of schedules, by what became of them in this process.", "schedule", "result"),
		ScheduleLastFired: gauges("schedule_last_fired_timestamp_seconds", "Time of the last firing that was made, by any process; 0: none was.", "schedule"),
		types:             slices.Clone(types),
		factory:           f,
	}
	m.initialise()
	return m
}

// WatchAccepts shows how many submissions wait for their statement. It must be
// called once at most.
func (m *Metrics) WatchAccepts(waiting func() int) {
	m.factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sekali_accepts_waiting", Help: "Submissions that wait in this process for the statement that records them.",
	}, func() float64 { return float64(waiting()) })
}

// KnowSchedules lets the series of the configured schedules stand at 0 from the
// start.
func (m *Metrics) KnowSchedules(names []string) {
	for _, name := range names {
		for _, result := range firings {
			m.ScheduleFirings.WithLabelValues(name, result)
		}
		m.ScheduleLastFired.WithLabelValues(name)
	}
}

func (m *Metrics) initialise() {
	for _, t := range append([]string{UnknownType}, m.types...) {
		for _, result := range submitResults {
			m.Submissions.WithLabelValues(t, result)
		}
	}
	for _, t := range m.types {
		for _, outcome := range attemptOutcomes {
			m.Attempts.WithLabelValues(t, outcome)
		}
		m.AttemptSeconds.WithLabelValues(t)
		m.Running.WithLabelValues(t)
		m.Claimed.WithLabelValues(t)
	}
	for _, outcome := range runOutcomes {
		m.KeyedRuns.WithLabelValues(outcome)
	}
	for _, what := range reaped {
		m.Reaped.WithLabelValues(what)
	}
	for _, call := range staleCalls {
		m.StaleCalls.WithLabelValues(call)
	}
	for _, answer := range reconcileAnswers {
		m.Reconciled.WithLabelValues(answer)
	}
	m.Degraded.WithLabelValues(PartRedis)
	m.Degraded.WithLabelValues(PartNotices)
	m.Notices.WithLabelValues(NoticeSent)
	m.Notices.WithLabelValues(NoticeHeard)
	m.initialiseRedis()
}

func (m *Metrics) initialiseRedis() {
	for call, results := range lockResults {
		for _, result := range results {
			m.LockCalls.WithLabelValues(call, result)
		}
	}
	for _, result := range cacheFinds {
		m.CacheFinds.WithLabelValues(result)
	}
	for _, result := range cacheWrites {
		m.CacheWrites.WithLabelValues(result)
	}
}

// TypeLabel is the label of a job type: itself if it is configured.
func (m *Metrics) TypeLabel(t string) string {
	if slices.Contains(m.types, t) {
		return t
	}
	return UnknownType
}

// MethodLabel is the label of a request's method.
func MethodLabel(method string) string {
	if slices.Contains(methods, method) {
		return method
	}
	return OtherMethod
}
