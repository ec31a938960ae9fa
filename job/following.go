package job

import (
	"net/http"

	"github.com/sekali/sekali/idempotency"
)

// Following is what follows when j has ended, as it stands then: the job that
// compensates it, and the one that tells of its end where it names a callback URL.
// Whoever ends a job accepts these in the same transaction, so that none is lost
// and none comes without the end.
func (s *Jobs) Following(j Job) []Submission {
	return s.following(j, "")
}

// following adds a part to the callback's key, for a job that had ended, and been
// told of, before.
func (s *Jobs) following(j Job, again idempotency.Key) []Submission {
	var follow []Submission
	if compensation := s.Compensation(j); compensation != nil {
		follow = append(follow, *compensation)
	}
	if callback := s.callback(j, again); callback != nil {
		follow = append(follow, *callback)
	}
	return follow
}

// Follows reports whether anything follows a job of the type that has ended as it
// stands there, and whether it is compensated, for which Following needs its
// payload.
func (s Settings) Follows(j Job) (follows, compensated bool) {
	compensated = s.Compensate != "" && j.compensable()
	return compensated || j.tells(), compensated
}

// wake tells that what follows a job is there.
func (s *Jobs) wake(follow []Submission) {
	for _, f := range follow {
		s.Wake(f.Job.Type)
	}
}

// follow is the submission of a job that follows another one, under the key; or,
// because anybody who knows the other job's id can use that key first, by mistake or
// not, under one that nobody knows.
func (s *Jobs) follow(j Job, key idempotency.Key, d Draft, settings Settings) *Submission {
	submission := s.followAs(j.Tenant, key, d, settings)
	unknown := NewID(s.Clock.Now(), j.Slot())
	submission.Otherwise = s.followAs(j.Tenant, key+":"+idempotency.Key(unknown), d, settings)
	return submission
}

// followAs is the submission under one key. If the type's own keys cannot be made
// from the payload, it runs without.
func (s *Jobs) followAs(tenant idempotency.Tenant, key idempotency.Key, d Draft, settings Settings) *Submission {
	req := idempotency.Request{Tenant: tenant, Key: key}
	req.Fingerprint = idempotency.NewFingerprint(http.MethodPost, "/jobs", nil, "application/json", d.Payload)
	submission, err := s.submission(req, d, settings)
	if err != nil {
		settings.BusinessKey, settings.OperationKey = nil, nil
		submission, _ = s.submission(req, d, settings)
	}
	return &submission
}
