package repositorytest

import (
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func testReapRecords(t *testing.T, w World) {
	s := w.Repo.Records()
	for _, key := range []string{"done", "unknown"} {
		c := begin(t, s, key, time.Hour)
		var err error
		if key == "done" {
			err = s.Finish(t.Context(), c, idempotency.Response{Status: 200, Body: []byte("done")}, expired)
		} else {
			err = s.Interrupt(t.Context(), c, expired)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := reap(t, w); n.Responses != 2 || n.Tombstones != 0 {
		t.Errorf("reaped %+v", n)
	}
	for _, key := range []idempotency.Key{"done", "unknown"} {
		rec, err := s.Find(t.Context(), tenant, key)
		if err != nil || rec.State != idempotency.Retired || !within(rec.ExpiresAt, w.Repo.Clock().Now().Add(expired), time.Minute) {
			t.Errorf("%s: %+v, %v", key, rec, err)
		}
	}
	if n := count(t, w, `select count(*) from idempotency_keys where response_body is not null`); n != 0 {
		t.Error("a tombstone holds a response")
	}
	w.age(t, time.Second)
	if n := reap(t, w); n.Tombstones != 2 {
		t.Errorf("reaped %+v", n)
	}
	begin(t, s, "done", time.Hour)
}

func testReapClaims(t *testing.T, w World) {
	s := w.Repo.Records()
	begin(t, s, "k", -time.Hour)
	w.age(t, time.Minute)
	if n := reap(t, w); n.Claims != 1 {
		t.Errorf("reaped %+v", n)
	}
	if _, err := s.Find(t.Context(), tenant, "k"); !errors.Is(err, idempotency.ErrNotFound) {
		t.Errorf("find: %v", err)
	}
}

// testResultKept uses a second repository, whose results are kept for a moment.
func testResultKept(t *testing.T, w World) {
	if j := end(t, w, "whole", keep); j.Result != nil {
		t.Fatal("a result before the end")
	}
	w.Repo = w.Brief()
	end(t, w, "k", keep)
	accept(t, w, submission(w, "none", `{}`))
	if !finish(t, w, succeed(claim(t, w, "w", lease).Lease)) {
		t.Fatal("not finished")
	}
	eventually(t, func() bool { return now(t, w, "k").Result == nil })
	check := func(when string) {
		j := now(t, w, "k")
		if j.Status != job.Succeeded || j.Result != nil || !within(j.ResultExpiredAt, w.Repo.Clock().Now(), time.Minute) {
			t.Errorf("%s: %+v", when, j)
		}
		for _, key := range []idempotency.Key{"whole", "none"} {
			if j := now(t, w, key); !j.ResultExpiredAt.IsZero() || (j.Result == nil) != (key == "none") {
				t.Errorf("%s, %s: %+v", when, key, j)
			}
		}
	}
	check("before reaping")
	if n := reap(t, w); n.Results != 1 {
		t.Errorf("reaped %+v", n)
	}
	check("after reaping")
	if n := count(t, w, `select count(*) from finished_jobs where result is not null`); n != 1 {
		t.Errorf("%d results are left", n)
	}
}
