package repositorytest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var accepting = cases{
	"Row64 record, response and job are there together":       testAcceptNew,
	"Row65 a repetition finds the first one, byte for byte":   testAcceptAgain,
	"Row66 a repetition finds the job as it is now":           testAcceptAgainFinished,
	"Row68 another request under the key is not hidden":       testAcceptOther,
	"keys of two tenants are two keys":                        testAcceptTenants,
	"Q42 BR-29 BR-31 payloads come back byte for byte":        testPayloads,
	"BR-48 numbers do not run out":                            testManyReplays,
	"Row80 Q26 return binds the second key to the holder":     testBusinessReturn,
	"Row80 reject refuses and consumes nothing":               testBusinessReject,
	"Row80 the holder's own repetition is a replay":           testBusinessOwnRepetition,
	"Q16 an ended job gives its business key free":            testBusinessFree,
	"Q17 the record outlives the job's end":                   testRecordOutlives,
	"a business key is of its type and tenant":                testBusinessScope,
	"a batch answers each, also keys and business keys twice": testBatchDuplicates,
	"BR-47 one bad submission does not fail its neighbours":   testBatchNeighbours,
	"an empty batch is nothing":                               testBatchEmpty,
	"Row60 a corrupt record is an error and never served":     testCorrupt,
}

func testAcceptNew(t *testing.T, w World) {
	s := submission(w, "k", `{"a": 1}`)
	s.Job.Priority, s.Job.MaxAttempts, s.Job.Timeout = -7, 3, 90*time.Second
	s.Job.OperationKey, s.Job.Deadline = "payment:1", s.Job.CreatedAt.Add(time.Hour)
	receipt, err := w.Repo.Accept(t.Context(), s)
	if err != nil || !receipt.Record.Fresh || receipt.Alias || receipt.Record.State != idempotency.Completed {
		t.Fatalf("accept: %+v, %v", receipt, err)
	}
	found, err := w.Repo.Find(t.Context(), tenant, "k")
	if err != nil {
		t.Fatal(err)
	}
	if found.Record.Fresh || found.Record.Request != s.Request || found.Record.State != idempotency.Completed {
		t.Errorf("record: %+v", found.Record)
	}
	if !equalResponse(found.Record.Response, s.Response) {
		t.Errorf("response: %+v, want %+v", found.Record.Response, s.Response)
	}
	if got, want := fmt.Sprintf("%+v", found.Job), fmt.Sprintf("%+v", s.Job); got != want {
		t.Errorf("job\n%s, want\n%s", got, want)
	}
	if !found.Record.ExpiresAt.IsZero() {
		t.Errorf("an unfinished job expires at %v", found.Record.ExpiresAt)
	}
}

func testAcceptAgain(t *testing.T, w World) {
	first := submission(w, "k", `{}`)
	accept(t, w, first)
	second := submission(w, "k", `{}`)
	second.Response.Body = []byte("another body")
	receipt, err := w.Repo.Accept(t.Context(), second)
	if err != nil || receipt.Record.Fresh {
		t.Fatalf("second accept: %+v, %v", receipt, err)
	}
	if !equalResponse(receipt.Record.Response, first.Response) {
		t.Errorf("response: %s", receipt.Record.Response.Body)
	}
	if receipt.Job.ID != first.Job.ID {
		t.Errorf("job %s, want %s", receipt.Job.ID, first.Job.ID)
	}
	if n := count(t, w, `select count(*) from jobs`); n != 1 {
		t.Errorf("%d jobs", n)
	}
}

func testAcceptAgainFinished(t *testing.T, w World) {
	s := submission(w, "k", `{}`)
	accept(t, w, s)
	if !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
		t.Fatal("not finished")
	}
	receipt, err := w.Repo.Accept(t.Context(), submission(w, "k", `{}`))
	if err != nil || receipt.Record.Fresh || receipt.Job.Status != job.Succeeded {
		t.Fatalf("accept after the end: %+v, %v", receipt, err)
	}
	if !equalResponse(receipt.Record.Response, s.Response) {
		t.Errorf("response: %+v", receipt.Record.Response)
	}
}

func testAcceptOther(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{"a":1}`))
	other := submission(w, "k", `{"a":2}`)
	receipt, err := w.Repo.Accept(t.Context(), other)
	if err != nil {
		t.Fatal(err)
	}
	_, err = idempotency.Answer(receipt.Record, other.Request)
	if mismatch := wantError[*idempotency.MismatchError](t, err); mismatch.Part != idempotency.PartBody {
		t.Errorf("part %q", mismatch.Part)
	}
}

func testAcceptTenants(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	s := submission(w, "k", `{}`)
	s.Request.Tenant, s.Job.Tenant = "other", "other"
	s.Job.ID = job.NewID(s.Job.CreatedAt, job.KeySlot("other", "k"))
	accept(t, w, s)
	if _, err := w.Repo.Find(t.Context(), "third", "k"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("a third tenant finds %v", err)
	}
}

// corpus are bytes that databases like to change or to refuse.
func corpus() []string {
	return []string{
		`null`, `{}`, `{"s":"a\u0000b"}`, `{"s":"\ud800"}`, `{"s":"\udc00x","\ud800":1}`, `{"s":"\\u0000"}`,
		"{\"raw\":\"\x00\"}", "\xff\xfe\xfd", "\\x00", `{"b":1.10,"a":1e400}`, `{"b":1,"a":2}`, " \n\t{ } \r\n",
		`'; drop table jobs; --`, `{"n":12345678901234567890}`, strings.Repeat("x", 1<<20),
	}
}

