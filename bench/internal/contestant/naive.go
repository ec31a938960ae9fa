package contestant

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"fmt"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq" // the driver "postgres"
)

// NaiveSchema is the one table of the naive handler: key, response and job in a
// row, with the index that a claim would need.
const NaiveSchema = `
create table if not exists jobs (
  id          bigint generated always as identity primary key,
  key         text        not null unique,
  fingerprint bytea       not null,
  state       text        not null default 'pending',
  payload     bytea       not null,
  response    bytea       not null,
  attempts    int         not null default 0,
  run_at      timestamptz not null default now(),
  created_at  timestamptz not null default now()
);
create index if not exists jobs_pending on jobs (run_at, id) where state = 'pending'`

const (
	naiveInsertSQL = `insert into jobs (key, fingerprint, payload, response) values ($1, $2, $3, $4) on conflict (key) do nothing`
	naiveFindSQL   = `select fingerprint, response from jobs where key = $1`
)

// naive is the handler that people write: one insert that does nothing where the
// key is known, and then a look at what is stored.
type naive struct {
	insert func(ctx context.Context, key string, fingerprint, payload, response []byte) (sql.Result, error)
	find   func(ctx context.Context, found *naiveRow, key string) error
}

type naiveRow struct {
	Fingerprint []byte `db:"fingerprint"`
	Response    []byte `db:"response"`
}

func openNaive(ctx context.Context, o Options) (*sqlx.DB, error) {
	db, err := sqlx.ConnectContext(ctx, "postgres", o.Database)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	db.SetMaxOpenConns(Connections)
	db.SetMaxIdleConns(Connections)
	if _, err := db.ExecContext(ctx, NaiveSchema); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return db, nil
}

// startNaive leaves its statements to the driver, which prepares each anew.
func startNaive(ctx context.Context, o Options, router chi.Router) (func(), error) {
	db, err := openNaive(ctx, o)
	if err != nil {
		return nil, err
	}
	n := naive{
		insert: func(ctx context.Context, key string, fingerprint, payload, response []byte) (sql.Result, error) {
			return db.ExecContext(ctx, naiveInsertSQL, key, fingerprint, payload, response)
		},
		find: func(ctx context.Context, found *naiveRow, key string) error {
			return db.GetContext(ctx, found, naiveFindSQL, key)
		},
	}
	router.Post("/jobs", n.submit)
	return func() { _ = db.Close() }, nil
}

// startPrepared is the same with statements that are prepared once.
func startPrepared(ctx context.Context, o Options, router chi.Router) (func(), error) {
	db, err := openNaive(ctx, o)
	if err != nil {
		return nil, err
	}
	insert, err := db.PreparexContext(ctx, naiveInsertSQL)
	if err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	find, err := db.PreparexContext(ctx, naiveFindSQL)
	if err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	n := naive{
		insert: func(ctx context.Context, key string, fingerprint, payload, response []byte) (sql.Result, error) {
			return insert.ExecContext(ctx, key, fingerprint, payload, response)
		},
		find: func(ctx context.Context, found *naiveRow, key string) error { return find.GetContext(ctx, found, key) },
	}
	router.Post("/jobs", n.submit)
	return func() { _ = errors.Join(insert.Close(), find.Close(), db.Close()) }, nil
}

func (n naive) submit(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key")
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	fingerprint := sha256.Sum256(body)
	response := accepted(key)
	result, err := n.insert(r.Context(), key, fingerprint[:], body, response)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if inserted, err := result.RowsAffected(); err == nil && inserted == 1 {
		answer(w, http.StatusAccepted, response)
		return
	}
	n.replay(w, r, key, fingerprint)
}

func (n naive) replay(w http.ResponseWriter, r *http.Request, key string, fingerprint [sha256.Size]byte) {
	var found naiveRow
	if err := n.find(r.Context(), &found, key); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if string(found.Fingerprint) != string(fingerprint[:]) {
		http.Error(w, "another request had this key", http.StatusUnprocessableEntity)
		return
	}
	answer(w, http.StatusAccepted, found.Response)
}
