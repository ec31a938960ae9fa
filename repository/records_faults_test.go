package repository_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/repository"
)

// TestFailure_C9_AnswersOfClaimsLost: whoever has written finds what it wrote,
// and does not take itself for a rival.
func TestFailure_C9_AnswersOfClaimsLost(t *testing.T) {
	t.Parallel()
	p, r, db := proxied(t)
	s := r.Records()
	lose := func(lost int, do func() error) error {
		p.rule(nil, answers(lost, ""))
		defer p.rule(nil, nil)
		return do()
	}
	var c idempotency.Claim
	err := lose(1, func() error {
		claim, rec, ok, err := s.Begin(t.Context(), keyed("k"), idempotency.Beginning{Lease: time.Hour})
		if c = claim; err == nil && !ok {
			t.Errorf("the owner met its own record: %+v", rec)
		}
		return err
	})
	if err != nil || c.Owner == "" {
		t.Fatalf("begin: %+v, %v", c, err)
	}
	resp := idempotency.Response{Status: 201, Body: []byte("done")}
	if err := lose(1, func() error { return s.Extend(t.Context(), c, time.Hour) }); err != nil {
		t.Errorf("extend: %v", err)
	}
	if err := lose(1, func() error { return s.Finish(t.Context(), c, resp, time.Hour) }); err != nil {
		t.Errorf("finish: %v", err)
	}
	if n := count(t, db, `select count(*) from idempotency_keys where state = 'completed' and key = 'k'`); n != 1 {
		t.Errorf("%d records of the key are completed", n)
	}
	released, _ := begun(t, s, "released", time.Hour)
	if err := lose(1, func() error { return s.Release(t.Context(), released) }); err != nil {
		t.Errorf("release: %v", err)
	}
	interrupted, _ := begun(t, s, "interrupted", time.Hour)
	if err := lose(1, func() error { return s.Interrupt(t.Context(), interrupted, time.Hour) }); err != nil {
		t.Errorf("interrupt: %v", err)
	}
	often, _ := begun(t, s, "often", time.Hour)
	err = lose(1000, func() error { return s.Finish(t.Context(), often, resp, time.Hour) })
	if !errors.Is(err, idempotency.ErrOutcomeUnknown) || errors.Is(err, idempotency.ErrUnavailable) {
		t.Errorf("finish with all answers lost: %v", err)
	}
}

// TestContract_Row45_CommitLost: nobody knows whether the transaction was
// committed; the same request again tells.
func TestContract_Row45_CommitLost(t *testing.T) {
	t.Parallel()
	p, r, db := proxied(t)
	if err := r.Setup(t.Context(), `create table effects (name text)`); err != nil {
		t.Fatal(err)
	}
	run := func(ctx context.Context, tx *sql.Tx) (idempotency.Response, error) {
		_, err := tx.ExecContext(ctx, `insert into effects (name) values ('a')`)
		p.rule(nil, answers(1, "COMMIT"))
		return idempotency.Response{Status: 201}, err
	}
	_, err := r.Records().Do(t.Context(), keyed("k"), time.Hour, run)
	p.rule(nil, nil)
	if !errors.Is(err, idempotency.ErrOutcomeUnknown) {
		t.Fatalf("do: %v", err)
	}
	rec, err := r.Records().Do(t.Context(), keyed("k"), time.Hour, run)
	if err != nil || rec.Fresh || rec.Response.Status != 201 {
		t.Errorf("the same again: %+v, %v", rec, err)
	}
	if n := count(t, db, `select count(*) from effects`); n != 1 {
		t.Errorf("%d effects", n)
	}
}

// TestPlans_Reaper: the reaper finds what is due through indexes, however much
// is kept, also with plans that are made without parameters.
func TestPlans_Reaper(t *testing.T) {
	t.Parallel()
	_, r, db := proxied(t)
	for _, statement := range []string{
		`insert into idempotency_keys (slot, tenant, key, fingerprint, state, created_at, expires_at)
		 select n % 256, 'acme', n, '\x01', case when n % 2 = 0 then 'completed' else 'retired' end, now(), now() + n * interval '1 s'
		 from generate_series(1, 20000) n`,
		`analyze idempotency_keys`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for name, statement := range repository.ReapStatements {
		types, args := "bigint", "(10)"
		if strings.Contains(statement, "$2") {
			types, args = "bigint, bigint", "(10, 1000)"
		}
		plan := explain(t, repository.Leases(r), fmt.Sprintf("%s (%s)", name, types), statement, args)
		if strings.Contains(plan, "Seq Scan") || !strings.Contains(plan, "expir") {
			t.Errorf("%s:\n%s", name, plan)
		}
	}
}
