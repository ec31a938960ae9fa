package repository

import (
	"context"
	"database/sql"
	"sync/atomic"

	"github.com/lib/pq"

	"github.com/sekali/sekali/job"
)

// What the tests of package repository_test see beside the exported names.
const (
	ClaimSQL  = claimSQL
	ExtendSQL = extendSQL
	ListSQL   = listSQL

	AcceptSQL        = acceptSQL
	FinishSQL        = finishSQL
	QueuesSQL        = queuesSQL
	UnblockSQL       = unblockSQL
	OverdueSQL       = overdueSQL
	RequestCancelSQL = requestCancelSQL

	ClaimOneFileSQL = claimOneFileSQL
	HolderSQL       = holderSQL
	QueuesFileSQL   = queuesFileSQL
	UnblockOneSQL   = unblockOneSQL
	OverdueFileSQL  = overdueFileSQL

	RunningSQL   = runningSQL
	WaitingSQL   = waitingSQL
	HoldersSQL   = holdersSQL
	AttemptsSQL  = attemptsSQL
	EventsSQL    = eventsSQL
	OperationSQL = operationSQL
)

// ReapStatements are what the reaper runs on Postgres.
var ReapStatements = map[string]string{
	"jobs": reapJobsSQL, "responses": reapResponsesSQL, "tombstones": reapTombstonesSQL, "claims": reapClaimsSQL, "results": reapResultsSQL,
}

// OpenPlain opens a pool of one connection as lib/pq gives it, OpenWrapped as
// this package does.
func OpenPlain(url string) (*sql.DB, error) {
	c, err := pq.NewConnector(url)
	if err != nil {
		return nil, err
	}
	return one(sql.OpenDB(c)), nil
}

// OpenWrapped is OpenPlain with the wrapper.
func OpenWrapped(url string) (*sql.DB, error) {
	config, err := pq.NewConfig(url)
	if err != nil {
		return nil, err
	}
	return one(sql.OpenDB(&connector{config: config, closing: new(atomic.Bool)})), nil
}

func one(db *sql.DB) *sql.DB {
	db.SetMaxOpenConns(1)
	return db
}

// Reads is the pool for accepts and reads.
func Reads(r *Repository) *sql.DB { return r.engine.reads().db }

// Leases is the pool for what moves jobs.
func Leases(r *Repository) *sql.DB { return r.engine.(*postgres).leases.db }

// SSLMode is the mode that a URL ends up with.
func SSLMode(url string) (string, error) {
	p, err := openPostgres(url, Options{})
	if err != nil {
		return "", err
	}
	return string(p.config.SSLMode), p.close()
}

// OverviewOf is the overview that counts no more waiting jobs than most.
func OverviewOf(ctx context.Context, r *Repository, most int) (job.Overview, error) {
	return r.overview(ctx, most)
}
