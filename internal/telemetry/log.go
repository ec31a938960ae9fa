// Package telemetry names what the program logs and counts. It promises that
// metric labels come from closed sets, whatever clients send, and that keys
// appear in logs in one form alone, the configured one.
package telemetry

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"time"
)

// The attribute keys of log lines. Lines of other systems are joined by
// external_job_id, which is our job's id.
const (
	IdempotencyKey = "idempotency_key"
	ExternalJobID  = "external_job_id"
	BusinessKey    = "business_key"
	Attempt        = "attempt"
	WorkerID       = "worker_id"
	LockKey        = "lock_key"
	Answer         = "answer"
	StatusBefore   = "status_before"
	StatusAfter    = "status_after"
	DurationMS     = "duration_ms"
	Outcome        = "outcome"
	Type           = "type"
	Tenant         = "tenant"
	Fingerprint    = "fingerprint"
	Replayed       = "replayed"
	RequestID      = "request_id"
	Method         = "method"
	Route          = "route"
	Status         = "status"
	Bytes          = "bytes"
	Remote         = "remote"
	Code           = "code"
	Instance       = "instance"
	Error          = "error"
	Stack          = "stack"
	Loop           = "loop"
	Schedule       = "schedule"
	Call           = "call"
	Owner          = "owner" // the end of an owner token
)

// hashLength is enough to tell the keys of a day apart, and too little to test
// guesses of short keys with certainty.
const hashLength = 12

// KeyLog says how keys stand in logs: in full, since finding out about
// duplicates needs them, or as a short hash (log.redact_keys).
type KeyLog struct {
	Redact bool
}

// Attr is the attribute idempotency_key.
func (k KeyLog) Attr(key string) slog.Attr { return slog.String(IdempotencyKey, k.text(key)) }

// BusinessAttr is the attribute business_key, under the same rule.
func (k KeyLog) BusinessAttr(key string) slog.Attr { return slog.String(BusinessKey, k.text(key)) }

// LockAttr is the attribute lock_key: the name of a lock holds a job's keys.
func (k KeyLog) LockAttr(name string) slog.Attr { return slog.String(LockKey, k.text(name)) }

func (k KeyLog) text(key string) string {
	if !k.Redact || key == "" {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return "sha256:" + hex.EncodeToString(sum[:])[:hashLength]
}

// Stopwatch measures what is logged and counted; no decision hangs on it.
type Stopwatch struct{ started time.Time }

// Start starts a stopwatch.
func Start() Stopwatch { return Stopwatch{time.Now()} }

// Elapsed is the time since Start, on the monotonic clock.
func (s Stopwatch) Elapsed() time.Duration { return time.Since(s.started) }

// MillisecondsAttr is a duration under a key that names the unit (…_ms).
func MillisecondsAttr(key string, d time.Duration) slog.Attr {
	return slog.Int64(key, d.Milliseconds())
}

// DurationAttr is the attribute duration_ms: whole milliseconds. A fraction would
// cost more than the rest of the line, because slog leaves it to encoding/json; the
// metrics have it.
func DurationAttr(d time.Duration) slog.Attr { return MillisecondsAttr(DurationMS, d) }
