package repository

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/sekali/sekali/job"
)

const (
	// noticeChannel is the same for all processes of a database, which is what the
	// server's channels are apart by.
	noticeChannel = "sekali"
	// greetEvery is how often a process that listens says so. The server's answer
	// shows that the connection still carries something (BR-79).
	greetEvery = 15 * time.Second
	// aloneAfter is how long after the last word of another process this one takes
	// itself to be alone, and sends nothing.
	aloneAfter = 40 * time.Second
	// noticeTimeout is how long the server may take to answer before the connection
	// is given up.
	noticeTimeout = 5 * time.Second
	// listenTimeout bounds the opening of the connection, whatever is in the way.
	listenTimeout = 30 * time.Second
	// noticeConns is how many connections a process keeps for notices, and noticesFrom
	// how many it must have to spare one.
	noticeConns = 1
	noticesFrom = minimumConns + noticeConns
)

// Notices returns how this process, by a name that no other one has, and those that
// share its database tell each other things; nil where it has the database to itself,
// or no connection to spare.
func (r *Repository) Notices(name string) job.Notices {
	p, shared := r.engine.(*postgres)
	if !shared || p.noticesURL == "" {
		return nil
	}
	return &notices{url: p.noticesURL, bare: p.noticesBare, name: name}
}

// notices are NOTIFY and LISTEN on one connection. lib/pq's Listener would hide
// when it is connected, wait for a silent server while it holds its lock, and go on
// for ever; one connection of it does what it is told. Listen lives as long as the
// connection, and whoever calls it begins anew.
type notices struct {
	url  string
	bare string // without settings, for a pooler that refuses them
	name string
	conn atomic.Pointer[pq.ListenerConn] // nil while nobody listens
	// alone is when this process begins to take itself to be alone.
	alone atomic.Pointer[time.Time]
}

// noticeSettings are special about the connection for notices: nobody waits for the
// disk for them, and a process that is gone without a word does not keep them in the
// server's memory for long.
var noticeSettings = map[string]string{
	"tcp_keepalives_idle": "30", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3",
	"synchronous_commit": "off", "statement_timeout": "4s",
}

// noticesURL adds to the URL what config has made of it, and the settings. bare is
// without these.
func noticesURL(text string, config pq.Config) (whole, bare string, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return "", "", err
	}
	query := u.Query()
	query.Set("application_name", config.ApplicationName)
	query.Set("sslmode", string(config.SSLMode))
	query.Set("connect_timeout", strconv.Itoa(max(1, int(config.ConnectTimeout.Seconds()))))
	u.RawQuery = query.Encode()
	bare = u.String()
	for name, value := range noticeSettings {
		if !strings.HasPrefix(name, "tcp_") || !query.Has(name) {
			query.Set(name, value)
		}
	}
	u.RawQuery = query.Encode()
	return u.String(), bare, nil
}

// Send implements job.Notices.
func (n *notices) Send(ctx context.Context, notice job.Notice) (bool, error) {
	conn := n.conn.Load()
	alone := n.alone.Load()
	if conn == nil || alone == nil || !processTime().Before(*alone) {
		return false, nil
	}
	err := say(ctx, conn, noticeText(n.name, notice))
	return err == nil, wrapped("send a notice", err)
}

// Listen implements job.Notices.
func (n *notices) Listen(ctx context.Context, listening func(), heard func(job.Notice)) error {
	conn, received, err := n.open(ctx)
	if err != nil {
		return wrapped("listen", err)
	}
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		for got := range received { // whatever it brings: a full channel would hold up the answers
			n.hear(got.Extra, heard)
		}
	}()
	defer func() {
		_ = conn.Close()
		<-lost
	}()
	listen := func() (bool, error) { return conn.Listen(noticeChannel) }
	if err := ask(ctx, conn, listen); err != nil {
		return wrapped("listen", err)
	}
	n.inCompany() // until they had the time to greet
	n.conn.Store(conn)
	defer n.conn.Store(nil)
	listening()
	return wrapped("listen", n.greet(ctx, conn, lost))
}

