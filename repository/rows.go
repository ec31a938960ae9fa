package repository

import (
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

// stampLayout is how both engines take times: UTC, fixed width, milliseconds.
// SQLite stores this text, whose order is the order of the times.
const stampLayout = "2006-01-02T15:04:05.000Z"

func stamp(t time.Time) string { return t.UTC().Format(stampLayout) }

// stampOrNone is stamp, and "" for the zero time, which a statement stores as NULL.
func stampOrNone(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return stamp(t)
}

// moment scans the times of both engines; NULL is the zero time.
type moment struct{ time.Time }

// Scan implements sql.Scanner.
func (m *moment) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		m.Time = time.Time{}
	case time.Time:
		m.Time = v.UTC().Truncate(time.Millisecond)
	case string:
		return m.parse(v)
	case []byte:
		return m.parse(string(v))
	default:
		return fmt.Errorf("time is stored as %T", src)
	}
	return nil
}

func (m *moment) parse(text string) (err error) {
	m.Time, err = time.Parse(stampLayout, text)
	return err
}

// text scans a text that may be NULL, which is "".
type text string

// Scan implements sql.Scanner.
func (t *text) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*t = ""
	case string:
		*t = text(v)
	case []byte:
		*t = text(v)
	default:
		return fmt.Errorf("text is stored as %T", src)
	}
	return nil
}

// jobRow is a job of either table. Columns that a statement does not read, or
// that the other table lacks, keep their zero values.
type jobRow struct {
	ID           text   `db:"id"`
	Tenant       text   `db:"tenant"`
	Key          text   `db:"key"`
	Type         text   `db:"type"`
	State        text   `db:"state"`
	Payload      []byte `db:"payload"`
	BusinessKey  text   `db:"business_key"`
	OperationKey text   `db:"operation_key"`
	CallbackURL  text   `db:"callback_url"`
	Priority     int    `db:"priority"`
	RunAt        moment `db:"run_at"`
	ClaimAt      moment `db:"claim_at"`
	Deadline     moment `db:"deadline"`
	TimeoutMS    int64  `db:"timeout_ms"`
	// MaxAttempts bounds the attempts since the last retry of an operator, before
	// which there were EarlierAttempts.
	MaxAttempts       int    `db:"max_attempts"`
	EarlierAttempts   int    `db:"earlier_attempts"`
	Attempt           int    `db:"attempt"`
	Generation        int    `db:"generation"`
	Version           int64  `db:"version"`
	Token             int64  `db:"token"`
	WorkerID          text   `db:"worker_id"`
	LockedUntil       moment `db:"locked_until"`
	CancelRequestedAt moment `db:"cancel_requested_at"`
	UnknownAsks       int    `db:"unknown_asks"`
	LastError         []byte `db:"last_error"`
	Outcome           text   `db:"outcome"`
	DuplicateOf       text   `db:"duplicate_of"`
	Result            []byte `db:"result"`
	ResultType        text   `db:"result_type"`
	ResultHash        []byte `db:"result_hash"`
	CreatedAt         moment `db:"created_at"`
	StartedAt         moment `db:"started_at"`
	ClaimedAt         moment `db:"claimed_at"`
	FinishedAt        moment `db:"finished_at"`
	ExpiresAt         moment `db:"expires_at"`

	ResultExpiresAt moment `db:"result_expires_at"`
	ResultPast      bool   `db:"result_past"`
}

// job turns the row into the entity.
func (r *jobRow) job() (job.Job, error) {
	j := job.Job{
		ID:                job.ID(r.ID),
		Tenant:            idempotency.Tenant(r.Tenant),
		Key:               idempotency.Key(r.Key),
		Type:              job.Type(r.Type),
		Status:            job.Status(r.State),
		Payload:           r.Payload,
		BusinessKey:       string(r.BusinessKey),
		OperationKey:      string(r.OperationKey),
		CallbackURL:       string(r.CallbackURL),
		Priority:          r.Priority,
		RunAt:             r.RunAt.Time,
		Deadline:          r.Deadline.Time,
		Timeout:           time.Duration(r.TimeoutMS) * time.Millisecond,
		MaxAttempts:       r.MaxAttempts + r.EarlierAttempts,
		EarlierAttempts:   r.EarlierAttempts,
		Attempts:          r.Attempt,
		Generation:        r.Generation,
		Version:           r.Version,
		Token:             r.Token,
		ClaimedAt:         r.ClaimedAt.Time,
		LeaseEndsAt:       r.LockedUntil.Time,
		CancelRequestedAt: r.CancelRequestedAt.Time,
		UnknownAsks:       r.UnknownAsks,
		Outcome:           string(r.Outcome),
		DuplicateOf:       idempotency.Key(r.DuplicateOf),
		CreatedAt:         r.CreatedAt.Time,
		StartedAt:         r.StartedAt.Time,
		FinishedAt:        r.FinishedAt.Time,
		ExpiresAt:         r.ExpiresAt.Time,
	}
	j.WorkerID, j.Remote = workerOf(r.WorkerID)
	if j.Status == job.Retrying {
		j.NextAttemptAt = j.RunAt
	}
	// The hash is there with every result: an empty body is not told from NULL.
	switch {
	case len(r.ResultHash) == 0:
	case r.ResultPast:
		j.ResultExpiredAt = r.ResultExpiresAt.Time
	default:
		j.Result = &job.Result{Body: r.Result, MediaType: string(r.ResultType)}
	}
	if len(r.LastError) > 0 {
		j.LastError = new(job.Failure)
		if err := json.Unmarshal(r.LastError, j.LastError); err != nil {
			return job.Job{}, fmt.Errorf("last error of job %s: %w", r.ID, err)
		}
	}
	return j, nil
}

// claimed is the row of a job that has just been claimed or whose lease is
// looked at.
func (r *jobRow) claimed() (job.Claimed, error) {
	j, err := r.job()
	return job.Claimed{Job: j, Lease: job.Lease{ID: j.ID, Token: r.Token}}, err
}

// each converts a list of rows.
func each[R, T any](rows []R, convert func(*R) (T, error)) ([]T, error) {
	list := make([]T, len(rows))
	for i := range rows {
		var err error
		if list[i], err = convert(&rows[i]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// encodeHeader cannot fail: a map of texts is always JSON.
func encodeHeader(h http.Header) []byte {
	if len(h) == 0 {
		return []byte("{}")
	}
	b, _ := json.Marshal(h)
	return b
}

func decodeHeader(b []byte) (http.Header, error) {
	if len(b) == 0 {
		return nil, nil
	}
	var h http.Header
	if err := json.Unmarshal(b, &h); err != nil {
		return nil, fmt.Errorf("%w: stored response headers: %w", idempotency.ErrCorrupt, err)
	}
	return h, nil
}

// encodeFailure cannot fail either; none is no bytes.
func encodeFailure(f *job.Failure) []byte {
	if f == nil {
		return nil
	}
	b, _ := json.Marshal(f)
	return b
}
