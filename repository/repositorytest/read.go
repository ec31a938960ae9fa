package repositorytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

var reading = cases{
	"Row91 BR-34 keys that are not there":             testFindNothing,
	"Row57 Row92 a job past its retention is retired": testFindRetired,
	"a job that is gone before its record is retired": testFindGone,
	"Row111 BR-41 pages neither skip nor repeat":      testListPages,
	"Row111 filters":                                        testListFilters,
	"BR-42 a page counts jobs, not attempts":                testListAttempts,
	"lists have no payload and no result":                   testListLean,
	"versions of live, finished and unknown jobs":           testVersions,
	"the clock is the database's and keeps to milliseconds": testClock,
	"the schema is checked":                                 testSchema,
}

func testFindNothing(t *testing.T, w World) {
	for _, key := range []idempotency.Key{"unknown", "", "a\x00b", "a\xffb", "a%b"} {
		if _, err := w.Repo.Find(t.Context(), tenant, key); !errors.Is(err, job.ErrNotFound) {
			t.Errorf("%q: %v", key, err)
		}
	}
	for _, f := range []job.Filter{
		{Tenant: tenant, KeyPrefix: "\x00", Limit: 5}, {Tenant: tenant, BusinessKey: "\xff", Limit: 5}, {Tenant: "none", Limit: 5},
	} {
		if jobs, err := w.Repo.List(t.Context(), f); err != nil || len(jobs) != 0 {
			t.Errorf("%+v: %v, %v", f, jobs, err)
		}
	}
}

