package repository

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/migrations"
)

// Repository is the database. It is safe for concurrent use.
type Repository struct {
	engine    engine
	clock     *Clock
	retention retention
	process   string  // begins the owner tokens of this process
	beginning running // keys that Begin is at work on
	running   running // keys whose requests run in transactions
	round     round   // of Unblock
	turns     *turns  // of Claim
	together
}

var (
	_ job.Acceptor = (*Repository)(nil)
	_ job.Bulk     = (*Repository)(nil)
	_ job.Reader   = (*Repository)(nil)
	_ job.Leases   = (*Repository)(nil)
)

// Options say how a process uses the database.
type Options struct {
	// Slots is how many jobs the process runs at once; 0: it only accepts.
	Slots int
	// MaxConns is how many connections to Postgres the process may open; 0
	// means 24. Fewer than 4 are refused. SQLite does not use it.
	MaxConns int
	// Queue is how many submissions may wait for their statement; 0 means 2000.
	// Those that find no room fail with job.ErrQueueFull.
	Queue int
	// Exclusive takes the lock file of a SQLite database (FILE.lock) until
	// Close or the end of the process: one gateway alone may run on a file.
	// Postgres does not use it.
	Exclusive bool
	// Existing creates no SQLite file: where there is none the error is
	// fs.ErrNotExist. Postgres does not use it.
	Existing bool
	// AsIs opens a SQLite file that is there as it is: as with Existing it is not
	// created, and its journal stays what it is.
	// Postgres does not use it.
	AsIs bool
	// Tombstone is how long an expired key stays consumed; 0 means 90 days, less
	// than that not at all.
	Tombstone time.Duration
	// AfterExpiry takes a request with an expired key for a first one, tombstone
	// or not, where the request itself does not say (Accept, Do).
	AfterExpiry bool
	// ResultRetention is how long after a job's end its result is kept; 0: as
	// long as the job. It holds for jobs that end from then on.
	ResultRetention time.Duration
}

// engine is what Postgres and SQLite do in different ways. Its methods return
// the errors of their driver; Repository turns them into the domain's.
type engine interface {
	name() migrations.Engine
	classify(err error) failure
	placeholder(n int) string
	reads() *pool
	// probe asks whether writes are taken, and writes nothing.
	probe(ctx context.Context) error
	// migrator opens a pool for migrations, which may take long.
	migrator() (*sql.DB, error)
	close() error
	// exec runs one statement that changes rows and tells how many those were.
	exec(ctx context.Context, query string, args ...any) (int64, error)

	// flushes is how many statements of one kind, for many callers each, may be on
	// their way at once.
	flushes() (writes, reads int)
	// acceptAll answers submissions, except for those that are locked. acceptAlone
	// waits for what somebody holds, and answers in any case.
	acceptAll(ctx context.Context, r *Repository, answers []answer)
	acceptAlone(ctx context.Context, r *Repository, a *answer)
	// findAll reads the records of keys, nil for those that have none.
	findAll(ctx context.Context, keys []recordKey) ([]*recordRow, error)
	versions(ctx context.Context, ids []job.ID) ([]versionRow, error)

	// claim takes jobs of the tenants whose turn it is; claimIn does so in a
	// transaction, and limits are the statements that make it one within a limit.
	claim(ctx context.Context, c job.Claiming, turn turn) ([]claimRow, error)
	claimIn(ctx context.Context, t transaction, c job.Claiming, turn turn) ([]claimRow, error)
	limits() *limitStatements
	extend(ctx context.Context, held []job.Lease, lease time.Duration) (map[job.ID]job.Kept, error)
	// finish and requeue wait for a row that somebody holds only for a moment,
	// unless they are patient.
	finish(ctx context.Context, endings []ending, patient bool) ([]job.Application, error)
	requeue(ctx context.Context, requeues []requeue, patient bool) ([]job.Application, error)
	// settled finds what became of decisions that a statement did not apply.
	settled(ctx context.Context, wanted []settlement) ([]job.Application, error)
	promote(ctx context.Context, limit int) (types []job.Type, next time.Duration, err error)
	expired(ctx context.Context, worker string, limit int) ([]jobRow, error)
	overdue(ctx context.Context, limit int) ([]jobRow, error)
	requestCancel(ctx context.Context, lease job.Lease) (bool, error)
	// queues walks the business keys that jobs wait for, from the one after a
	// given one on; release lets those jobs go whose key nobody holds.
	queues(ctx context.Context, after queueRow, keys int) ([]queueRow, error)
	release(ctx context.Context, first []queueRow) ([]typeRow, error)

	// begin opens the transaction of an attempt, finishTx ends the job in it,
	// and outcome finds out what became of a commit that was not answered.
	begin(ctx context.Context) (*sql.Tx, error)
	// holdOperation takes an operation in it, and waits no longer than a lock may take.
	finishTx(ctx context.Context, tx *sql.Tx, e ending) (bool, error)
	outcome(ctx context.Context, e ending) (bool, error)
	holdOperation(ctx context.Context, tx *sql.Tx, args ...any) (int64, error)

	// clientTx, leaseTx and settleTx run a short transaction with statements that are
	// prepared before it begins, on the connections for what clients ask, for what
	// moves jobs, and for ends of attempts (see finish); transact repeats it. finishIn
	// ends jobs in one.
	clientTx(ctx context.Context, statements []string, do func(context.Context, transaction) error) error
	leaseTx(ctx context.Context, statements []string, do func(context.Context, transaction) error) error
	settleTx(ctx context.Context, patient bool, statements []string, do func(context.Context, transaction) error) error
	finishStatements() []string
	finishIn(ctx context.Context, t transaction, endings []ending) (applied []bool, err error)
	// followIn accepts what follows the jobs that end in the transaction, and
	// attemptTx is the transaction of an attempt for it.
	followStatements() []string
	followIn(ctx context.Context, t transaction, follow []job.Submission) error
	attemptTx(tx *sql.Tx) transaction
	// record stores events, once for each id.
	record(ctx context.Context, events []eventRow) error

	// records are the statements about records of requests without a job, and
	// outlived reports an owner whose process cannot be alive any more.
	records() *recordStatements
	outlived(owner, process string) bool
	// beginRecord opens a transaction that claims a key by an open row, on a
	// connection that is waited for no longer than the lock timeout; done ends it
	// in any case. openRecord opens the row and finishRecord fills it.
	beginRecord(ctx context.Context) (tx *sql.Tx, done func(), err error)
	openRecord(ctx context.Context, tx *sql.Tx, args ...any) (int64, error)
	finishRecord(ctx context.Context, tx *sql.Tx, args ...any) (int64, error)

	reap(ctx context.Context, limit int, tombstone time.Duration) (job.Reaped, error)
}