func testPayloads(t *testing.T, w World) {
	for i, payload := range corpus() {
		s := submission(w, fmt.Sprint("k", i), payload)
		s.Response.Body = []byte(payload)
		accept(t, w, s)
		c := claim(t, w, "w", lease)
		e := succeed(c.Lease)
		e.Result = &job.Result{Body: []byte(payload), MediaType: "application/octet-stream"}
		if !bytes.Equal(c.Payload, []byte(payload)) || !finish(t, w, e) {
			t.Fatalf("claimed payload %d: %.60q", i, c.Payload)
		}
		found, err := w.Repo.Find(t.Context(), tenant, s.Request.Key)
		if err != nil {
			t.Fatal(err)
		}
		for what, got := range map[string][]byte{
			"payload": found.Job.Payload, "result": found.Job.Result.Body, "response": found.Record.Response.Body,
		} {
			if !bytes.Equal(got, []byte(payload)) {
				t.Errorf("%s %d: %.60q, want %.60q", what, i, got, payload)
			}
		}
	}
}

// testManyReplays: tokens and versions are 64 bits wide, and no key is a
// sequence that replays could use up.
func testManyReplays(t *testing.T, w World) {
	s := submission(w, "k", `{}`)
	accept(t, w, s)
	const high = 1 << 40
	execute(t, w, `update jobs set token = $1, version = $1 where slot = $2 and id = $3`,
		int64(high), int64(s.Job.Slot()), string(s.Job.ID))
	for range 50 {
		if receipt, err := w.Repo.Accept(t.Context(), submission(w, "k", `{}`)); err != nil || receipt.Job.Version != high {
			t.Fatalf("replay: %+v, %v", receipt.Job, err)
		}
	}
	c := claim(t, w, "w", lease)
	if c.Lease.Token != high+1 || !finish(t, w, succeed(c.Lease)) {
		t.Errorf("token %d", c.Lease.Token)
	}
}

func testBusinessReturn(t *testing.T, w World) {
	holder := accept(t, w, submission(w, "first", `{}`, withBusinessKey("order 1", job.ConflictReturn)))
	c := claim(t, w, "w", lease)
	second := submission(w, "second", `{"other":"payload"}`, withBusinessKey("order 1", job.ConflictReturn))
	receipt, err := w.Repo.Accept(t.Context(), second)
	if err != nil || !receipt.Alias || !receipt.Record.Fresh || receipt.Job.ID != holder.ID || receipt.Job.Status != job.Processing {
		t.Fatalf("accept: %+v, %v", receipt, err)
	}
	if receipt.Record.Request != second.Request || receipt.Record.Response.Status != 0 {
		t.Errorf("record of the alias: %+v", receipt.Record)
	}
	if !finish(t, w, succeed(c.Lease)) {
		t.Fatal("not finished")
	}
	receipt, err = w.Repo.Accept(t.Context(), second)
	if err != nil || !receipt.Alias || receipt.Record.Fresh || receipt.Job.ID != holder.ID || receipt.Job.Status != job.Succeeded {
		t.Errorf("the binding is for good: %+v, %v", receipt, err)
	}
	if n := count(t, w, `select count(*) from jobs`) + count(t, w, `select count(*) from finished_jobs`); n != 1 {
		t.Errorf("%d jobs", n)
	}
}

func testBusinessReject(t *testing.T, w World) {
	accept(t, w, submission(w, "first", `{}`, withBusinessKey("order 1", job.ConflictReject)))
	second := submission(w, "second", `{}`, withBusinessKey("order 1", job.ConflictReject))
	_, err := w.Repo.Accept(t.Context(), second)
	if refused := wantError[*job.BusinessKeyError](t, err); refused.Holder != "first" {
		t.Errorf("holder %q", refused.Holder)
	}
	if _, err := w.Repo.Find(t.Context(), tenant, "second"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("the key was consumed: %v", err)
	}
	if !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
		t.Fatal("not finished")
	}
	accept(t, w, second)
}

func testBusinessOwnRepetition(t *testing.T, w World) {
	for _, policy := range []job.ConflictPolicy{job.ConflictReturn, job.ConflictReject} {
		key := "key " + string(policy)
		s := submission(w, key, `{}`, withBusinessKey(key, policy))
		accept(t, w, s)
		receipt, err := w.Repo.Accept(t.Context(), submission(w, key, `{}`, withBusinessKey(key, policy)))
		if err != nil || receipt.Alias || receipt.Record.Fresh || !equalResponse(receipt.Record.Response, s.Response) {
			t.Errorf("%s: %+v, %v", policy, receipt, err)
		}
	}
}

