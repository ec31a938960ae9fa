package gateway

import (
	"time"

	"github.com/sekali/sekali/executor"
)

// Config is everything that can be set. [Default] gives the values that hold
// when nothing is; [Load] reads a file and the environment over them; people
// who embed the gateway fill it in code. The yaml tags are the paths of the keys.
// The comments of the fields are what docs/configuration.md says of them; a test
// writes it.
type Config struct {
	// Address to serve on; port 0 takes a free one. Other addresses than loopback need
	// `auth.mode: api_key` or `auth.allow_public: true`.
	Listen string `yaml:"listen"`
	// `sqlite:FILE`, or `postgres://user@host:5432/db?sslmode=…`.
	DatabaseURL string `yaml:"database_url" secret:"true"`
	// Connections to Postgres that this process may open, 4 to 1000; they are shared out
	// over requests, leases and transactional jobs, so that none can starve the others.
	// From 13 on submissions that come together have some of their own, and wait for a key
	// that somebody else has locked no longer than 50 ms; below, up to a second.
	DatabaseMaxConns int `yaml:"database_max_conns"`
	// `redis://host:6379/0` or `rediss://…`: keeps the locks of job types and a cache of
	// finished jobs. Nothing depends on it: while it is away jobs run under their leases
	// alone, reads come from the database, and `/readyz` and `sekali_degraded` say so. It
	// needs to write `sekali:*`; `maxmemory-policy noeviction` is advised, and a Redis
	// nearby: calls wait 100 ms at most. Several databases may share one; flush it after
	// restoring a backup, or for an hour the cache may tell of jobs that the backup does
	// not have. Empty: locks exclude within this process, and there is no cache.
	RedisURL    string      `yaml:"redis_url" secret:"true"`
	Idempotency Idempotency `yaml:"idempotency"`
	Limits      Limits      `yaml:"limits"`
	CORS        CORS        `yaml:"cors"`
	Log         Log         `yaml:"log"`
	Auth        Auth        `yaml:"auth"`
	// Whether to bring the schema up at start; `false`: `sekali migrate` does it, and `/readyz` says
	// when it is missing.
	Migrate    bool               `yaml:"migrate"`
	Dispatcher Dispatcher         `yaml:"dispatcher"`
	Defaults   Defaults           `yaml:"defaults"`
	JobTypes   map[string]JobType `yaml:"job_types"`
	Callbacks  Callbacks          `yaml:"callbacks"`
	// Schedules are recurring jobs by name.
	Schedules map[string]Schedule `yaml:"schedules"`
	Proxy     []ProxyRule         `yaml:"proxy"`

	// Executors are Go executors of people who embed the gateway, by job type.
	// A type that also stands in JobTypes takes its settings from there.
	Executors map[string]executor.Executor `yaml:"-"`
	// TxExecutors likewise, for executors that write in the transaction that
	// marks the job succeeded.
	TxExecutors map[string]executor.TxExecutor `yaml:"-"`
}

// Idempotency says what keys look like and how long they are kept.
type Idempotency struct {
	// Whether a POST needs a key; `false`: one without gets one.
	Required bool `yaml:"required"`
	// Longest key in bytes, 1 to 255.
	MaxKeyLength int `yaml:"max_key_length"`
	// A regular expression (RE2) that whole keys must match.
	KeyPattern string `yaml:"key_pattern"`
	// Of proxied routes: how long a key stays in progress after the gateway that ran the
	// request has died, 1s to 1h. While the request runs the lease is extended.
	Lease time.Duration `yaml:"lease"`
	// Of proxied routes: how long a response can be replayed.
	ResponseRetention time.Duration `yaml:"response_retention"`
	// `refuse`: an expired key stays refused as long as its tombstone. `execute`: a request
	// with an expired key is taken for a first one, tombstone or not.
	AfterExpiry string `yaml:"after_expiry"`
	// How long a key and its job are kept after the job has finished. A later request with
	// the key is refused (422 `idempotency-key-retired`).
	Retention time.Duration `yaml:"retention"`
	// How long an expired key stays consumed after that: its record shrinks to a
	// tombstone, and `GET` answers 410 with the job's final status. Then the key is as if
	// never used; `0`: at once.
	Tombstone time.Duration `yaml:"tombstone"`
	// How long results are kept after their jobs have ended; then `GET …/result` answers
	// 410 `result-expired`. `0`: as long as the job. It holds for jobs that end from then
	// on.
	ResultRetention time.Duration `yaml:"result_retention"`
}

