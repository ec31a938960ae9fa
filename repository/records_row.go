package repository

import (
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// recordRow is a record together with its job, as they were at ReadAt by the
// database's clock.
type recordRow struct {
	jobRow
	Place           int    `db:"place"` // of the key among those that were asked for, from 1
	ReadAt          moment `db:"read_at"`
	Fingerprint     []byte `db:"fingerprint"`
	RecordState     text   `db:"record_state"`
	Alias           bool   `db:"alias"`
	HasJob          bool   `db:"has_job"`
	NamesJob        bool   `db:"names_job"`
	Past            bool   `db:"past"`     // the record's own time is over
	JobPast         bool   `db:"job_past"` // its job's is
	FinalState      text   `db:"final_state"`
	ResponseStatus  int    `db:"response_status"`
	ResponseHeaders []byte `db:"response_headers"`
	ResponseBody    []byte `db:"response_body"`
	NotRetained     bool   `db:"not_retained"`
	Owner           text   `db:"owner"` // stays after the end, so that its repetition is recognised
	ClaimedUntil    moment `db:"claimed_until"`
	LeaseEnded      bool   `db:"lease_ended"`
	RecordAttempt   int    `db:"record_attempt"`
	RetiredAt       moment `db:"retired_at"`
	RecordExpiresAt moment `db:"record_expires_at"`
}

func (r *recordRow) state() idempotency.State { return idempotency.State(r.RecordState) }

// expired reports a record whose retention is over. A claim never expires:
// whoever holds it may be at work.
func (r *recordRow) expired() bool {
	switch r.state() {
	case idempotency.InProgress:
		return false
	case idempotency.Retired:
		return true
	case idempotency.Completed, idempotency.Interrupted:
	}
	// A record whose job is gone has outlived its retention too: what became of
	// the job is told by the tombstone, if by anything.
	return r.Past || r.JobPast || r.NamesJob && !r.HasJob
}

// over reports a record whose tombstone would have ended as well: the key is
// free, whether or not somebody has deleted the row.
func (r *recordRow) over(tombstone time.Duration) bool {
	switch {
	case r.state() == idempotency.Retired:
		return r.Past
	case !r.expired() || r.NamesJob && !r.HasJob:
		return false
	}
	// Times are read to the millisecond. Of two that look the same the row may be
	// a little younger in the database, which would not agree.
	return r.ReadAt.After(r.endedAt().Add(tombstone))
}

// endedAt is when the record expires, or did; zero while that is not known.
func (r *recordRow) endedAt() time.Time {
	switch {
	case r.state() == idempotency.InProgress:
		return time.Time{}
	case r.state() == idempotency.Retired && !r.RetiredAt.IsZero():
		return r.RetiredAt.Time
	case r.HasJob:
		return r.ExpiresAt.Time
	}
	return r.RecordExpiresAt.Time
}

// replaceable reports a record that does not stand in a request's way.
func (r *recordRow) replaceable(o retention, afterExpiry bool) bool {
	gone := r.NamesJob && !r.HasJob // nothing tells how long ago
	return r.over(o.tombstone) || afterExpiry && r.expired() && !gone
}

// record turns the row into the record of the key. Bytes that cannot be
// understood are an error: a record that is not whole is never served.
func (r *recordRow) record(tenant idempotency.Tenant, key idempotency.Key) (idempotency.Record, error) {
	fingerprint, err := idempotency.ParseFingerprint(r.Fingerprint)
	if err != nil {
		return idempotency.Record{}, err
	}
	header, err := decodeHeader(r.ResponseHeaders)
	if err != nil {
		return idempotency.Record{}, err
	}
	record := idempotency.Record{
		Request:   idempotency.Request{Tenant: tenant, Key: key, Fingerprint: fingerprint},
		State:     r.state(),
		Response:  idempotency.Response{Status: r.ResponseStatus, Header: header, Body: r.ResponseBody, NotRetained: r.NotRetained},
		ExpiresAt: r.endedAt(),
	}
	if r.expired() {
		record.State = idempotency.Retired
	}
	if record.State == idempotency.InProgress {
		record.RetryIn = max(r.ClaimedUntil.Sub(r.ReadAt.Time), 0)
	}
	return record, nil
}

// receipt turns the row into what the key stands for.
func (r *recordRow) receipt(tenant idempotency.Tenant, key idempotency.Key) (job.Receipt, error) {
	record, err := r.record(tenant, key)
	if err != nil {
		return job.Receipt{}, err
	}
	receipt := job.Receipt{Record: record, Alias: r.Alias}
	if r.HasJob {
		if receipt.Job, err = r.job(); err != nil {
			return job.Receipt{}, err
		}
	}
	if receipt.Job.Status == "" {
		receipt.Job.Status = job.Status(r.FinalState)
	}
	return receipt, nil
}
