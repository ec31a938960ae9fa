package repository_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/lib/pq/pqerror"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// listener is a process that listens.
type listener struct {
	job.Notices
	heard chan job.Notice
	end   context.CancelFunc
	ended chan error // what Listen returned
}

// listening opens a process's notices and returns once it hears.
func listening(t *testing.T, url, name string) *listener {
	t.Helper()
	r, err := repository.Open(t.Context(), url, repository.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	ctx, end := context.WithCancel(t.Context())
	l := &listener{Notices: r.Notices(name), heard: make(chan job.Notice, 1000), end: end, ended: make(chan error, 1)}
	hears := make(chan struct{})
	go func() {
		l.ended <- l.Listen(ctx, func() { close(hears) }, func(n job.Notice) { l.heard <- n })
	}()
	select {
	case <-hears:
	case err := <-l.ended:
		t.Fatal(err)
	}
	t.Cleanup(end)
	return l
}

// tell sends a notice.
func (l *listener) tell(t *testing.T, n job.Notice) {
	t.Helper()
	if sent, err := l.Send(t.Context(), n); !sent || err != nil {
		t.Fatalf("sent: %v, %v", sent, err)
	}
}

func received[T any](t *testing.T, c <-chan T, what string) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(30 * time.Second):
		t.Fatalf("%s did not come", what)
	}
	return got
}

func someID() job.ID { return job.NewID(time.Now(), 7) }

func TestNotices_ReachAllOthers(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	a, b, c := listening(t, url, "a"), listening(t, url, "b"), listening(t, url, "c")
	want := job.Notice{
		Claimable: []job.Type{"invoice", "Mail.v2_x-y"}, Cancelling: []job.Lease{{ID: someID(), Token: 12}},
		Ended: map[job.ID]job.Version{
			someID(): {Number: 3, Status: job.Succeeded}, someID(): {Number: 1 << 40, Status: job.Failed}, someID(): {Number: 2, Status: job.Cancelled},
		},
	}
	a.tell(t, want)
	for _, l := range []*listener{b, c} {
		if got := received(t, l.heard, "the notice"); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("heard\n%+v, want\n%+v", got, want)
		}
	}
	b.tell(t, job.Notice{More: true})
	if got := received(t, a.heard, "the notice"); fmt.Sprint(got) != fmt.Sprint(job.Notice{More: true}) {
		t.Errorf("heard %+v: its own, or another one", got)
	}
}

// A process that is alone sends nothing, until another one begins to listen.
func TestNotices_NobodyIsToldWhereNobodyListens(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	a := listening(t, url, "a")
	repository.Forget(a.Notices)
	if sent, err := a.Send(t.Context(), job.Notice{More: true}); sent || err != nil {
		t.Errorf("sent %v, %v", sent, err)
	}
	b := listening(t, url, "b")
	testenv.Eventually(t, 0, "it knows of the other one", func() bool {
		sent, err := a.Send(t.Context(), job.Notice{More: true})
		return sent && err == nil
	})
	if got := received(t, b.heard, "the notice"); !got.More {
		t.Errorf("heard %+v", got)
	}
}

// One process has a SQLite file to itself; and the last connections are for the work.
func TestNotices_WhereThereAreNone(t *testing.T) {
	t.Parallel()
	for url, o := range map[string]repository.Options{
		testenv.SQLite(t):        {},
		"postgres://localhost/x": {MaxConns: 4},
	} {
		r, err := repository.Open(t.Context(), url, o)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if n := r.Notices("a"); n != nil {
			t.Errorf("%s: there are notices: %v", url, n)
		}
	}
}

// However much there is to tell, the server takes it, and what is left out is said to
// be.
func TestFailure_Q21_NoticesHaveABoundedSize(t *testing.T) {
	t.Parallel()
	url := testenv.Postgres(t)
	a, b := listening(t, url, "a"), listening(t, url, "b")
	huge := job.Notice{Ended: map[job.ID]job.Version{}}
	for i := range 5000 {
		huge.Ended[someID()] = job.Version{Number: 1 << 60, Status: job.Succeeded}
		huge.Cancelling = append(huge.Cancelling, job.Lease{ID: someID(), Token: 1 << 60})
		huge.Claimable = append(huge.Claimable, job.Type(fmt.Sprint(strings.Repeat("t", 95), i)))
	}
	a.tell(t, huge)
	got := received(t, b.heard, "the notice")
	if !got.More || len(got.Cancelling) < 50 {
		t.Errorf("more: %v, %d cancellations", got.More, len(got.Cancelling))
	}
	huge.Cancelling, huge.Claimable = nil, []job.Type{"t"}
	a.tell(t, huge)
	got = received(t, b.heard, "the notice")
	if !got.More || len(got.Ended) < 150 || fmt.Sprint(got.Claimable) != "[t]" {
		t.Errorf("more: %v, %d ends, types %v", got.More, len(got.Ended), got.Claimable)
	}
	for id, v := range got.Ended {
		if huge.Ended[id] != v {
			t.Errorf("%s is %v", id, v)
		}
	}
}

