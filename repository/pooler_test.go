package repository_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// ignored is what a pooler is told to drop without a word, by people who have
// read the message that it refuses it.
const ignored = "extra_float_digits, options, sekali.connection, default_transaction_isolation, lock_timeout, statement_timeout, " +
	"idle_in_transaction_session_timeout, enable_seqscan, enable_hashjoin, enable_mergejoin, jit, tcp_keepalives_idle, tcp_keepalives_interval, " +
	"tcp_keepalives_count, search_path"

// A pooler that shares sessions is found out, whatever it does with our settings
// and however it chooses among its sessions.
func TestFailure_BR75_Q11_PoolerThatSharesSessions(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	for name, settings := range map[string]map[string]string{
		"refuses settings":           {"pool_mode": "transaction"},
		"drops settings":             {"pool_mode": "transaction", "ignore_startup_parameters": ignored},
		"goes round its sessions":    {"pool_mode": "transaction", "server_round_robin": "1", "min_pool_size": "3", "ignore_startup_parameters": ignored},
		"has one session":            {"pool_mode": "transaction", "default_pool_size": "1"},
		"each statement for itself":  {"pool_mode": "statement"},
		"each statement, no setting": {"pool_mode": "statement", "ignore_startup_parameters": ignored},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testenv.PgBouncer(t, database, settings)
			r := open(t, address, repository.Options{})
			for what, call := range map[string]func(context.Context) error{"ping": r.Ping, "migrate": r.Migrate} {
				err := patiently(func() error { return call(t.Context()) })
				if !errors.Is(err, repository.ErrPooler) || !errors.Is(err, job.ErrUnavailable) || !strings.Contains(err.Error(), "pool_mode = session") {
					t.Errorf("%s: %v", what, err)
				}
			}
			if left := settingsLeft(t, address); left != "" {
				t.Errorf("the sessions that others get now have %s", left)
			}
		})
	}
}

// settingsLeft asks a session of the pooler, as another program would get it, for
// settings of ours.
func settingsLeft(t *testing.T, address string) string {
	t.Helper()
	var found string
	if err := beside(t, "postgres", address).QueryRowContext(t.Context(), `
select coalesce(string_agg(name || ' = ' || setting, ', '), '') from pg_settings
where source = 'session' and name in ('lock_timeout', 'statement_timeout', 'enable_seqscan', 'jit')`).Scan(&found); err != nil {
		t.Fatal(err)
	}
	return found
}

// A pooler that keeps sessions is worked with, and what we and the URL set holds
// although the pooler does not pass it.
func TestFailure_BR75_Q11_PoolerThatKeepsSessions(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{
		"refuses settings": {"pool_mode": "session"},
		"drops settings":   {"pool_mode": "session", "ignore_startup_parameters": ignored},
		"drops some":       {"pool_mode": "session", "ignore_startup_parameters": "lock_timeout, sekali.connection"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings["default_pool_size"] = "24"
			r := migrated(t, testenv.PgBouncer(t, testenv.Postgres(t), settings)+"&search_path=public,pg_temp", repository.Options{})
			for setting, want := range map[string]string{
				"lock_timeout": "1s", "statement_timeout": "2s", "enable_seqscan": "off", "search_path": "public,pg_temp",
				"default_transaction_isolation": "read committed",
			} {
				if got := settingOf(t, r, setting); got != want {
					t.Errorf("%s is %q, want %q", setting, got, want)
				}
			}
			server, err := r.ReadServer(t.Context())
			if err != nil || !server.Pooled {
				t.Errorf("pooled: %v, %v", server.Pooled, err)
			}
		})
	}
}

func TestReadServer_NoPooler(t *testing.T) {
	t.Parallel()
	r := open(t, testenv.Postgres(t), repository.Options{})
	server, err := r.ReadServer(t.Context())
	if err != nil || server.Pooled {
		t.Errorf("pooled: %v, %v", server.Pooled, err)
	}
	if got := settingOf(t, r, "lock_timeout"); got != "1s" {
		t.Errorf("lock_timeout is %q", got)
	}
}

// options= cannot be made again by statements: who sets it is told.
func TestFailure_BR75_PoolerRefusesOptions(t *testing.T) {
	t.Parallel()
	address := testenv.PgBouncer(t, testenv.Postgres(t), map[string]string{"pool_mode": "session"})
	r := open(t, address+"&options=-c%20work_mem%3D8MB", repository.Options{})
	err := patiently(func() error { return r.Ping(t.Context()) })
	if !errors.Is(err, repository.ErrPooler) || !strings.Contains(err.Error(), "options") {
		t.Errorf("%v", err)
	}
}

func settingOf(t *testing.T, r *repository.Repository, name string) string {
	t.Helper()
	var value string
	if err := repository.Reads(r).QueryRowContext(t.Context(), `select current_setting($1)`, name).Scan(&value); err != nil {
		t.Fatal(err)
	}
	return value
}
