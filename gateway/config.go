package gateway

import (
	"time"

	"github.com/sekali/sekali/executor"
)

// Config is everything that can be set. [Default] gives the values that hold
// when nothing is; [Load] reads a file and the environment over them; people
// who embed the gateway fill it in code. docs/configuration.md explains each
// key; the yaml tags are the paths there.
type Config struct {
	// Listen is the address to serve on; port 0 takes a free one.
	Listen string `yaml:"listen"`
	// DatabaseURL is sqlite:FILE or postgres://….
	DatabaseURL string `yaml:"database_url" secret:"true"`
	// DatabaseMaxConns bounds the connections to Postgres, all pools together.
	DatabaseMaxConns int `yaml:"database_max_conns"`
	// RedisURL is redis:// or rediss://; empty: no Redis.
	RedisURL    string             `yaml:"redis_url" secret:"true"`
	Idempotency Idempotency        `yaml:"idempotency"`
	Limits      Limits             `yaml:"limits"`
	CORS        CORS               `yaml:"cors"`
	Log         Log                `yaml:"log"`
	Auth        Auth               `yaml:"auth"`
	Migrate     bool               `yaml:"migrate"`
	Dispatcher  Dispatcher         `yaml:"dispatcher"`
	Defaults    Defaults           `yaml:"defaults"`
	JobTypes    map[string]JobType `yaml:"job_types"`
	Proxy       []ProxyRule        `yaml:"proxy"`

	// Executors are Go executors of people who embed the gateway, by job type.
	// A type that also stands in JobTypes takes its settings from there.
	Executors map[string]executor.Executor `yaml:"-"`
	// TxExecutors likewise, for executors that write in the transaction that
	// marks the job succeeded.
	TxExecutors map[string]executor.TxExecutor `yaml:"-"`
}

// Idempotency says what keys look like and how long they are kept.
type Idempotency struct {
	Required     bool   `yaml:"required"`
	MaxKeyLength int    `yaml:"max_key_length"` // 1..255
	KeyPattern   string `yaml:"key_pattern"`    // a regular expression that whole keys match
	// Lease is how long the claim of a proxied request holds after its process
	// has died.
	Lease             time.Duration `yaml:"lease"`
	ResponseRetention time.Duration `yaml:"response_retention"` // stored responses of proxied routes
	AfterExpiry       string        `yaml:"after_expiry"`       // refuse, execute
	Retention         time.Duration `yaml:"retention"`          // after the job has finished
	Tombstone         time.Duration `yaml:"tombstone"`          // after the retention
	ResultRetention   time.Duration `yaml:"result_retention"`   // 0: as long as the job
}

// Limits bound what one request, and what one tenant may take.
type Limits struct {
	Body    Size          `yaml:"body"`
	Batch   Size          `yaml:"batch"` // of the body of a batch
	Result  Size          `yaml:"result"`
	Wait    time.Duration `yaml:"wait"`    // longest Prefer: wait
	Waiters int           `yaml:"waiters"` // at once, in this process
	Rate    string        `yaml:"rate"`    // requests of a tenant in this process: 100/s; "": no limit
	Pending int           `yaml:"pending"` // unfinished jobs of a tenant; 0: no limit
}

// CORS says which web pages may call.
type CORS struct {
	AllowedOrigins []string `yaml:"allowed_origins"`
}

// Log says what is logged and how.
type Log struct {
	Level      string `yaml:"level"`  // debug, info, warn, error
	Format     string `yaml:"format"` // auto, text, json
	RedactKeys bool   `yaml:"redact_keys"`
}

// Auth says who may call.
type Auth struct {
	Mode        string `yaml:"mode"`         // none, api_key
	AllowPublic bool   `yaml:"allow_public"` // mode none on an address other than loopback
}

// Dispatcher says how this process runs jobs.
type Dispatcher struct {
	Slots         int           `yaml:"slots"` // 0: it only accepts
	PollInterval  time.Duration `yaml:"poll_interval"`
	ShutdownGrace time.Duration `yaml:"shutdown_grace"`
}