// Limits bound what one request, and what one tenant may take.
type Limits struct {
	// Largest body of a request, and largest item of a batch.
	Body Size `yaml:"body"`
	// Largest batch (`POST /jobs/batch`), which has at most 1,000 items.
	Batch Size `yaml:"batch"`
	// Largest result that an executor may return.
	Result Size `yaml:"result"`
	// Longest `Prefer: wait` for a job; for a proxied request in progress it is 30s.
	Wait time.Duration `yaml:"wait"`
	// Requests that may wait at once in this process; with `auth.mode: api_key` one tenant
	// takes at most half of the places. Whoever finds no place is answered at once.
	Waiters int `yaml:"waiters"`
	// Requests of one tenant in this process, all routes together: `100/s`, `6000/m`,
	// `100000/h`. Beyond it: 429 `rate-limited`. What workers say about jobs that they hold
	// (`/executions/{id}/…`) is not counted.
	Rate string `yaml:"rate"`
	// Unfinished jobs of one tenant; `0`: no limit. Beyond it new jobs are refused (429
	// `rate-limited`), known keys are still answered. Approximate: each process counts
	// once a second.
	Pending int `yaml:"pending"`
	// Submissions that may wait in this process for the statement that records them, 1 to
	// 1000000: those of a moment, unless the database is slow. Beyond it: 503 `queue-full`.
	// Batches have statements of their own and are not counted.
	AcceptQueue int `yaml:"accept_queue"`
}

// CORS says which web pages may call.
type CORS struct {
	// Web pages of these origins (`https://app.example`, or `*`) may call, and read the
	// headers.
	AllowedOrigins []string `yaml:"allowed_origins"`
}

// Log says what is logged and how.
type Log struct {
	// The least that is logged: `debug`, `info`, `warn`, `error`.
	Level string `yaml:"level"`
	// `text`, `json`; `auto` is text on a terminal.
	Format string `yaml:"format"`
	// Whether to log a short hash instead of keys.
	RedactKeys bool `yaml:"redact_keys"`
}

// Auth says who may call.
type Auth struct {
	// `none`: every caller is the tenant `default`. `api_key`: every request but those to
	// `/healthz`, `/readyz` and `/metrics` needs a token; see docs/configuration.md#api-keys.
	Mode string `yaml:"mode"`
	// Whether to serve on an address other than loopback although nobody is asked who calls.
	AllowPublic bool `yaml:"allow_public"`
}

// Dispatcher says how this process runs jobs.
type Dispatcher struct {
	// Jobs that this process runs at once; 0: it only accepts.
	Slots int `yaml:"slots"`
	// How often it looks for jobs of which nobody told it.
	PollInterval time.Duration `yaml:"poll_interval"`
	// How long running jobs may go on after SIGTERM.
	ShutdownGrace time.Duration `yaml:"shutdown_grace"`
}

// Defaults hold for every job type that does not set its own.
type Defaults struct {
	// How long a claim holds without a heartbeat, 1s to 1h.
	Lease time.Duration `yaml:"lease"`
	// How often leases are extended; at most half of the lease. One beat prolongs all
	// leases and locks of a process, at the shortest heartbeat of its types.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// How long one attempt may take.
	Timeout time.Duration `yaml:"timeout"`
	// How often a job is tried, 1 to 1000; lost attempts count, released ones do not.
	MaxAttempts int     `yaml:"max_attempts"`
	Backoff     Backoff `yaml:"backoff"`
	// -100 to 100, smaller is earlier: each step is ten seconds of head start.
	Priority int `yaml:"priority"`
}

