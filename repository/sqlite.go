package repository

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	sqlitedriver "modernc.org/sqlite"

	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/migrations"
)

// sqlite is the engine on SQLite: one connection that writes and several that
// only read. A transaction that writes takes the write lock at its beginning, so
// that it waits there, and what it reads cannot change before it writes.
type sqlite struct {
	path     string
	settings string // of each connection
	writer   *pool
	reader   *pool
	lock     *os.File
	// worker is who claims through this repository. Its leases are never run
	// out: they end with this process.
	worker atomic.Pointer[string]
	page   page
}

const (
	sqliteReaders = 4
	// sqliteSettings hold for each connection. The journal is a WAL, so that
	// readers and the writer do not wait for each other; "full" makes a commit
	// durable before it is answered. Another process's lock is waited for as
	// long as a lock on Postgres is.
	sqliteSettings = "_busy_timeout=1000&_journal_mode=WAL&_synchronous=FULL&_foreign_keys=on"
	// writerSettings are for the one connection that writes. Keys and ids are spread
	// over their trees, so that a commit touches many pages: with 16 MiB of them in
	// memory few are read back, and with 32 MiB of journal each is copied into the file
	// once for many commits (docs/adr/0023).
	writerSettings = "&_txlock=immediate&_pragma=cache_size(-16384)&_pragma=wal_autocheckpoint(8192)"
	// asIsSettings open a file that must be there, and change nothing about it.
	asIsSettings = "_busy_timeout=1000&_foreign_keys=on&mode=rw"
	// extendPatience is how long a heartbeat waits for the write lock.
	extendPatience = time.Second
)

func openSQLite(ctx context.Context, path string, o Options) (*sqlite, error) {
	if path == "" || path[0] == ':' {
		return nil, errors.New("sqlite: needs the path of a file, as in sqlite:sekali.db")
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	// A link to the file is the file: both must find one lock.
	if target, err := filepath.EvalSymlinks(full); err == nil {
		full = target
	}
	s := &sqlite{path: full, settings: sqliteSettings}
	if o.AsIs {
		s.settings = asIsSettings
	}
	if o.AsIs || o.Existing {
		_, err = os.Stat(full)
	} else {
		err = createPrivate(full)
	}
	if err != nil {
		return nil, err
	}
	if o.Exclusive {
		if s.lock, err = takeLock(full); err != nil {
			return nil, err
		}
	}
	s.writer = newPool(s.connect(writerSettings), 1, leaseTimeout)
	s.reader = newPool(s.connect("&_query_only=on"), sqliteReaders, acceptTimeout)
	if err := s.writer.db.PingContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", full, err), s.close())
	}
	return s, nil
}

// createPrivate makes the file where it is missing, for its owner alone: it holds
// payloads, results and the hashes of tokens. SQLite gives the files beside it
// the same mode. A file that is there is not opened: closing it would end the
// locks that SQLite holds on it in this process.
func createPrivate(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.Close()
}

// ErrServed reports a file of SQLite that another gateway has.
var ErrServed = errors.New("another gateway is running on it")

var errLocked = errors.New("locked by another process")

// takeLock makes sure that one gateway alone serves the file. The lock belongs
// to the open file, so that it ends with the process, however that ends.
func takeLock(path string) (*os.File, error) {
	name := path + ".lock"
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	if err := lockFile(f); err != nil {
		_ = f.Close()
		if errors.Is(err, errLocked) {
			return nil, fmt.Errorf("%s: %w (it holds %s)", path, ErrServed, name)
		}
		return nil, fmt.Errorf("lock file %s: %w", name, err)
	}
	return f, nil
}

func (s *sqlite) connect(more string) *sql.DB {
	file := url.URL{Scheme: "file", Path: s.path, OmitHost: true, RawQuery: s.settings + more}
	return sql.OpenDB(sqliteConnector{file.String()})
}

// sqliteConnector opens connections that have the functions of our statements.
type sqliteConnector struct{ dsn string }

// Connect implements driver.Connector.
func (c sqliteConnector) Connect(context.Context) (driver.Conn, error) {
	return withFunctions().Open(c.dsn)
}

// Driver implements driver.Connector.
func (c sqliteConnector) Driver() driver.Driver { return withFunctions() }

