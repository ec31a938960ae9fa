package repository

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/migrations"
)

const (
	defaultConns = 24
	minimumConns = 4
	// connLifetime closes connections now and then, so that a server that came
	// back or was added gets its share.
	connLifetime = 10 * time.Minute
	// connectTimeout is below what a client waits for an answer.
	connectTimeout = 2 * time.Second
	// acceptTimeout and leaseTimeout lie above the statement timeouts below.
	acceptTimeout = 2500 * time.Millisecond
	leaseTimeout  = 6 * time.Second
	// settleTimeout bounds the end of an attempt's transaction and its commit.
	settleTimeout = 10 * time.Second
)

// postgres is the engine on Postgres. Several pools, so that nothing can wait for
// a connection that only it could give back (BR-76): transactions of attempts,
// which last as long as their functions, never hold up a heartbeat, and neither
// of them a client. What goes together for many callers has pools of its own,
// whose statements wait for a lock only for a moment.
type postgres struct {
	config pq.Config
	// noticesURL leads to the same server, for the one connection without a pool; ""
	// if there is none to spare.
	noticesURL, noticesBare string

	accepts *pool // reads, and accepts that wait for a lock
	batches *pool // accepts for many callers
	leases  *pool // claims, heartbeats and everything else that moves jobs
	settles *pool // ends of attempts, many at once
	txs     *pool // transactions of attempts
	page    page
	upkeep  upkeep // of the partitions
	closing atomic.Bool
	pooled  atomic.Bool // through a pooler, which keeps sessions
}

func openPostgres(url string, o Options) (*postgres, error) {
	conns := cmp.Or(o.MaxConns, defaultConns)
	if conns < minimumConns {
		return nil, fmt.Errorf("%d connections are too few: a process needs at least %d, for accepts and reads, for leases and for transactions", conns, minimumConns)
	}
	config, err := pq.NewConfig(url)
	if err != nil {
		return nil, errors.New("database URL is not understood: " + withoutURL(err, url))
	}
	config.ApplicationName = cmp.Or(config.ApplicationName, "sekali")
	config.ConnectTimeout = cmp.Or(config.ConnectTimeout, connectTimeout)
	config.SSLMode = cmp.Or(config.SSLMode, defaultSSLMode(config))

	leases := max(1, conns/6)
	txs := max(1, min(conns/3, o.Slots))
	p := &postgres{config: config}
	notices := 0
	if conns >= noticesFrom {
		notices = noticeConns
		if p.noticesURL, p.noticesBare, err = noticesURL(url, config); err != nil {
			return nil, errors.New("database URL is not understood: " + withoutURL(err, url))
		}
	}
	p.txs = p.pool(txs, settleTimeout, limits{})
	together := 0
	if conns >= togetherFrom {
		together = togetherConns
		p.batches = p.pool(together, acceptTimeout, limits{statement: "2s", lock: momentaryLock, accepts: true})
		p.settles = p.pool(together, leaseTimeout, limits{statement: "5s", lock: momentaryLock})
	}
	p.accepts = p.pool(conns-leases-txs-2*together-notices, acceptTimeout, limits{statement: "2s", lock: "1s"})
	p.leases = p.pool(leases, leaseTimeout, limits{statement: "5s", lock: "1s"})
	if together == 0 {
		p.batches, p.settles = p.accepts, p.leases
	}
	return p, nil
}

// limits are the server's bounds on the statements of a pool; none for transactions
// of attempts, whose own time ends them.
type limits struct {
	statement, lock string
	accepts         bool // rows are large: their bytes are sent as they are
}

const (
	// togetherConns is how many statements for many callers are on their way at
	// once: the next one gathers while the others wait for the disk.
	togetherConns = 2
	// togetherFrom is how many connections a process must have for that to have
	// connections of its own.
	togetherFrom = 13
	// momentaryLock is how long neighbours wait for one that is locked: far longer
	// than another gateway's statement holds a lock.
	momentaryLock = "50ms"
)

func (p *postgres) flushes() (writes, reads int) { return togetherConns, togetherConns }

// withoutURL keeps a password out of an error of the parser.
func withoutURL(err error, url string) string { return strings.ReplaceAll(err.Error(), url, "…") }

// defaultSSLMode is used where neither the URL nor the environment names one:
// "require" (encrypted, the certificate not checked), except that a server on
// this machine may do without encryption ("prefer").
func defaultSSLMode(config pq.Config) pq.SSLMode {
	hosts := []string{config.Host}
	for _, m := range config.Multi {
		hosts = append(hosts, m.Host)
	}
	for _, host := range hosts {
		ip := net.ParseIP(strings.Trim(host, "[]"))
		local := host == "localhost" || ip.IsLoopback() || filepath.IsAbs(host) || strings.HasPrefix(host, "@")
		if !local || config.Hostaddr.IsValid() && !config.Hostaddr.IsLoopback() {
			return pq.SSLModeRequire
		}
	}
	return pq.SSLModePrefer
}