// Open prepares the use of the database at url: sqlite:PATH, or postgres://…
// (or postgresql://…) in the form of libpq. A Postgres database need not be
// reachable yet. A SQLite file is created if there is none.
func Open(ctx context.Context, url string, o Options) (*Repository, error) {
	e, err := openEngine(ctx, url, o)
	if err != nil {
		return nil, fmt.Errorf("repository: %w", err)
	}
	r := &Repository{engine: e, retention: o.retention(), process: randomHex(), turns: newTurns()}
	r.clock = &Clock{r: r}
	r.putTogether(cmp.Or(o.Queue, defaultQueue))
	return r, nil
}

func openEngine(ctx context.Context, url string, o Options) (engine, error) {
	if path, ok := strings.CutPrefix(url, "sqlite:"); ok {
		return openSQLite(ctx, path, o)
	}
	if strings.HasPrefix(url, "postgres://") || strings.HasPrefix(url, "postgresql://") {
		return openPostgres(url, o)
	}
	// The URL is not shown: it may hold a password.
	return nil, errors.New("database URL must begin with sqlite: or postgres://")
}

// Close closes all connections and gives the lock file back.
func (r *Repository) Close() error { return r.fail("close", r.engine.close()) }

// Engine is "postgres" or "sqlite".
func (r *Repository) Engine() string { return string(r.engine.name()) }

// Clock is the database's time.
func (r *Repository) Clock() *Clock { return r.clock }

// Placeholder writes the n-th parameter of a statement, counted from 1.
func (r *Repository) Placeholder(n int) string { return r.engine.placeholder(n) }

// Migrate brings the schema up. Any number of processes may call it at once.
func (r *Repository) Migrate(ctx context.Context) error {
	return r.migrating(ctx, "migrate", func(db *sql.DB) error {
		return migrations.Up(ctx, db, r.engine.name())
	})
}

// Migrations lists the steps of the schema, applied and pending.
func (r *Repository) Migrations(ctx context.Context) ([]migrations.Migration, error) {
	var list []migrations.Migration
	err := r.migrating(ctx, "list migrations", func(db *sql.DB) (err error) {
		list, err = migrations.Status(ctx, db, r.engine.name())
		return err
	})
	return list, err
}

func (r *Repository) migrating(ctx context.Context, doing string, do func(*sql.DB) error) error {
	db, err := r.engine.migrator()
	if err != nil {
		return r.fail(doing, err)
	}
	return r.fail(doing, errors.Join(do(db), db.Close()))
}

// probeTimeout bounds what a readiness probe waits for: it must answer within
// a second, whatever the database does (BR-76).
const probeTimeout = 800 * time.Millisecond

// Ping reports whether the database answers.
func (r *Repository) Ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return r.fail("ping", r.engine.reads().ping(ctx))
}

// Probe is Ping for readiness: a standby answers, and takes no writes. That a disk is
// full, or a file may only be read, shows when something is written.
func (r *Repository) Probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return r.fail("probe", r.engine.probe(ctx))
}

// agreed is what the database must say of itself for this program to read its
// rows as they were written.
var agreed = map[string]string{"slots": fmt.Sprint(job.Slots), "slot_hash": "sha256-32:v1"}

const installationSQL = `select name, value from meta where name = 'installation'`

// Installation tells this database from every other one: a copy or a restored
// backup of it has the same. It is "" before the schema is there.
func (r *Repository) Installation(ctx context.Context) (string, error) {
	if err := r.CheckSchema(ctx); err != nil {
		if errors.Is(err, migrations.ErrMissing) {
			return "", nil
		}
		return "", err
	}
	rows, err := collect[metaRow](ctx, r.engine.reads(), installationSQL)
	if err != nil || len(rows) == 0 {
		return "", r.fail("read the installation", err)
	}
	return rows[0].Value, nil
}

const metaSQL = `select name, value from meta where name in ('slots', 'slot_hash')`

type metaRow struct {
	Name  string `db:"name"`
	Value string `db:"value"`
}

// CheckSchema reports migrations.ErrMissing, or a database whose rows are laid
// out by other rules than this program's.
func (r *Repository) CheckSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := migrations.Check(ctx, r.engine.reads().db, r.engine.name()); err != nil {
		return r.fail("check schema", err)
	}
	rows, err := collect[metaRow](ctx, r.engine.reads(), metaSQL)
	if err != nil {
		return r.fail("check schema", err)
	}
	found := map[string]string{}
	for _, m := range rows {
		found[m.Name] = m.Value
	}
	for name, want := range agreed {
		if found[name] != want {
			return fmt.Errorf("repository: check schema: meta says %s = %q, this program needs %q", name, found[name], want)
		}
	}
	return nil
}