// Lines that nobody here wrote do no harm.
func TestNotices_StrangeLines(t *testing.T) {
	t.Parallel()
	id := string(someID())
	for line, more := range map[string]bool{
		"": true, "1": true, "2 a new form": true, "hello": true, "1 a +": true,
		"1 a": false, "1 a t e c e. c. e.. e.1.s c.1 x?": false, "1 a e" + id + ".1.s c" + id + ".1": false,
		"1 a eAAAAAAAAAAAAAAAAAAAAAA.1.q eAAAAAAAAAAAAAAAAAAAAAA.x.s eAAAA.1.s cAAAAAAAAAAAAAAAAAAAAAA.99999999999999999999": false,
		"1 \x00\xff t": false,
	} {
		if _, n := repository.ReadNotice(line); n.More != more || len(n.Ended)+len(n.Cancelling)+len(n.Claimable) != 0 {
			t.Errorf("%q is read as %+v", line, n)
		}
	}
	// Ids of other forms cannot be told, and statuses that are no ends are not.
	odd := job.Notice{Ended: map[job.ID]job.Version{"a": {Number: 1, Status: job.Failed}, someID(): {Number: 1, Status: job.Pending}}, Cancelling: []job.Lease{{ID: "x'"}}}
	if text := repository.NoticeText("w", odd); text != "1 w" {
		t.Errorf("written as %q", text)
	}
}

// The connection breaks: whoever listens is told, and can begin anew.
func TestFailure_Q34_ALostConnectionIsAnError(t *testing.T) {
	t.Parallel()
	relay, url := newProxy(t, testenv.Postgres(t))
	a := listening(t, url, "a")
	relay.stop()
	err := received(t, a.ended, "the end of listening")
	if !errors.Is(err, job.ErrUnavailable) || errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("error %v", err)
	}
	if sent, err := a.Send(t.Context(), job.Notice{More: true}); sent || err != nil {
		t.Errorf("sent %v, %v", sent, err)
	}
	relay.start()
	b := listening(t, url, "b")
	again := listening(t, url, "a")
	again.tell(t, job.Notice{More: true})
	received(t, b.heard, "the notice")
}

// The server says nothing any more, and does not hang up: neither sending nor the
// end of the process waits for it.
func TestFailure_Q40_BR79_ASilentServerHoldsUpNothing(t *testing.T) {
	t.Parallel()
	deaf := func(byte, string) verdict { return swallow }
	t.Run("send", func(t *testing.T) {
		t.Parallel()
		relay, url := newProxy(t, testenv.Postgres(t))
		a := listening(t, url, "a")
		relay.rule(deaf, deaf)
		result := make(chan error, 1)
		go func() {
			_, err := a.Send(t.Context(), job.Notice{More: true})
			result <- err
		}()
		if err := received(t, result, "the end of sending"); !errors.Is(err, job.ErrUnavailable) {
			t.Errorf("error %v", err)
		}
		if err := received(t, a.ended, "the end of listening"); err == nil {
			t.Error("listening ended without an error")
		}
	})
	t.Run("end", func(t *testing.T) {
		t.Parallel()
		relay, url := newProxy(t, testenv.Postgres(t))
		a := listening(t, url, "a")
		relay.rule(deaf, deaf)
		endsAtOnce(t, a.end, a.ended)
	})
	t.Run("log in", func(t *testing.T) {
		t.Parallel()
		r, err := repository.Open(t.Context(), "postgres://u:p@"+silent(t)+"/x?sslmode=disable&connect_timeout=60", repository.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		ctx, end := context.WithCancel(t.Context())
		result := make(chan error, 1)
		go func() { result <- r.Notices("a").Listen(ctx, func() { t.Error("it hears") }, func(job.Notice) {}) }()
		endsAtOnce(t, end, result)
	})
}

// endsAtOnce fails unless what runs ends when it is told to, long before any timeout.
func endsAtOnce(t *testing.T, end func(), result <-chan error) {
	t.Helper()
	end()
	select {
	case <-result:
	case <-time.After(4 * time.Second):
		t.Error("it waits for the server")
	}
}

func TestNotices_WhatADatabaseDoesNotHave(t *testing.T) {
	t.Parallel()
	for code, none := range map[pqerror.Code]bool{"0A000": true, "42601": true, "42883": true, "42501": true, "57P01": false, "53300": false, "40001": false} {
		if err := repository.NoticeFailure(fmt.Errorf("answered: %w", &pq.Error{Code: code})); errors.Is(err, errors.ErrUnsupported) != none {
			t.Errorf("%s: %v", code, err)
		}
	}
}

// The connection for notices goes where the others go.
func TestNotices_TheirConnectionIsOneOfOurs(t *testing.T) {
	t.Parallel()
	got, err := repository.NoticesConfig("postgres://me:p%40ss%20'w%26@127.0.0.1:6543/jo%20bs?application_name=mine&tcp_keepalives_idle=7&search_path=s")
	if err != nil {
		t.Fatal(err)
	}
	if got.User != "me" || got.Password != "p@ss 'w&" || got.Host != "127.0.0.1" || got.Port != 6543 || got.Database != "jo bs" || got.ApplicationName != "mine" {
		t.Errorf("%s:%s at %s:%d/%s as %s", got.User, got.Password, got.Host, got.Port, got.Database, got.ApplicationName)
	}
	if got.SSLMode != pq.SSLModePrefer || got.ConnectTimeout != 2*time.Second {
		t.Errorf("sslmode %s, connect timeout %v", got.SSLMode, got.ConnectTimeout)
	}
	want := map[string]string{
		"search_path": "s", "synchronous_commit": "off", "statement_timeout": "4s",
		"tcp_keepalives_idle": "7", "tcp_keepalives_interval": "10", "tcp_keepalives_count": "3",
	}
	if !maps.Equal(got.Runtime, want) {
		t.Errorf("settings %v, want %v", got.Runtime, want)
	}
}