// withFunctions is a driver of our own, so that nothing is registered for other
// users of SQLite in the process:
//
//	now()        the process's time, as it is stored
//	later(ms)    the time so many milliseconds from now
//	after(t, ms) the time so many milliseconds after t
//	until(t)     how many milliseconds it is until t; null of null
var withFunctions = sync.OnceValue(func() *sqlitedriver.Driver {
	d := &sqlitedriver.Driver{}
	d.MustRegisterScalarFunction("now", 0, func(*sqlitedriver.FunctionContext, []driver.Value) (driver.Value, error) {
		return stamp(processTime()), nil
	})
	d.MustRegisterScalarFunction("later", 1, func(_ *sqlitedriver.FunctionContext, args []driver.Value) (driver.Value, error) {
		ms, ok := args[0].(int64)
		if !ok {
			return nil, fmt.Errorf("later: milliseconds are a %T", args[0])
		}
		return stamp(processTime().Add(time.Duration(ms) * time.Millisecond)), nil
	})
	d.MustRegisterScalarFunction("after", 2, func(_ *sqlitedriver.FunctionContext, args []driver.Value) (driver.Value, error) {
		var from moment
		ms, ok := args[1].(int64)
		if err := from.Scan(args[0]); err != nil || !ok {
			return nil, fmt.Errorf("after: takes a time and milliseconds: %w", err)
		}
		return stamp(from.Add(time.Duration(ms) * time.Millisecond)), nil
	})
	d.MustRegisterScalarFunction("until", 1, func(_ *sqlitedriver.FunctionContext, args []driver.Value) (driver.Value, error) {
		var at moment
		if err := at.Scan(args[0]); err != nil || at.IsZero() {
			return nil, err
		}
		return at.Sub(processTime().Truncate(time.Millisecond)).Milliseconds(), nil
	})
	return d
})

func (s *sqlite) migrator() (*sql.DB, error) {
	db := s.connect("&_txlock=immediate")
	db.SetMaxOpenConns(1)
	return db, nil
}

func (s *sqlite) name() migrations.Engine  { return migrations.SQLite }
func (s *sqlite) placeholder(n int) string { return "?" + strconv.Itoa(n) }
func (s *sqlite) reads() *pool             { return s.reader }

func (s *sqlite) probe(ctx context.Context) error { return s.reader.ping(ctx) }

// flushes: one connection writes.
func (s *sqlite) flushes() (writes, reads int) { return 1, sqliteReaders }

func (s *sqlite) findAll(ctx context.Context, keys []recordKey) ([]*recordRow, error) {
	records := make([]*recordRow, len(keys))
	for i, k := range keys {
		rows, err := collect[recordRow](ctx, s.reader, findSQL, keyArgs(k.tenant, k.key)...)
		if err != nil {
			return nil, err
		}
		if len(rows) > 0 {
			records[i] = &rows[0]
		}
	}
	return records, nil
}

func (s *sqlite) close() error {
	err := errors.Join(s.reader.close(), s.writer.close())
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// The result codes of SQLite that mean something to us; the low byte is the
// class, the rest tells more.
const (
	codeError      = 1 // a statement that is wrong
	codeBusy       = 5
	codeLocked     = 6
	codeReadOnly   = 8
	codeInterrupt  = 9
	codeIOError    = 10
	codeFull       = 13
	codeCantOpen   = 14
	codeTooBig     = 18
	codeConstraint = 19
	codeMismatch   = 20
	codeRange      = 25

	codePrimaryKey = codeConstraint | 6<<8
	codeUnique     = codeConstraint | 8<<8
	codeRowID      = codeConstraint | 10<<8
)

func (s *sqlite) classify(err error) failure {
	var e *sqlitedriver.Error
	if !errors.As(err, &e) {
		return connectionFailure(err)
	}
	switch e.Code() {
	case codePrimaryKey, codeUnique, codeRowID:
		return unique
	}
	switch e.Code() & 0xff {
	case codeBusy, codeLocked:
		return busy
	case codeReadOnly, codeInterrupt, codeIOError, codeFull, codeCantOpen:
		return unavailable
	case codeError, codeTooBig, codeConstraint, codeMismatch, codeRange:
		return wrong
	}
	return other
}

// inTx runs do in a transaction that writes. The statements are prepared before
// it begins, because it holds the only connection.
func (s *sqlite) inTx(ctx context.Context, statements []string, do func(context.Context, *sql.Tx) error) error {
	ctx, cancel := s.writer.within(ctx)
	defer cancel()
	if err := s.writer.prepare(ctx, statements...); err != nil {
		return err
	}
	conn, err := s.writer.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	// Only the wait for the connection is bounded. Statements on the local file
	// are short, and the end of ctx would roll the whole transaction back.
	ctx = context.WithoutCancel(ctx)
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := do(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// change is changeIn for a transaction of the writer.
func (s *sqlite) change(ctx context.Context, tx *sql.Tx, query string, args ...any) (int64, error) {
	return changeIn(ctx, s.writer, tx, query, args...)
}

// rowsIn runs a prepared statement in the transaction and returns its rows.
func rowsIn[T any](ctx context.Context, s *sqlite, tx *sql.Tx, query string, args ...any) ([]T, error) {
	prepared, err := s.writer.in(ctx, tx, query)
	if err != nil {
		return nil, err
	}
	return scan[T](ctx, prepared, args...)
}

// oneVersionSQL looks into both tables in one snapshot.
const oneVersionSQL = `
select id, version, state from jobs where slot = $1 and id = $2
union all
select id, version, state from finished_jobs where slot = $1 and id = $2`

func (s *sqlite) versions(ctx context.Context, ids []job.ID) ([]versionRow, error) {
	var all []versionRow
	for _, id := range ids {
		rows, err := collect[versionRow](ctx, s.reader, oneVersionSQL, int64(id.Slot()), string(id))
		if err != nil {
			return nil, err
		}
		all = append(all, rows...)
	}
	return all, nil
}
