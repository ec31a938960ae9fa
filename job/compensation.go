package job

import (
	"fmt"

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
	if t == "" || !ok || !j.compensable() {
		return nil
	}
	d := Draft{Type: t, Payload: s.Document(j)}
	return s.follow(j, compensationKey(j), d, settings)
}

// compensable reports whether the job has failed and may have done something, which
// is known.
func (j Job) compensable() bool {
	return j.Status == Failed && j.Attempts > 0 && j.Outcome != OutcomeUnknown
}
