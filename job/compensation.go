package job

import (
	"fmt"
	"net/http"

	"github.com/sekali/sekali/idempotency"
)

// compensationKey is the key of the job that compensates j. A job that an
// operator brought back and that failed again is compensated once more.
func compensationKey(j Job) idempotency.Key {
	key := "compensate:" + string(j.ID)
	if j.Generation > 1 {
		key += fmt.Sprintf(":%d", j.Generation)
	}
	return idempotency.Key(key)
}

// Compensation is the submission that follows when j has failed: a job of the
// type that its settings name, with the failed job as payload. It is nil where
// none is named, where nothing was tried, and where the outcome is unknown: what
// may not have happened is not undone before somebody has resolved it.
func (s *Jobs) Compensation(j Job) *Submission {
	t := s.Types[j.Type].Compensate
	settings, ok := s.Types[t]
	if t == "" || !ok || j.Status != Failed || j.Attempts == 0 || j.Outcome == OutcomeUnknown {
		return nil
	}
	d := Draft{Type: t, Payload: s.Document(j)}
	submission := s.follow(j.Tenant, compensationKey(j), d, settings)
	// Anybody who knows the job's id can use that key first, by mistake or not. A
	// failed job must be compensated all the same, under a key that nobody knows.
	unknown := NewID(s.Clock.Now(), j.Slot())
	submission.Otherwise = s.follow(j.Tenant, compensationKey(j)+":"+idempotency.Key(unknown), d, settings)
	return submission
}

// follow is the submission of a job that follows another one. If the type's own
// keys cannot be made from the payload, it runs without.
func (s *Jobs) follow(tenant idempotency.Tenant, key idempotency.Key, d Draft, settings Settings) *Submission {
	req := idempotency.Request{Tenant: tenant, Key: key}
	req.Fingerprint = idempotency.NewFingerprint(http.MethodPost, "/jobs", nil, "application/json", d.Payload)
	submission, err := s.submission(req, d, settings)
	if err != nil {
		settings.BusinessKey, settings.OperationKey = nil, nil
		submission, _ = s.submission(req, d, settings)
	}
	return &submission
}