func testFindRetired(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{}`))
	e := succeed(claim(t, w, "w", lease).Lease)
	e.Keep = -time.Minute
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	receipt, err := w.Repo.Find(t.Context(), tenant, "k")
	if err != nil || receipt.Record.State != idempotency.Retired || receipt.Job.Status != job.Succeeded {
		t.Fatalf("%+v, %v", receipt, err)
	}
	if want := w.Repo.Clock().Now().Add(-time.Minute); !within(receipt.Record.ExpiresAt, want, 5*time.Second) {
		t.Errorf("expired at %v, want about %v", receipt.Record.ExpiresAt, want)
	}
}

func testFindGone(t *testing.T, w World) {
	s := submission(w, "k", `{}`)
	accept(t, w, s)
	execute(t, w, `delete from jobs where slot = $1 and id = $2`, int64(s.Job.Slot()), string(s.Job.ID))
	execute(t, w, `update idempotency_keys set final_state = 'failed' where key = 'k'`)
	receipt, err := w.Repo.Find(t.Context(), tenant, "k")
	if err != nil || receipt.Record.State != idempotency.Retired || receipt.Job.Status != job.Failed {
		t.Errorf("%+v, %v", receipt, err)
	}
}

// testListPages walks while jobs arrive, end and share their creation time.
func testListPages(t *testing.T, w World) {
	const jobs, page = 60, 7
	want := map[idempotency.Key]bool{}
	for _, j := range acceptN(t, w, jobs) {
		want[j.Key] = true
	}
	execute(t, w, `update jobs set created_at = (select min(created_at) from jobs)`)
	seen := map[idempotency.Key]int{}
	f := job.Filter{Tenant: tenant, Limit: page}
	for i := 0; ; i++ {
		list, err := w.Repo.List(t.Context(), f)
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range list {
			seen[j.Key]++
		}
		if len(list) < page {
			break
		}
		f.Before = list[page-1].ID
		accept(t, w, submission(w, fmt.Sprint("late", i), "{}"))
		if !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
			t.Fatal("not finished")
		}
	}
	for key := range want {
		if seen[key] != 1 {
			t.Errorf("%s was seen %d times", key, seen[key])
		}
	}
}

func testListFilters(t *testing.T, w World) {
	base := w.Repo.Clock().Now().Add(-time.Hour)
	at := func(minutes int) func(*job.Submission) {
		return func(s *job.Submission) {
			s.Job.CreatedAt = base.Add(time.Duration(minutes) * time.Minute)
			s.Job.ID = job.NewID(s.Job.CreatedAt, s.Job.ID.Slot())
		}
	}
	accept(t, w, submission(w, "done", `{}`, at(0)))
	if !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
		t.Fatal("not finished")
	}
	accept(t, w, submission(w, "a_1", `{}`, at(10)))
	accept(t, w, submission(w, "a%2", `{}`, at(20), ofType("refund")))
	accept(t, w, submission(w, "ab3", `{}`, at(30), withBusinessKey("order", job.ConflictReturn), at(30)))
	accept(t, w, submission(w, "later", `{}`, scheduledIn(time.Hour), at(40)))

	for name, c := range map[string]struct {
		filter job.Filter
		want   []idempotency.Key
	}{
		"all":            {job.Filter{}, []idempotency.Key{"later", "ab3", "a%2", "a_1", "done"}},
		"limit":          {job.Filter{Limit: 2}, []idempotency.Key{"later", "ab3"}},
		"pending":        {job.Filter{Status: job.Pending}, []idempotency.Key{"ab3", "a%2", "a_1"}},
		"scheduled":      {job.Filter{Status: job.Scheduled}, []idempotency.Key{"later"}},
		"succeeded":      {job.Filter{Status: job.Succeeded}, []idempotency.Key{"done"}},
		"failed":         {job.Filter{Status: job.Failed}, nil},
		"type":           {job.Filter{Type: "refund"}, []idempotency.Key{"a%2"}},
		"business key":   {job.Filter{BusinessKey: "order"}, []idempotency.Key{"ab3"}},
		"prefix":         {job.Filter{KeyPrefix: "a"}, []idempotency.Key{"ab3", "a%2", "a_1"}},
		"no wildcards %": {job.Filter{KeyPrefix: "a%"}, []idempotency.Key{"a%2"}},
		"no wildcards _": {job.Filter{KeyPrefix: "a_"}, []idempotency.Key{"a_1"}},
		"case counts":    {job.Filter{KeyPrefix: "A"}, nil},
		"after":          {job.Filter{CreatedAfter: base.Add(20 * time.Minute)}, []idempotency.Key{"later", "ab3"}},
		"before":         {job.Filter{CreatedBefore: base.Add(20 * time.Minute)}, []idempotency.Key{"a_1", "done"}},
		"between": {
			job.Filter{CreatedAfter: base, CreatedBefore: base.Add(21 * time.Minute)}, []idempotency.Key{"a%2", "a_1"},
		},
		"both": {job.Filter{Status: job.Pending, Type: kind, KeyPrefix: "ab"}, []idempotency.Key{"ab3"}},
	} {
		c.filter.Tenant = tenant
		if c.filter.Limit == 0 {
			c.filter.Limit = 50
		}
		list, err := w.Repo.List(t.Context(), c.filter)
		var got []idempotency.Key
		for _, j := range list {
			got = append(got, j.Key)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v (%v)", name, got, c.want, err)
		}
	}
}

func testListAttempts(t *testing.T, w World) {
	acceptN(t, w, 5)
	for range 3 {
		claimed, err := w.Repo.Claim(t.Context(), job.Claiming{Type: kind, Max: 5, Worker: "w", Lease: lease})
		if err != nil || len(claimed) != 5 {
			t.Fatalf("%d claimed, %v", len(claimed), err)
		}
		for _, c := range claimed {
			if !requeue(t, w, retry(c.Lease, 0)) {
				t.Fatal("not requeued")
			}
		}
		promote(t, w, 10)
	}
	list, err := w.Repo.List(t.Context(), job.Filter{Tenant: tenant, Limit: 3})
	if err != nil || len(list) != 3 || list[0].ID == list[1].ID || list[0].Attempts != 3 || list[0].LastError == nil {
		t.Errorf("%+v, %v", list, err)
	}
}

func testListLean(t *testing.T, w World) {
	accept(t, w, submission(w, "k", `{"big":"payload"}`))
	e := succeed(claim(t, w, "w", lease).Lease)
	e.Result = &job.Result{Body: []byte("x"), MediaType: "text/plain"}
	if !finish(t, w, e) {
		t.Fatal("not finished")
	}
	list, err := w.Repo.List(t.Context(), job.Filter{Tenant: tenant, Limit: 3})
	if err != nil || len(list) != 1 || list[0].Payload != nil || list[0].Result != nil || list[0].FinishedAt.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
}

func testVersions(t *testing.T, w World) {
	jobs := acceptN(t, w, 2)
	if !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
		t.Fatal("not finished")
	}
	unknown := job.NewID(w.Repo.Clock().Now(), 3)
	versions, err := w.Repo.Versions(t.Context(), []job.ID{jobs[0].ID, jobs[1].ID, unknown})
	want := map[job.ID]job.Version{
		jobs[0].ID: {Number: 3, Status: job.Succeeded}, jobs[1].ID: {Number: 1, Status: job.Pending},
	}
	if err != nil || fmt.Sprint(versions) != fmt.Sprint(want) {
		t.Errorf("%v, want %v (%v)", versions, want, err)
	}
	if versions, err = w.Repo.Versions(t.Context(), nil); err != nil || len(versions) != 0 {
		t.Errorf("of none: %v, %v", versions, err)
	}
}

func testClock(t *testing.T, w World) {
	if err := w.Repo.Clock().Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := w.Repo.Clock().Now()
	if now.Location() != time.UTC || now.Nanosecond()%int(time.Millisecond) != 0 {
		t.Errorf("now is %v", now)
	}
	accept(t, w, submission(w, "k", `{}`))
	if c := claim(t, w, "w", lease); !within(c.StartedAt, now, 5*time.Second) {
		t.Errorf("the database says %v, the clock %v", c.StartedAt, now)
	}
}

func testSchema(t *testing.T, w World) {
	for _, call := range []func(context.Context) error{w.Repo.CheckSchema, w.Repo.Ping, w.Repo.Migrate} {
		if err := patiently(func() error { return call(t.Context()) }); err != nil {
			t.Fatal(err)
		}
	}
	steps, err := w.Repo.Migrations(t.Context())
	if err != nil || len(steps) == 0 || steps[0].Version != 1 || steps[0].AppliedAt.IsZero() {
		t.Errorf("migrations: %+v, %v", steps, err)
	}
	execute(t, w, `update meta set value = '128' where name = 'slots'`)
	if err := w.Repo.CheckSchema(t.Context()); err == nil {
		t.Error("a database with other slots passes")
	}
}
