package rig

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	_ "github.com/lib/pq" // the driver "postgres"

	"github.com/sekali/sekali/internal/testenv"
)

// Postgres is a private server with the durability that Postgres has by default.
type Postgres struct {
	server *testenv.PostgresServer
	admin  *sql.DB
	master int // process id of the postmaster
}

// StartPostgres starts a server on a new data folder.
func StartPostgres(ctx context.Context) (*Postgres, error) {
	server, err := testenv.StartPostgres(
		testenv.WithFsync(),
		testenv.WithSetting("synchronous_commit", "on"),
		testenv.WithSetting("shared_buffers", "1GB"),
		testenv.WithSetting("max_connections", "600"), // each side keeps a pool of its own
		testenv.WithSetting("max_wal_size", "8GB"),
		// Checkpoints are made between the rounds instead of in the middle of some.
		testenv.WithSetting("checkpoint_timeout", "1h"),
		testenv.WithSetting("autovacuum_naptime", "1min"), // the default
		testenv.WithSetting("log_lock_waits", "off"),      // the default
	)
	if err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	p := &Postgres{server: server}
	if err := p.connect(ctx); err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return p, nil
}

func (p *Postgres) connect(ctx context.Context) error {
	admin, err := sql.Open("postgres", p.server.URL())
	if err != nil {
		return fmt.Errorf("rig: connect to Postgres: %w", err)
	}
	p.admin = admin
	var backend int
	if err := admin.QueryRowContext(ctx, `select pg_backend_pid()`).Scan(&backend); err != nil {
		return fmt.Errorf("rig: connect to Postgres: %w", err)
	}
	s, err := readStat(backend)
	p.master = s.parent
	return err
}

// Stop ends the server and removes its files.
func (p *Postgres) Stop() error { return errors.Join(p.admin.Close(), p.server.Stop()) }

// Database creates a database, empty, and returns its URL and a connection for
// looking into it.
func (p *Postgres) Database(ctx context.Context, name string) (*Database, error) {
	if _, err := p.admin.ExecContext(ctx, "drop database if exists "+name+" with (force)"); err != nil {
		return nil, fmt.Errorf("rig: drop database %s: %w", name, err)
	}
	if _, err := p.admin.ExecContext(ctx, "create database "+name); err != nil {
		return nil, fmt.Errorf("rig: create database %s: %w", name, err)
	}
	address, err := url.Parse(p.server.URL())
	if err != nil {
		return nil, errors.New("rig: the server's URL is none") // its text holds a password
	}
	address.Path = "/" + name
	db, err := sql.Open("postgres", address.String())
	if err != nil {
		return nil, fmt.Errorf("rig: open database %s: %w", name, err)
	}
	db.SetMaxOpenConns(1) // one backend of ours, which hardly works
	return &Database{DB: db, URL: address.String(), Name: name}, nil
}

// Drop removes a database again.
func (p *Postgres) Drop(ctx context.Context, d *Database) error {
	if err := d.Close(); err != nil {
		return fmt.Errorf("rig: close database %s: %w", d.Name, err)
	}
	if _, err := p.admin.ExecContext(ctx, "drop database "+d.Name+" with (force)"); err != nil {
		return fmt.Errorf("rig: drop database %s: %w", d.Name, err)
	}
	return nil
}

// Checkpoint writes everything to the disk, so that no checkpoint falls into
// what is measured next.
func (p *Postgres) Checkpoint(ctx context.Context) error {
	if _, err := p.admin.ExecContext(ctx, "checkpoint"); err != nil {
		return fmt.Errorf("rig: checkpoint: %w", err)
	}
	return nil
}

// Usage is what a server has used so far.
type Usage struct {
	Backends     time.Duration // processor time of those that serve clients
	WALWriter    time.Duration
	Checkpointer time.Duration // and of the background writer
	Other        time.Duration // autovacuum and the rest
	WALBytes     int64
	NextXID      int64 // the next transaction id to be given
}

// Usage reads it.
func (p *Postgres) Usage(ctx context.Context) (Usage, error) {
	var u Usage
	// A lone statement that writes nothing takes no transaction id itself.
	err := p.admin.QueryRowContext(ctx, `
		select cast(pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0') as bigint),
			cast(cast(pg_snapshot_xmax(pg_current_snapshot()) as text) as bigint)`).Scan(&u.WALBytes, &u.NextXID)
	if err != nil {
		return u, fmt.Errorf("rig: write-ahead log position: %w", err)
	}
	master, err := readStat(p.master)
	if err != nil {
		return u, err
	}
	u.Other = master.own
	children, err := childrenOf(p.master)
	for _, pid := range children {
		u.add(pid)
	}
	return u, err
}

// add adds one child of the postmaster, by what its title says that it does. What
// a child has used that has ended is counted no more.
func (u *Usage) add(pid int) {
	s, err := readStat(pid)
	if err != nil {
		return
	}
	title, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	if err != nil {
		return
	}
	switch name := string(title); {
	case strings.Contains(name, "walwriter"):
		u.WALWriter += s.own
	case strings.Contains(name, "checkpointer"), strings.Contains(name, "background writer"):
		u.Checkpointer += s.own
	case strings.Contains(name, "autovacuum"), strings.Contains(name, "logical replication"):
		u.Other += s.own
	default:
		u.Backends += s.own
	}
}

// Since returns what was used after an earlier reading.
func (u Usage) Since(e Usage) Usage {
	return Usage{
		Backends: u.Backends - e.Backends, WALWriter: u.WALWriter - e.WALWriter, Checkpointer: u.Checkpointer - e.Checkpointer,
		Other: u.Other - e.Other, WALBytes: u.WALBytes - e.WALBytes, NextXID: u.NextXID - e.NextXID,
	}
}

// childrenOf returns the processes whose parent is the one given.
func childrenOf(parent int) ([]int, error) {
	list, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if err != nil {
		return nil, fmt.Errorf("rig: children of Postgres: %w", err)
	}
	var pids []int
	for field := range bytes.FieldsSeq(list) {
		if pid, err := strconv.Atoi(string(field)); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Database is one of a server's, or an SQLite file without a connection.
type Database struct {
	*sql.DB
	URL, Name string
}

// Exec runs a statement of which only the failure matters.
func (d *Database) Exec(ctx context.Context, statement string, args ...any) error {
	if _, err := d.ExecContext(ctx, statement, args...); err != nil {
		return fmt.Errorf("rig: %s: %.80s: %w", d.Name, statement, err)
	}
	return nil
}

// Number runs a query for one number.
func (d *Database) Number(ctx context.Context, query string, args ...any) (float64, error) {
	var n sql.NullFloat64
	if err := d.QueryRowContext(ctx, query, args...).Scan(&n); err != nil {
		return 0, fmt.Errorf("rig: %s: %.80s: %w", d.Name, query, err)
	}
	return n.Float64, nil
}

// Quiet waits until nobody else is connected.
func (d *Database) Quiet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		others, err := d.Number(ctx, `select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()`)
		if err != nil || others == 0 {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rig: %s: %.0f connections stay: %w", d.Name, others, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}