func testBusinessFree(t *testing.T, w World) {
	for i, status := range []job.Status{job.Succeeded, job.Failed, job.Cancelled} {
		accept(t, w, submission(w, fmt.Sprint("k", i), `{}`, withBusinessKey("order 1", job.ConflictReject)))
		e := succeed(claim(t, w, "w", lease).Lease)
		e.Status, e.Attempt = status, job.AttemptFailed
		if !finish(t, w, e) {
			t.Fatalf("%s: not finished", status)
		}
	}
	accept(t, w, submission(w, "last", `{}`, withBusinessKey("order 1", job.ConflictReject)))
}

func testRecordOutlives(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	e := succeed(claim(t, w, "w", lease).Lease)
	e.Keep = -time.Minute // retention is over, and nothing has purged yet
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	receipt, err := w.Repo.Accept(t.Context(), submission(w, "k", `{}`))
	if err != nil || receipt.Record.Fresh || receipt.Record.State != idempotency.Retired {
		t.Errorf("a late retry got %+v, %v", receipt.Record, err)
	}
}

func testBusinessScope(t *testing.T, w World) {
	accept(t, w, submission(w, "a", `{}`, withBusinessKey("order 1", job.ConflictReject)))
	accept(t, w, submission(w, "b", `{}`, withBusinessKey("order 2", job.ConflictReject)))
	accept(t, w, submission(w, "c", `{}`, ofType("refund"), withBusinessKey("order 1", job.ConflictReject)))
	// No business key is not one that all share.
	accept(t, w, submission(w, "d", `{}`))
	accept(t, w, submission(w, "e", `{}`))
}

func testBatchDuplicates(t *testing.T, w World) {
	accept(t, w, submission(w, "old", `{}`))
	batch := []job.Submission{
		submission(w, "z", `{"n":1}`),
		submission(w, "old", `{}`),
		submission(w, "z", `{"n":1}`),
		submission(w, "b1", `{}`, withBusinessKey("order", job.ConflictReturn)),
		submission(w, "a", `{}`),
		submission(w, "b2", `{}`, withBusinessKey("order", job.ConflictReturn)),
		submission(w, "b3", `{}`, withBusinessKey("order", job.ConflictReject)),
		submission(w, "b1", `{}`, withBusinessKey("order", job.ConflictReturn)),
	}
	receipts, errs := w.Repo.AcceptAll(t.Context(), batch)
	fresh, alias := map[idempotency.Key]int{}, 0
	for i, s := range batch {
		if s.Request.Key == "b3" {
			_ = wantError[*job.BusinessKeyError](t, errs[i])
			continue
		}
		if errs[i] != nil {
			t.Fatalf("%d: %v", i, errs[i])
		}
		if receipts[i].Record.Fresh {
			fresh[s.Request.Key]++
		}
		if receipts[i].Alias {
			alias++
		}
	}
	if fmt.Sprint(fresh) != "map[a:1 b1:1 b2:1 z:1]" || alias != 1 {
		t.Errorf("fresh %v, %d aliases", fresh, alias)
	}
	if receipts[0].Job.ID != receipts[2].Job.ID || receipts[5].Job.ID != receipts[3].Job.ID {
		t.Error("duplicates of the batch have jobs of their own")
	}
	if n := count(t, w, `select count(*) from jobs`); n != 4 {
		t.Errorf("%d jobs, want old, z, a and b1", n)
	}
}

func testBatchNeighbours(t *testing.T, w World) {
	var batch []job.Submission
	for i := range 9 {
		batch = append(batch, submission(w, fmt.Sprint("k", i), `{}`))
	}
	batch[4].Job.Status = "nonsense" // the schema refuses it
	receipts, errs := w.Repo.AcceptAll(t.Context(), batch)
	for i := range batch {
		if bad := i == 4; (errs[i] != nil) != bad || receipts[i].Record.Fresh == bad {
			t.Errorf("%d: %+v, %v", i, receipts[i].Record.State, errs[i])
		}
	}
	if _, err := w.Repo.Find(t.Context(), tenant, "k4"); !errors.Is(err, job.ErrNotFound) {
		t.Errorf("the bad one left a record: %v", err)
	}
}

func testBatchEmpty(t *testing.T, w World) {
	receipts, errs := w.Repo.AcceptAll(t.Context(), nil)
	if len(receipts) != 0 || len(errs) != 0 {
		t.Errorf("%v, %v", receipts, errs)
	}
}

func testCorrupt(t *testing.T, w World) {
	for i, change := range []string{
		`update idempotency_keys set fingerprint = substr(fingerprint, 2)`,
		`update idempotency_keys set response_headers = substr(response_headers, 2)`,
	} {
		key := fmt.Sprint("k", i)
		accept(t, w, submission(w, key, `{}`))
		execute(t, w, change+` where key = $1`, key)
		if receipt, err := w.Repo.Find(t.Context(), tenant, idempotency.Key(key)); err == nil || errors.Is(err, job.ErrNotFound) {
			t.Errorf("find: %+v, %v", receipt, err)
		}
		if receipt, err := w.Repo.Accept(t.Context(), submission(w, key, `{}`)); err == nil {
			t.Errorf("accept: %+v", receipt)
		}
	}
}