// Backoff is how long a job waits between attempts.
type Backoff struct {
	// The wait after the first attempt, doubled each time; a random half of it is taken
	// off.
	Base time.Duration `yaml:"base"`
	// The longest wait between attempts.
	Cap time.Duration `yaml:"cap"`
}

// JobType is one sort of work. Zero values take Defaults.
type JobType struct {
	// `http`, `command`, `sql`, `echo`, `remote` for workers that fetch the jobs (see
	// docs/workers.md), or `func` for Go functions of a program that embeds the gateway.
	Executor string   `yaml:"executor"`
	HTTP     *HTTP    `yaml:"http"`
	Command  *Command `yaml:"command"`
	SQL      *SQL     `yaml:"sql"`

	// Over `defaults.lease`.
	Lease time.Duration `yaml:"lease"`
	// Over `defaults.heartbeat`; with a `lease` of its own, a third of that if it is less.
	Heartbeat time.Duration `yaml:"heartbeat"`
	// Over `defaults.timeout`.
	Timeout time.Duration `yaml:"timeout"`
	// Over `defaults.max_attempts`.
	MaxAttempts int     `yaml:"max_attempts"`
	Backoff     Backoff `yaml:"backoff"`
	// Over `defaults.priority`.
	Priority *int `yaml:"priority"`
	// Over `idempotency.retention`.
	Retention time.Duration `yaml:"retention"`

	// Jobs of the type that run at once, over all processes, 1 to 100000; `0`: no limit.
	// See docs/limits.md.
	Concurrency int `yaml:"concurrency"`
	// Attempts of the type that start, over all processes: `50/s`, `600/m`, `1000/h`,
	// spread evenly.
	Rate string `yaml:"rate"`

	// A template of what is done once: `payment_capture:{{ .payload.provider_event_id }}`.
	// A second job with the key ends `succeeded`, `duplicate_ignored`, with the first
	// one's result. See docs/executors.md.
	OperationKey string `yaml:"operation_key"`
	// A template of what is worked on one at a time: `{{ .payload.order_id }}`. A request
	// that names a `business_key` wins.
	BusinessKey string `yaml:"business_key"`
	// What becomes of a submission whose business key another unfinished job of the type
	// holds: `return` binds its key to that job, `reject` answers 409, `queue` accepts it
	// and lets it run after that job, in order of arrival.
	OnBusinessKeyConflict string `yaml:"on_business_key_conflict"`
	// What becomes of a job when nobody knows what an attempt did. `retry`: it is tried
	// again. `reconcile`: the receiver is asked first; needs `http.reconcile_url`, or a Go
	// executor with the method `Reconcile`. `park`: it fails with `outcome_unknown`, for
	// `sekali resolve`. `sql`, `echo` and `TxFunc` take `retry` only: they know no such
	// doubt. With `http.reconcile_url` the default is `reconcile`.
	OnUnknownOutcome string `yaml:"on_unknown_outcome"`
	// A job of this type follows, in the same transaction, when one of the type that says
	// so has failed after at least one attempt; its payload is the failed job. It must be
	// configured; chains are fine, circles are not.
	Compensate string `yaml:"compensate"`
	// Where the end of each job is told, unless the request names a `callback_url`. It is
	// called wherever it leads. See docs/callbacks.md.
	CallbackURL string `yaml:"callback_url"`
	// `key`, `business_key`: take a lock of that name before an attempt runs; in Redis, or
	// in this process without `redis_url`. With `business_key`, a job without one (of the
	// template or the request) takes none.
	Lock string `yaml:"lock"`
	// A file with the JSON Schema of the payload: a submission that does not fit is
	// refused. See docs/configuration.md#schemas-of-payloads.
	Schema string `yaml:"schema"`
	// Whether to quote up to 1 KiB of the receiver's body or the program's error output in a job's
	// `error`.
	ErrorBody bool `yaml:"error_body"`
}