// greet tells the others from time to time that this process listens, until the
// connection is lost.
func (n *notices) greet(ctx context.Context, conn *pq.ListenerConn, lost <-chan struct{}) error {
	ticker := time.NewTicker(greetEvery)
	defer ticker.Stop()
	for {
		if err := say(ctx, conn, noticeText(n.name, job.Notice{})); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-lost:
			return conn.Err()
		case <-ticker.C:
		}
	}
}

// hear hands on what another process said.
func (n *notices) hear(text string, heard func(job.Notice)) {
	from, notice := readNotice(text)
	if from == n.name {
		return
	}
	n.inCompany()
	if !notice.Empty() {
		heard(notice)
	}
}

func (n *notices) inCompany() { n.alone.Store(new(processTime().Add(aloneAfter))) }

// open opens the connection. A pooler may refuse the settings with which it begins;
// they are made by statements then.
func (n *notices) open(ctx context.Context) (*pq.ListenerConn, <-chan *pq.Notification, error) {
	conn, received, err := openListener(ctx, n.url)
	if !refusesParameter(err) {
		return conn, received, err
	}
	if conn, received, err = openListener(ctx, n.bare); err != nil {
		return nil, nil, err
	}
	if err = ask(ctx, conn, func() (bool, error) { return conn.ExecSimpleQuery(settingsOf(pq.Config{Runtime: noticeSettings})) }); err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, received, nil
}

// openListener opens a connection. lib/pq bounds the log-in by the connect timeout
// alone, and what follows it not at all: whoever has waited long enough leaves the
// connection to be closed when it comes.
func openListener(ctx context.Context, url string) (*pq.ListenerConn, <-chan *pq.Notification, error) {
	type opened struct {
		conn *pq.ListenerConn
		err  error
	}
	ctx, cancel := context.WithTimeout(ctx, listenTimeout)
	defer cancel()
	received := make(chan *pq.Notification, 32)
	back := make(chan opened, 1)
	go func() {
		conn, err := pq.NewListenerConn(url, received)
		back <- opened{conn, err}
	}()
	select {
	case o := <-back:
		return o.conn, received, o.err
	case <-ctx.Done():
		go func() {
			if late := <-back; late.err == nil {
				_ = late.conn.Close()
			}
		}()
		return nil, nil, ctx.Err()
	}
}

// say sends one line. It is a select, and not the statement NOTIFY, because
// pg_stat_statements counts each text of a NOTIFY apart. The connection's protocol
// takes no parameters.
func say(ctx context.Context, conn *pq.ListenerConn, text string) error {
	return ask(ctx, conn, func() (bool, error) {
		return conn.ExecSimpleQuery(`select pg_notify('` + noticeChannel + `', ` + pq.QuoteLiteral(text) + `)`)
	})
}

// ask runs a statement on the connection. If it is not answered in time, or ctx
// ends, the connection is closed under it: lib/pq waits for the answer for ever
// (failures/queues 40).
func ask(ctx context.Context, conn *pq.ListenerConn, statement func() (answered bool, err error)) error {
	ctx, cancel := context.WithTimeout(ctx, noticeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	_, err := statement()
	if !stop() && err != nil {
		return fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return err
}

// wrapped adds what was done, and recognises a database that has no notices.
func wrapped(doing string, err error) error {
	var answer *pq.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &answer) && hasNone(answer.Code):
		return fmt.Errorf("repository: %s: %w: %w", doing, errors.ErrUnsupported, err)
	}
	return fmt.Errorf("repository: %s: %w: %w", doing, job.ErrUnavailable, err)
}

// hasNone reports whether the answer means that asking again is of no use: there is
// no such thing, no such word, no such right.
func hasNone(code pqerror.Code) bool {
	return code.Class() == "0A" || code.Class() == "42"
}
