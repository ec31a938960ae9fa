package repository

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"
)

// A pooler between us and Postgres takes our settings for its own business: some
// it refuses, others it drops without a word (PgBouncer, as ignore_startup_parameters
// says). And where it hands each transaction another session of the server, there is
// nothing that would hold from one statement to the next: no setting, no prepared
// statement, no LISTEN. Each connection is therefore asked for a mark that it was
// opened with. Where that is missing, a pooler is in between: it is refused unless it
// keeps sessions, and if it does, the settings are made again, by statements.
// (failures/jobs BR-75, failures/queues 11)

// ErrPooler is a pooler before the database that cannot be worked with. Its
// message says why, and what to do.
var ErrPooler = errors.New("the pooler before the database cannot be used")

// errSharedSessions and errRefusedOption are the reasons.
var (
	errSharedSessions = fmt.Errorf("%w: it gives each transaction or statement another session of the server, so that neither settings nor "+
		"prepared statements hold; let it pool sessions (PgBouncer: pool_mode = session), or name the server's own address in database_url", ErrPooler)
	errRefusedOption = fmt.Errorf("%w: it refuses a parameter of database_url; write each setting as a parameter of its own instead of options=…, "+
		"let the pooler pass it, or name the server's own address", ErrPooler)
)

const (
	// markParameter is a setting that means nothing to Postgres, and is no other
	// program's.
	markParameter = "sekali.connection"
	markSQL       = `select current_setting('sekali.connection', true)`

	// sessionSQL tells sessions apart, also those of two servers with one number.
	sessionSQL = `
select concat_ws(' ', pg_backend_pid(), (select backend_start from pg_stat_activity where pid = pg_backend_pid()))`

	// poolerTimeout bounds the look at a pooler. It is not cut short by the end of
	// the context: whoever asks next would begin again, and never get to the answer.
	poolerTimeout = 10 * time.Second
	// poolerRounds: of a pooler that shares sessions, other clients may take away
	// the session that would have shown it, but not each time.
	poolerRounds = 5
)

// marked returns the configuration with a mark of its own.
func marked(config pq.Config) (pq.Config, string) {
	mark := randomHex()
	config = config.Clone()
	config.Runtime[markParameter] = mark
	return config, mark
}

// refusesParameter recognises the answer of a pooler to a setting that it does
// not know. Postgres itself answers with another code, and so does a pooler that
// hands the setting on.
func refusesParameter(err error) bool {
	var answer *pq.Error
	return errors.As(err, &answer) && answer.Code == pqerror.ProtocolViolation && strings.Contains(answer.Message, "parameter")
}

// adopt makes an open connection through a pooler one with our settings, or
// refuses it. Nothing is changed on it before it is known to be ours alone: a
// setting would stay on a session that others get.
func (c *connector) adopt(ctx context.Context, opened *conn) error {
	until := processTime().Add(poolerTimeout)
	if !c.keeps.Load() {
		shared, err := c.sharesSessions(ctx, opened, until)
		if err != nil {
			return err
		}
		if shared {
			return errSharedSessions
		}
		c.keeps.Store(true)
	}
	_, err := opened.ask(ctx, settingsOf(c.config), until)
	return err
}

// dialBare opens a connection without any setting.
func (c *connector) dialBare(ctx context.Context) (*conn, error) {
	config := c.config.Clone()
	config.Runtime, config.ConnectTimeout = nil, poolerTimeout
	opened, err := c.dial(context.WithoutCancel(ctx), config)
	if refusesParameter(err) {
		return nil, fmt.Errorf("%w (%w)", errRefusedOption, err)
	}
	return opened, err
}

// sharesSessions reports whether the connection, or a second one beside it, meets
// a session that should be the other's. The first is asked twice in a row: a
// pooler that goes round its sessions might show each of them the same one again.
func (c *connector) sharesSessions(ctx context.Context, one *conn, until time.Time) (bool, error) {
	two, err := c.dialBare(ctx)
	if err != nil {
		return false, err
	}
	defer two.Close()
	first, err := one.ask(ctx, sessionSQL, until)
	if err != nil {
		return false, err
	}
	for range poolerRounds {
		for _, asked := range []*conn{one, one, two} {
			session, err := asked.ask(ctx, sessionSQL, until)
			if err != nil {
				return false, err
			}
			if (session == first) != (asked == one) {
				return true, nil
			}
		}
	}
	return false, nil
}

// settingsOf is the statement that makes the settings of the configuration. It is
// a function and not SET, which would take a list (search_path) for one name.
func settingsOf(config pq.Config) string {
	calls := []string{"''"}
	for _, name := range slices.Sorted(maps.Keys(config.Runtime)) {
		calls = append(calls, "set_config("+pq.QuoteLiteral(name)+", "+pq.QuoteLiteral(config.Runtime[name])+", false)")
	}
	return "select concat_ws(' ', " + strings.Join(calls, ", ") + ")"
}

// ask runs a statement without parameters while the connection is being opened,
// and returns its only value. It is no statement of the context's own, so that no
// delivery follows it.
func (c *conn) ask(ctx context.Context, query string, until time.Time) (string, error) {
	_ = c.socket.SetDeadline(until)
	rows, err := c.pqConn.QueryContext(context.WithoutCancel(ctx), query, nil)
	if err != nil {
		return "", err
	}
	defer rows.Close()
	row := make([]driver.Value, 1)
	if err := rows.Next(row); err != nil {
		return "", err
	}
	var value text
	err = value.Scan(row[0])
	return string(value), err
}