// Callbacks says whom jobs may tell of their ends, and how they do. The jobs that do
// it are of the built-in type `sekali.callback`; see docs/callbacks.md.
type Callbacks struct {
	// What the `callback_url` of a request may be: URL prefixes such as
	// `https://shop.example/hooks/`, or hosts, with a port or without one. Scheme, host and
	// port count exactly, and a path from segment to segment. Empty: requests name none.
	Allow []string `yaml:"allow"`
	// Whether a host name in the `callback_url` of a request may lead to a private,
	// loopback or link-local address. Without it such an address is called only where
	// `callbacks.allow` names it, or `localhost`, itself.
	AllowPrivate bool `yaml:"allow_private"`
	// `whsec_…`: sign callbacks by Standard Webhooks.
	Secret string `yaml:"secret" secret:"true"`
	// How often a callback is tried, 1 to 1000; with the defaults over about a day.
	MaxAttempts int `yaml:"max_attempts"`
	// How long one attempt may take.
	Timeout time.Duration `yaml:"timeout"`
	Backoff Backoff       `yaml:"backoff"`
}

// HTTP calls a receiver.
type HTTP struct {
	// Where to POST the payload. Only the configuration names URLs, never a request.
	URL string `yaml:"url"`
	// Headers that are added to each call.
	Headers map[string]string `yaml:"headers"`
	// `whsec_…`: sign calls by Standard Webhooks.
	Secret string `yaml:"secret" secret:"true"`
	// Where to ask, by GET, what became of an attempt whose answer was lost; its query
	// must not have `id` or `key`, which are added. The protocol:
	// docs/executors.md#the-question.
	ReconcileURL string `yaml:"reconcile_url"`
}

// Command runs a local program.
type Command struct {
	// Program and arguments; no shell. A relative path is relative to `command.dir`, or to
	// the gateway's working directory without one. On Linux the program dies with its
	// gateway, even after `kill -9`; what it has started itself may live on then, so let a
	// shell script `exec` its last program.
	Argv []string `yaml:"argv"`
	// Variables, beside `SEKALI_JOB_ID`, `SEKALI_KEY`, `SEKALI_TENANT`, `SEKALI_ATTEMPT`,
	// `SEKALI_FENCING_TOKEN` and `PATH`; nothing else is passed on.
	Env map[string]string `yaml:"env"`
	// Working directory.
	Dir string `yaml:"dir"`
}

// SQL runs one statement in the gateway's database.
type SQL struct {
	// One statement; `{{ .payload.path }}`, `{{ .key }}`, `{{ .tenant }}`, `{{ .id }}` are
	// bound as parameters, never pasted.
	Statement string `yaml:"statement"`
	// A SELECT with the same parameters, run when the statement violates a unique
	// constraint: a row ends the job `succeeded`, `duplicate_ignored`, with that row.
	Existing string `yaml:"existing"`
	// A statement that runs at every start, before the first job; it must be safe to
	// repeat.
	Setup string `yaml:"setup"`
}

