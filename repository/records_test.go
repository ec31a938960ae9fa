package repository_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/idempotency/storetest"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

var recordOptions = repository.Options{Slots: 8, MaxConns: 12, Tombstone: storetest.Tombstone}

// engines are the databases on which records are tested.
var engines = map[string]func(t *testing.T) (url, driver, dsn string){
	"postgres": func(t *testing.T) (string, string, string) {
		url := testenv.Postgres(t)
		return url, "postgres", url
	},
	"sqlite": func(t *testing.T) (string, string, string) {
		url := testenv.SQLite(t)
		return url, "sqlite", sqliteDSN(url)
	},
}

// onEngines runs a test on both.
func onEngines(t *testing.T, run func(t *testing.T, open func(t *testing.T) (*repository.Repository, *sql.DB))) {
	for name, place := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			run(t, func(t *testing.T) (*repository.Repository, *sql.DB) {
				url, driver, dsn := place(t)
				return migrated(t, url, recordOptions), beside(t, driver, dsn)
			})
		})
	}
}

func TestRecords(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open func(t *testing.T) (*repository.Repository, *sql.DB)) {
		storetest.Run(t, func(t *testing.T) idempotency.Store {
			r, _ := open(t)
			return r.Records()
		})
	})
}

func TestRecords_Tx(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open func(t *testing.T) (*repository.Repository, *sql.DB)) {
		storetest.RunTx(t, func(t *testing.T) storetest.TxWorld {
			r, db := open(t)
			if err := r.Setup(t.Context(), `create table effects (name text)`); err != nil {
				t.Fatal(err)
			}
			return storetest.TxWorld{Store: r.Records(), DB: db}
		})
	})
}

