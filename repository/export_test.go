package repository

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/lib/pq"

	"github.com/sekali/sekali/job"
)

// What the tests of package repository_test see beside the exported names.
const (
	ClaimNextSQL   = claimNextSQL
	ClaimInTurnSQL = claimInTurnSQL
	RoomSQL        = roomSQL
	ExtendSQL      = extendSQL
	ListSQL        = listSQL

	AcceptSQL        = acceptSQL
	FinishSQL        = finishSQL
	AcceptPlainSQL   = acceptPlainSQL
	FollowManySQL    = followManySQL
	RequeueSQL       = requeueSQL
	QueuesSQL        = queuesSQL
	UnblockSQL       = unblockSQL
	OverdueSQL       = overdueSQL
	RequestCancelSQL = requestCancelSQL

	ClaimOneFileSQL = claimOneFileSQL
	LastTenantSQL   = lastTenantSQL
	TenantBeforeSQL = tenantBeforeSQL
	RoomFileSQL     = roomFileSQL
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

// EndedBefore is how a caller waits for another one with its key.
var EndedBefore = endedBefore

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
	return one(sql.OpenDB(&connector{config: config, closing: new(atomic.Bool), keeps: new(atomic.Bool)})), nil
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

// How notices are written, and what becomes of the errors on their connection.
var (
	NoticeText    = noticeText
	ReadNotice    = readNotice
	NoticeFailure = func(err error) error { return wrapped("send a notice", err) }
)

// NoticesConfig is what lib/pq makes of the URL that the connection for notices uses.
func NoticesConfig(url string) (pq.Config, error) {
	p, err := openPostgres(url, Options{})
	if err != nil {
		return pq.Config{}, err
	}
	defer p.close()
	return pq.NewConfig(p.noticesURL)
}

// Forget lets the process take itself to be alone.
func Forget(n job.Notices) { n.(*notices).alone.Store(nil) }

// PartitionAt makes and drops partitions as they have to be at a time, and reports
// whether something was put off: because a lock was not free at once, or because it
// took too long.
func PartitionAt(ctx context.Context, r *Repository, now time.Time) (putOff bool, err error) {
	p := r.engine.(*postgres)
	list, err := collect[partition](ctx, p.leases, partitionsSQL)
	if err != nil {
		return false, err
	}
	before := p.upkeep.next.Swap(0)
	defer p.upkeep.next.Store(before)
	err = p.partitionAt(ctx, list, now)
	return p.upkeep.next.Load() != 0, err
}

// FindSQL and VersionsSQL look for jobs among unfinished and finished ones.
const (
	FindSQL     = findSQL
	VersionsSQL = versionsSQL
)
