// Command embedded is a gateway of one's own: Sekali with an executor written
// in Go, whose writes are part of the transaction that marks the job succeeded.
//
//	go run ./examples/embedded
//	curl --json '{"type":"signup","payload":{"email":"ada@example.org"}}' \
//	     -H 'Idempotency-Key: signup-ada' 'http://127.0.0.1:8080/jobs'
package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/gateway"
	"github.com/sekali/sekali/job"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	cfg, err := gateway.Load("", os.Environ())
	if err != nil {
		return err
	}
	cfg.TxExecutors = map[string]executor.TxExecutor{"signup": executor.TxFunc(signup)}
	g, err := gateway.New(cfg)
	if err != nil {
		return err
	}
	return g.Run(ctx)
}

// signup adds a member. It runs again if the process dies half-way, and yet the
// member is there once: nothing of a failed attempt is kept.
func signup(ctx context.Context, tx *sql.Tx, c job.Claimed) (*job.Result, error) {
	var payload struct {
		Email string `json:"email"`
	}
	if err := json.Unmarshal(c.Payload, &payload); err != nil {
		return nil, &job.AttemptError{Code: "bad-payload", Detail: "the payload needs an email", Permanent: true, Err: err}
	}
	const table = `create table if not exists members (email text primary key, job text not null)`
	if _, err := tx.ExecContext(ctx, table); err != nil {
		return nil, err
	}
	const add = `insert into members (email, job) values ($1, $2) on conflict (email) do nothing`
	added, err := tx.ExecContext(ctx, add, payload.Email, string(c.ID))
	if err != nil {
		return nil, err
	}
	if n, err := added.RowsAffected(); err != nil || n == 0 {
		return nil, &job.AttemptError{Code: "member-exists", Detail: "another job added this member", Permanent: true, Err: err}
	}
	return executor.JSON(map[string]string{"member": payload.Email})
}