// Schedule is recurring work: a job that is submitted again and again. Zero values
// take the documented defaults.
type Schedule struct {
	// The job type that is submitted.
	Type string `yaml:"type"`
	// Five fields: minute, hour, day of the month, month, day of the week; or six, with
	// the second in front. Or `@hourly`, `@daily`, `@weekly`, `@monthly`, `@yearly`,
	// `@every 90s`. See docs/schedules.md.
	Cron string `yaml:"cron"`
	// The zone in which `cron` is meant, by its IANA name, e.g. `Asia/Jakarta`.
	Timezone string `yaml:"timezone"`
	// What becomes of firings for which no gateway was there in time (within five seconds).
	// `run_last`: the last of them is made. `skip`: none is. `run_all`: all are, at most the
	// newest 1,000.
	Missed string `yaml:"missed"`
	// The payload of the jobs, any value. In a variable it is written as JSON.
	Payload JSON `yaml:"payload"`
	// Whose jobs they are. Without `auth.mode: api_key` every caller is the tenant `default`.
	Tenant string `yaml:"tenant"`
	// The business key of the jobs. While one of them has not ended, the type's
	// `on_business_key_conflict` says what becomes of the next.
	BusinessKey string `yaml:"business_key"`
	// Over the type's `priority`.
	Priority *int `yaml:"priority"`
}

// ProxyRule puts the gateway in front of one route of an API. Zero values take
// the documented defaults.
type ProxyRule struct {
	// `METHOD /path`, or `METHOD /path/*` for everything below the path (not the path
	// itself). Methods are GET (with HEAD), POST, PUT, PATCH, DELETE. The more exact path
	// wins. The gateway's own paths cannot be matched.
	Match string `yaml:"match"`
	// `http://host:port` or `https://…`; its path, if any, is put before the request's.
	// User and password become basic authentication.
	Upstream string `yaml:"upstream"`
	// How long the whole answer may take; for a stream (`text/event-stream`, an upgrade) until it
	// begins. Then 504 `upstream-timeout`.
	Timeout time.Duration `yaml:"timeout"`
	// What becomes of the key after a 5xx, a timeout or a broken connection. `release`:
	// the same request is sent again. `store`: the answer stays the answer; right for
	// payments. `interrupt`: the same request gets 422 `idempotency-outcome-unknown`, and
	// somebody has to look. An error before anything was sent always releases the key.
	On5xx string `yaml:"on_5xx"`
	// What becomes of a request whose gateway died meanwhile, when its lease is over.
	// `reject`: 422 `idempotency-outcome-unknown`.
	OnInterrupted string `yaml:"on_interrupted"`
	// `true`: while the database is away, requests run unprotected instead of being
	// refused with 503. It has no effect with `auth.mode: api_key`, where nobody is let in
	// without the database.
	FailOpen bool `yaml:"fail_open"`
	// `optional`: a request without a key runs unprotected; `ignored`: the route is only
	// passed through. GET is always `ignored`.
	Key string `yaml:"key"`
}

// Default returns the configuration that holds when nothing is set: SQLite in
// one file, one process, and the job type echo.
func Default() Config {
	return Config{
		Listen:           "127.0.0.1:8080",
		DatabaseURL:      "sqlite:sekali.db",
		DatabaseMaxConns: 24,
		Idempotency: Idempotency{
			Required: true, MaxKeyLength: 255, Lease: 30 * time.Second, ResponseRetention: 24 * time.Hour,
			AfterExpiry: "refuse", Retention: 168 * time.Hour, Tombstone: 2160 * time.Hour,
		},
		Limits:     Limits{Body: 1 << 20, Batch: 16 << 20, Result: 1 << 20, Wait: time.Minute, Waiters: 10_000, AcceptQueue: 2000},
		Log:        Log{Level: "info", Format: "auto"},
		Auth:       Auth{Mode: "none"},
		Migrate:    true,
		Dispatcher: Dispatcher{Slots: 64, PollInterval: time.Second, ShutdownGrace: 20 * time.Second},
		Defaults: Defaults{
			Lease: 30 * time.Second, Heartbeat: 10 * time.Second, Timeout: 5 * time.Minute,
			MaxAttempts: 10, Backoff: Backoff{Base: time.Second, Cap: time.Hour},
		},
		Callbacks: Callbacks{MaxAttempts: 40, Timeout: 15 * time.Second, Backoff: Backoff{Base: 5 * time.Second, Cap: time.Hour}},
	}
}
