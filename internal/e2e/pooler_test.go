package e2e_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// dropped makes PgBouncer drop the settings of a connection without a word.
const dropped = "extra_float_digits, sekali.connection, default_transaction_isolation, lock_timeout, statement_timeout, " +
	"idle_in_transaction_session_timeout, enable_seqscan, enable_hashjoin, enable_mergejoin, jit, tcp_keepalives_idle, tcp_keepalives_interval, tcp_keepalives_count"

// Behind a pooler that shares sessions no command works with the database, and
// each says why.
func TestFailure_BR75_Q11_GatewayBehindPgBouncer_TransactionMode(t *testing.T) {
	t.Parallel()
	database := testenv.Postgres(t)
	for name, settings := range map[string]map[string]string{
		"settings refused": {"pool_mode": "transaction", "default_pool_size": "5"},
		"settings dropped": {"pool_mode": "transaction", "default_pool_size": "5", "ignore_startup_parameters": dropped},
		"statement mode":   {"pool_mode": "statement"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := testenv.PgBouncer(t, database, settings)
			g := launch(t, address, "")
			if code := g.wait(60 * time.Second); code != 1 {
				t.Errorf("exit code %d, want 1", code)
			}
			const remedy = "pool_mode = session"
			tells(t, g.logged(), "the pooler before the database cannot be used", remedy, "the server's own address in database_url")

			_, notes, code := sekali(t, address, "migrate")
			tells(t, notes, remedy)
			if code != 1 {
				t.Errorf("migrate: exit code %d, want 1", code)
			}
			doctor(t, address, "").finds("database.pooler", "problem", remedy, "does not start")
		})
	}
}

func TestFailure_BR75_Q11_GatewayBehindPgBouncer_SessionMode(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]map[string]string{
		"settings refused": {"pool_mode": "session", "default_pool_size": "40"},
		"settings dropped": {"pool_mode": "session", "default_pool_size": "40", "ignore_startup_parameters": dropped},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := testenv.Postgres(t)
			address, db := testenv.PgBouncer(t, database, settings), beside(t, database)
			g := start(t, address, "")
			testenv.Eventually(t, 0, "it listens for notices", func() bool {
				return count(t, db, `select count(*) from pg_stat_activity where datname = current_database() and query like '%pg_notify%' and pid <> pg_backend_pid()`) == 1
			})
			g.submit("pooled", `{"type":"echo","payload":{"n":1}}`).want(t, http.StatusAccepted)
			if j := g.finished("pooled"); j["status"] != "succeeded" {
				t.Errorf("the job is %v", j)
			}
			doctor(t, address, "").finds("database.pooler", "ok", "keeps sessions")
		})
	}
}
