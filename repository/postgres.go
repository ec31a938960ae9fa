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

// postgres is the engine on Postgres. Three pools, so that nothing can wait for
// a connection that only it could give back (BR-76): transactions of attempts,
// which last as long as their functions, never hold up a heartbeat, and neither
// of them a client.
type postgres struct {
	config  pq.Config
	accepts *pool // accepts and reads
	leases  *pool // claims, heartbeats and everything else that moves jobs
	txs     *pool // transactions of attempts
	page    page
	closing atomic.Bool
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
	p.accepts = p.pool(conns-leases-txs, acceptTimeout, "2s")
	p.leases = p.pool(leases, leaseTimeout, "5s")
	p.txs = p.pool(txs, settleTimeout, "")
	return p, nil
}

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

// pool opens a pool. limit is the server's timeout for one statement; none for
// transactions of attempts, whose own time ends them.
//
// What the URL sets stays where it does no harm: our timeouts are what keeps
// requests and heartbeats alive, and the statements are written for "read
// committed" (a role may have another default, BR-46).
func (p *postgres) pool(size int, timeout time.Duration, limit string) *pool {
	config := p.config.Clone()
	ours := map[string]string{"default_transaction_isolation": "read committed"}
	if limit != "" {
		maps.Copy(ours, probing)
		ours["lock_timeout"] = "1s"
		ours["statement_timeout"] = limit
		ours["idle_in_transaction_session_timeout"] = "10s"
	} else {
		// The server learns within a minute that a gateway's machine is gone, and
		// lets go of what its transactions had locked.
		defaults := map[string]string{"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3"}
		maps.Copy(defaults, config.Runtime)
		config.Runtime = defaults
	}
	maps.Copy(config.Runtime, ours)
	db := sql.OpenDB(&connector{config: config, cancels: limit == "", closing: &p.closing})
	db.SetConnMaxLifetime(connLifetime)
	return newPool(db, size, timeout)
}

// probing tells the planner what every statement of ours does: it reads a few
// rows through an index. Otherwise a plan made without parameters, which takes a
// limit for a tenth of the table, may walk all jobs to claim ten of them.
var probing = map[string]string{"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "jit": "off"}

// migratorConns: goose holds one connection and renews its lock on another.
const migratorConns = 3

func (p *postgres) migrator() (*sql.DB, error) {
	config := p.config.Clone()
	config.Runtime["default_transaction_isolation"] = "read committed"
	db := sql.OpenDB(&connector{config: config, cancels: true, closing: &p.closing})
	db.SetMaxOpenConns(migratorConns)
	return db, nil
}

func (p *postgres) name() migrations.Engine  { return migrations.Postgres }
func (p *postgres) placeholder(n int) string { return "$" + strconv.Itoa(n) }
func (p *postgres) reads() *pool             { return p.accepts }
func (p *postgres) close() error {
	p.closing.Store(true)
	return errors.Join(p.accepts.close(), p.leases.close(), p.txs.close())
}
func (p *postgres) classify(err error) failure { return postgresFailure(err) }

// inFailedTransaction is the answer to every statement after one that failed.
const inFailedTransaction pqerror.Code = "25P02"

// postgresFailure reads the SQLSTATE and nothing else: names and texts differ
// between versions and on distributed databases.
func postgresFailure(err error) failure {
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