func TestContract_Row60_CorruptRecords(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]string{
		"fingerprint": `update idempotency_keys set fingerprint = substr(fingerprint, 2) where key = $1`,
		"headers":     `update idempotency_keys set response_headers = substr(response_headers, 2) where key = $1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEngines(t, func(t *testing.T, open func(t *testing.T) (*repository.Repository, *sql.DB)) {
				storetest.RunCorrupt(t, func(t *testing.T) (idempotency.Store, func(*testing.T, idempotency.Request)) {
					r, db := open(t)
					return r.Records(), func(t *testing.T, req idempotency.Request) {
						if _, err := db.ExecContext(t.Context(), damage, string(req.Key)); err != nil {
							t.Fatal(err)
						}
					}
				})
			})
		})
	}
}

func keyed(key string) idempotency.Request {
	return idempotency.Request{Tenant: "acme", Key: idempotency.Key(key), Fingerprint: idempotency.NewFingerprint("POST", "/charges", nil, "", nil)}
}

func begun(t *testing.T, s idempotency.Store, key string, lease time.Duration) (idempotency.Claim, bool) {
	t.Helper()
	c, rec, ok, err := s.Begin(t.Context(), keyed(key), idempotency.Beginning{Lease: lease, Takeover: true})
	if err != nil || !ok && rec.State != idempotency.InProgress {
		t.Fatalf("begin %s: %+v, %v", key, rec, err)
	}
	return c, ok
}

// TestContract_Row42_SQLiteRestart: one process has the file, so the claims of
// another one are those of a dead one.
func TestContract_Row42_SQLiteRestart(t *testing.T) {
	t.Parallel()
	url := testenv.SQLite(t)
	o := repository.Options{Exclusive: true}
	before, err := repository.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := before.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, ok := begun(t, before.Records(), "k", time.Hour)
	if !ok {
		t.Fatal("not claimed")
	}
	if _, ok := begun(t, before.Records(), "k", time.Hour); ok {
		t.Fatal("taken over within the process")
	}
	// Closing gives the file back, as the end of the process does.
	if err := before.Close(); err != nil {
		t.Fatal(err)
	}
	after := open(t, url, o)
	if rec, err := after.Records().Find(t.Context(), "acme", "k"); err != nil || rec.State != idempotency.InProgress || rec.RetryIn != 0 {
		t.Errorf("%+v, %v", rec, err)
	}
	if _, rec, ok, err := after.Records().Begin(t.Context(), keyed("k"), idempotency.Beginning{Lease: time.Hour}); err != nil || ok || rec.State != idempotency.Interrupted {
		t.Errorf("without takeover: %+v, %v, %v", rec, ok, err)
	}
	second, ok := begun(t, after.Records(), "k", time.Hour)
	if !ok || second.Attempt != 2 {
		t.Fatalf("claim %+v, %v", second, ok)
	}
	if err := after.Records().Finish(t.Context(), first, idempotency.Response{Status: 200}, time.Hour); !errors.Is(err, idempotency.ErrClaimLost) {
		t.Errorf("the dead one's end: %v", err)
	}
}

// TestRecords_SharedFile: without the lock file another process may be alive.
func TestRecords_SharedFile(t *testing.T) {
	t.Parallel()
	url := testenv.SQLite(t)
	one := migrated(t, url, repository.Options{})
	two := open(t, url, repository.Options{})
	if _, ok := begun(t, one.Records(), "k", time.Hour); !ok {
		t.Fatal("not claimed")
	}
	if _, ok := begun(t, two.Records(), "k", time.Hour); ok {
		t.Error("a live claim of another process was taken over")
	}
}

// TestContract_Row28_OneKeySpace: a key is a job's or a request's, never both.
func TestContract_Row28_OneKeySpace(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open func(t *testing.T) (*repository.Repository, *sql.DB)) {
		r, _ := open(t)
		s := submission(r, "job")
		if _, err := r.Accept(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		_, rec, ok, err := r.Records().Begin(t.Context(), keyed("job"), idempotency.Beginning{Lease: time.Hour, Takeover: true, AfterExpiry: true})
		if err != nil || ok || rec.State != idempotency.Completed || rec.Fingerprint != s.Request.Fingerprint {
			t.Errorf("a request with a job's key: %+v, %v, %v", rec, ok, err)
		}
		if _, ok := begun(t, r.Records(), "request", time.Hour); !ok {
			t.Fatal("not claimed")
		}
		receipt, err := r.Accept(t.Context(), submission(r, "request"))
		if err != nil || receipt.Record.Fresh || receipt.Record.State != idempotency.InProgress {
			t.Errorf("a job with a request's key: %+v, %v", receipt.Record, err)
		}
		if _, err := idempotency.Answer(receipt.Record, submission(r, "request").Request); !errors.As(err, new(*idempotency.MismatchError)) {
			t.Errorf("answer: %v", err)
		}
	})
}

// TestContract_Row47_RecordsUnavailable: both packages know the error.
func TestContract_Row47_RecordsUnavailable(t *testing.T) {
	t.Parallel()
	r := open(t, "postgres://nobody@127.0.0.1:1/none", repository.Options{})
	_, _, ok, err := r.Records().Begin(t.Context(), keyed("k"), idempotency.Beginning{Lease: time.Hour})
	if ok || !errors.Is(err, idempotency.ErrUnavailable) || !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("begin: %v, %v", ok, err)
	}
	if _, err := r.Records().Find(t.Context(), "acme", "k"); !errors.Is(err, idempotency.ErrUnavailable) {
		t.Errorf("find: %v", err)
	}
	if _, err := r.Records().Do(t.Context(), keyed("k"), time.Hour, nil); !errors.Is(err, idempotency.ErrUnavailable) {
		t.Errorf("do: %v", err)
	}
}

// TestContract_Row33_TxOfTwoProcesses: what the channels of one process do is
// done by the row between two.
func TestContract_Row33_TxOfTwoProcesses(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	one, two := migrated(t, url, recordOptions), open(t, url, recordOptions)
	running, end, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := one.Records().Do(t.Context(), keyed("k"), time.Hour, func(context.Context, *sql.Tx) (idempotency.Response, error) {
			close(running)
			<-end
			return idempotency.Response{Status: 201}, nil
		})
		done <- err
	}()
	<-running
	unwanted := func(context.Context, *sql.Tx) (idempotency.Response, error) {
		t.Error("the request ran twice")
		return idempotency.Response{}, nil
	}
	if _, err := two.Records().Do(t.Context(), keyed("k"), time.Hour, unwanted); !errors.As(err, new(*idempotency.InProgressError)) {
		t.Errorf("while the first one runs: %v", err)
	}
	second := make(chan idempotency.Record)
	go func() {
		var rec idempotency.Record
		err := patiently(func() (err error) {
			rec, err = two.Records().Do(t.Context(), keyed("k"), time.Hour, unwanted)
			return err
		})
		if err != nil {
			t.Errorf("at the end of the first one: %v", err)
		}
		second <- rec
	}()
	close(end)
	if err := <-done; err != nil {
		t.Error(err)
	}
	if rec := <-second; rec.Fresh || rec.Response.Status != 201 {
		t.Errorf("%+v", rec)
	}
}