// Defaults hold for every job type that does not set its own.
type Defaults struct {
	Lease       time.Duration `yaml:"lease"`
	Heartbeat   time.Duration `yaml:"heartbeat"`
	Timeout     time.Duration `yaml:"timeout"` // of one attempt
	MaxAttempts int           `yaml:"max_attempts"`
	Backoff     Backoff       `yaml:"backoff"`
	Priority    int           `yaml:"priority"`
}

// Backoff is how long a job waits between attempts.
type Backoff struct {
	Base time.Duration `yaml:"base"`
	Cap  time.Duration `yaml:"cap"`
}

// JobType is one sort of work. Zero values take Defaults.
type JobType struct {
	Executor string   `yaml:"executor"` // http, command, sql, echo, func
	HTTP     *HTTP    `yaml:"http"`
	Command  *Command `yaml:"command"`
	SQL      *SQL     `yaml:"sql"`

	Lease       time.Duration `yaml:"lease"`
	Heartbeat   time.Duration `yaml:"heartbeat"`
	Timeout     time.Duration `yaml:"timeout"`
	MaxAttempts int           `yaml:"max_attempts"`
	Backoff     Backoff       `yaml:"backoff"`
	Priority    *int          `yaml:"priority"`
	Retention   time.Duration `yaml:"retention"`

	// OperationKey and BusinessKey are templates: payment:{{ .payload.event_id }}.
	OperationKey          string `yaml:"operation_key"`
	BusinessKey           string `yaml:"business_key"`             // unless the request names one
	OnBusinessKeyConflict string `yaml:"on_business_key_conflict"` // return, reject, queue
	OnUnknownOutcome      string `yaml:"on_unknown_outcome"`       // retry, reconcile, park
	Compensate            string `yaml:"compensate"`               // the type that follows a failed job
	Lock                  string `yaml:"lock"`                     // none, key, business_key
	ErrorBody             bool   `yaml:"error_body"`
}

// HTTP calls a receiver.
type HTTP struct {
	URL     string            `yaml:"url"`
	Headers map[string]string `yaml:"headers"`
	Secret  string            `yaml:"secret" secret:"true"` // whsec_…, signs requests (Standard Webhooks)
	// ReconcileURL is where to ask what became of an attempt.
	ReconcileURL string `yaml:"reconcile_url"`
}

// Command runs a local program.
type Command struct {
	Argv []string          `yaml:"argv"`
	Env  map[string]string `yaml:"env"`
	Dir  string            `yaml:"dir"` // working directory; default: the gateway's
}

// SQL runs one statement in the gateway's database.
type SQL struct {
	Statement string `yaml:"statement"`
	Existing  string `yaml:"existing"`
	// Setup runs at every start, before the first job; it must be safe to
	// repeat (create table if not exists …).
	Setup string `yaml:"setup"`
}

// ProxyRule puts the gateway in front of one route of an API. Zero values take
// the documented defaults.
type ProxyRule struct {
	Match         string        `yaml:"match"`          // METHOD /path, or METHOD /path/*
	Upstream      string        `yaml:"upstream"`       // http://host:port, perhaps with a path
	Timeout       time.Duration `yaml:"timeout"`        // 30s
	On5xx         string        `yaml:"on_5xx"`         // release, store, interrupt
	OnInterrupted string        `yaml:"on_interrupted"` // reexecute, reject
	FailOpen      bool          `yaml:"fail_open"`
	Key           string        `yaml:"key"` // required, optional, ignored
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
		Limits:     Limits{Body: 1 << 20, Batch: 16 << 20, Result: 1 << 20, Wait: time.Minute, Waiters: 10_000},
		Log:        Log{Level: "info", Format: "auto"},
		Auth:       Auth{Mode: "none"},
		Migrate:    true,
		Dispatcher: Dispatcher{Slots: 64, PollInterval: time.Second, ShutdownGrace: 20 * time.Second},
		Defaults: Defaults{
			Lease: 30 * time.Second, Heartbeat: 10 * time.Second, Timeout: 5 * time.Minute,
			MaxAttempts: 10, Backoff: Backoff{Base: time.Second, Cap: time.Hour},
		},
	}
}
