package repository_test

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// fullSubmission says everything that one without a business key can say.
func fullSubmission(r *repository.Repository, key string) job.Submission {
	s := submission(r, key)
	s.Response = idempotency.Response{
		Status: http.StatusAccepted, Header: http.Header{"Location": {"/jobs/k"}}, Body: []byte("\x00 \\ \"accepted\""),
	}
	at := time.Date(2031, 2, 3, 4, 5, 6, 7_000_000, time.UTC)
	s.Job.CreatedAt, s.Job.RunAt, s.Job.Deadline = at, at.Add(time.Hour), at.Add(2*time.Hour)
	s.Job.Status, s.Job.Priority, s.Job.Timeout, s.Job.MaxAttempts = job.Scheduled, -7, 1500*time.Millisecond, 9
	s.Job.Payload, s.Job.OperationKey, s.Job.CallbackURL = []byte("\xff\x00{}"), `an "operation"`, "https://example.com/told"
	return s
}

// One submission, several, and several of which one has a business key, take
// different statements. Nobody may be able to tell by the rows, or by the answers.
func TestAccept_EachStatementWritesTheSame(t *testing.T) {
	t.Parallel()
	r := migrated(t, testenv.Postgres(t), repository.Options{})
	held := submission(r, "held")
	held.Job.BusinessKey = "order"
	together := func(all ...job.Submission) {
		t.Helper()
		for range 2 {
			receipts, errs := r.AcceptAll(t.Context(), all)
			for i, err := range errs {
				if err != nil || string(receipts[i].Job.ID) != string(all[i].Job.ID) {
					t.Fatalf("%s: %+v, %v", all[i].Request.Key, receipts[i], err)
				}
			}
		}
	}
	together(fullSubmission(r, "alone"))
	together(fullSubmission(r, "one of two"), submission(r, "two"))
	together(fullSubmission(r, "beside"), held)

	db := repository.Reads(r)
	rows := map[string]string{}
	for _, key := range []string{"alone", "one of two", "beside"} {
		var row string
		err := db.QueryRowContext(t.Context(),
			`select cast((to_jsonb(j) - 'slot' - 'id' - 'key' - 'key_slot' - 'queued_at') as text) ||
			   cast((to_jsonb(k) - 'slot' - 'key' - 'job_slot' - 'job_id') as text)
			 from jobs j join idempotency_keys k on k.job_slot = j.slot and k.job_id = j.id and k.key = j.key and k.slot = j.key_slot
			 where j.key = $1`, key).Scan(&row)
		if err != nil {
			t.Fatal(err)
		}
		rows[row] = key
	}
	if len(rows) != 1 {
		t.Errorf("the rows differ:\n%s", fmt.Sprint(rows))
	}
}

// A key that was accepted before stands in no way of its neighbours, in a batch
// and alone.
func TestAccept_KnownKeysAmongNewOnes(t *testing.T) {
	t.Parallel()
	r := migrated(t, testenv.Postgres(t), repository.Options{})
	before := accept(t, r, "b")
	for _, keys := range [][]string{{"b"}, {"a", "b", "c"}} {
		var all []job.Submission
		for _, key := range keys {
			all = append(all, submission(r, key))
		}
		receipts, errs := r.AcceptAll(t.Context(), all)
		for i, key := range keys {
			fresh := receipts[i].Record.Fresh
			if errs[i] != nil || fresh != (key != "b") || !fresh && receipts[i].Job.ID != before.Job.ID {
				t.Errorf("%v: %s: %+v, %v", keys, key, receipts[i], errs[i])
			}
		}
	}
}