// pool opens a pool.
//
// What the URL sets stays where it does no harm: our timeouts are what keeps
// requests and heartbeats alive, and the statements are written for "read
// committed" (a role may have another default, BR-46).
func (p *postgres) pool(size int, timeout time.Duration, limit limits) *pool {
	config := p.config.Clone()
	ours := map[string]string{"default_transaction_isolation": "read committed"}
	if limit != (limits{}) {
		maps.Copy(ours, probing)
		ours["lock_timeout"] = limit.lock
		ours["statement_timeout"] = limit.statement
		if limit.accepts {
			config.BinaryParameters = true
		}
		ours["idle_in_transaction_session_timeout"] = "10s"
	} else {
		// The server learns within a minute that a gateway's machine is gone, and
		// lets go of what its transactions had locked.
		defaults := map[string]string{"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
		maps.Copy(defaults, config.Runtime)
		config.Runtime = defaults
	}
	maps.Copy(config.Runtime, ours)
	db := sql.OpenDB(&connector{config: config, cancels: limit == (limits{}), closing: &p.closing, keeps: &p.pooled})
	db.SetConnMaxLifetime(connLifetime)
	return newPool(db, size, timeout)
}

// probing tells the planner what every statement of ours does: it reads a few
// rows through an index. Otherwise a plan made without parameters, which takes a
// limit for a tenth of the table, may walk all jobs to claim ten of them.
//
// Such a plan is what we want: made once for each connection, it serves for batches
// of any size. Left to itself the server plans the accept anew for each call, since
// it takes the plan for ten rows to be dearer than that for one; planning costs it
// more than all the rest.
//
// What is made while the tables are small must do when they are large. Statements
// that look for jobs by their ids write "(state <> 'processing') is false": with the
// plain condition the planner would read the few entries that jobs_running has now,
// and compare each job that runs with each that is asked for.
var probing = map[string]string{
	"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off", "plan_cache_mode": "force_generic_plan",
}

// migratorConns: goose holds one connection and renews its lock on another.
const migratorConns = 3

func (p *postgres) migrator() (*sql.DB, error) {
	config := p.config.Clone()
	config.Runtime["default_transaction_isolation"] = "read committed"
	db := sql.OpenDB(&connector{config: config, cancels: true, closing: &p.closing, keeps: &p.pooled})
	db.SetMaxOpenConns(migratorConns)
	return db, nil
}

func (p *postgres) name() migrations.Engine  { return migrations.Postgres }
func (p *postgres) placeholder(n int) string { return "$" + strconv.Itoa(n) }
func (p *postgres) reads() *pool             { return p.accepts }

var errReadOnly = errors.New("it answers and takes no writes: it is a standby, or default_transaction_read_only is set")

func (p *postgres) probe(ctx context.Context) error {
	readOnly := ""
	err := p.accepts.db.QueryRowContext(ctx, `select current_setting('transaction_read_only')`).Scan(&readOnly)
	if err == nil && readOnly == "on" {
		return errReadOnly
	}
	return err
}

func (p *postgres) close() error {
	p.closing.Store(true)
	return errors.Join(p.accepts.close(), p.batches.close(), p.leases.close(), p.settles.close(), p.txs.close())
}
func (p *postgres) classify(err error) failure { return postgresFailure(err) }

// inFailedTransaction is the answer to every statement after one that failed.
const inFailedTransaction pqerror.Code = "25P02"

// postgresFailure reads the SQLSTATE and nothing else: names and texts differ
// between versions and on distributed databases.
func postgresFailure(err error) failure {
	if errors.Is(err, ErrPooler) {
		return unavailable
	}
	var e *pq.Error
	if !errors.As(err, &e) {
		return connectionFailure(err)
	}
	switch e.Code {
	case "23505":
		return unique
	case "40001", "40P01":
		return conflict
	case "55P03":
		return busy
	case "57P01", "57P02", "57P03", "57014", "25006", "3D000":
		return unavailable
	}
	switch e.Code.Class() {
	case "08", "28", "53": // connection, log-in, resources
		return unavailable
	case "22", "23", "42":
		return wrong
	}
	return other
}

// versionsSQL looks into both tables in one snapshot.
const versionsSQL = `
with input as (
  select i.slot, i.id from unnest(cast($1 as smallint[]), cast($2 as uuid[])) as i(slot, id))
select j.id, j.version, j.state from input i join jobs j on j.slot = i.slot and j.id = i.id
union all
select f.id, f.version, f.state from input i join finished_jobs f on f.slot = i.slot and f.id = i.id`

func (p *postgres) versions(ctx context.Context, ids []job.ID) ([]versionRow, error) {
	slots, texts := make([]int64, len(ids)), make([]string, len(ids))
	for i, id := range ids {
		slots[i], texts[i] = int64(id.Slot()), string(id)
	}
	return collect[versionRow](ctx, p.accepts, versionsSQL, slots, texts)
}
