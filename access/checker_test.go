package access_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/access"
)

// store is a fake with as many tokens as a test puts in.
type store struct {
	mu     sync.Mutex
	tokens map[string]access.Token
	err    error
	finds  atomic.Int64
	delay  time.Duration
}

func (s *store) Create(_ context.Context, t access.Token) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tokens == nil {
		s.tokens = map[string]access.Token{}
	}
	s.tokens[t.ID] = t
	return nil
}

func (s *store) Find(_ context.Context, id string) (access.Token, error) {
	s.finds.Add(1)
	s.mu.Lock()
	t, ok := s.tokens[id]
	err := s.err
	s.mu.Unlock()
	if s.delay > 0 {
		<-time.After(s.delay) // after the look, as an answer that is slow to arrive
	}
	if err != nil {
		return access.Token{}, err
	}
	if !ok {
		return access.Token{}, access.ErrNotFound
	}
	return t, nil
}

func (s *store) List(context.Context) ([]access.Token, error) { return nil, nil }

func (s *store) Revoke(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tokens[id]
	t.RevokedAt = time.Now()
	s.tokens[id] = t
	return nil
}

func (s *store) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// world is a store with one good token, and a checker on it.
func world(t *testing.T, d access.Draft) (*store, *access.Checker, access.Token, string) {
	t.Helper()
	token, text, err := access.New(d, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	s := &store{}
	_ = s.Create(t.Context(), token)
	return s, access.NewChecker(s, time.Now), token, text
}

var acme = access.Draft{Tenant: "acme", Permissions: access.Permissions{access.Submit}}

func TestChecker_LetsAGoodTokenIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // whose clock stands still between the checks
		s, checker, token, text := world(t, acme)
		for range 3 {
			caller, err := checker.Check(t.Context(), text)
			if err != nil || caller.Tenant != "acme" || caller.Token != token.ID || !caller.Permissions.Allow(access.Submit) {
				t.Fatalf("%+v, %v", caller, err)
			}
		}
		if n := s.finds.Load(); n != 1 {
			t.Errorf("three checks in a row cost %d looks at the store", n)
		}
	})
}

// What is refused is refused alike, and costs the same: one look at the store.
func TestContract_Row19_RefusalsCannotBeToldApart(t *testing.T) {
	t.Parallel()
	tests := map[string]func(s *store, token access.Token, text string) string{
		"unknown": func(*store, access.Token, string) string {
			_, text, _ := access.New(acme, time.Now())
			return text
		},
		"wrong secret": func(_ *store, _ access.Token, text string) string {
			_, wrong, _ := access.New(acme, time.Now())
			return text[:len("sk_")+13] + wrong[len("sk_")+13:]
		},
		"revoked": func(s *store, token access.Token, text string) string {
			_ = s.Revoke(context.Background(), token.ID)
			return text
		},
		"expired": func(s *store, token access.Token, text string) string {
			token.ExpiresAt = time.Now()
			_ = s.Create(context.Background(), token)
			return text
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, checker, token, text := world(t, acme)
			bad := spoil(s, token, text)
			for range 2 {
				before := s.finds.Load()
				if _, err := checker.Check(t.Context(), bad); err != access.ErrUnauthenticated { //nolint:errorlint // bare: nothing more may be told
					t.Errorf("error %v", err)
				}
				if n := s.finds.Load() - before; n != 1 {
					t.Errorf("the refusal cost %d looks at the store", n)
				}
			}
		})
	}
}

func TestChecker_RefusesWhatIsNoToken(t *testing.T) {
	t.Parallel()
	s, checker, _, text := world(t, acme)
	for _, bad := range []string{"", "sk_", "x" + text, text + "x", strings.ToUpper(text), strings.Replace(text, "_", "-", 2), text[:20], "sk_\x00"} {
		if _, err := checker.Check(t.Context(), bad); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if n := s.finds.Load(); n != 0 {
		t.Errorf("%d looks at the store for texts that cannot be tokens", n)
	}
}

func TestChecker_RevocationCountsWithinASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, checker, token, text := world(t, acme)
		// A token that is in use all the time, by requests that share slow readings.
		s.delay = 300 * time.Millisecond
		if _, err := checker.Check(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		_ = s.Revoke(t.Context(), token.ID)
		revoked := time.Now()
		last := revoked
		for time.Since(revoked) < 3*time.Second {
			began := time.Now()
			if _, err := checker.Check(t.Context(), text); err == nil {
				last = began
			}
			<-time.After(time.Millisecond)
		}
		if after := last.Sub(revoked); after >= time.Second {
			t.Errorf("the token let a request in that came %v after its revocation", after)
		}
	})
}

func TestChecker_ExpiryEndsAKeptReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := acme
		d.Expires = 100 * time.Millisecond
		_, checker, _, text := world(t, d)
		if _, err := checker.Check(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		<-time.After(100 * time.Millisecond)
		if _, err := checker.Check(t.Context(), text); !errors.Is(err, access.ErrUnauthenticated) {
			t.Errorf("error %v", err)
		}
	})
}

// An error of the store is neither yes nor no.
func TestFailure_BR28_AnUnreachableStoreLetsNobodyIn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, checker, _, text := world(t, acme)
		if _, err := checker.Check(t.Context(), text); err != nil {
			t.Fatal(err)
		}
		away := errors.New("store is away")
		s.fail(away)
		<-time.After(time.Second)
		if _, err := checker.Check(t.Context(), text); !errors.Is(err, away) {
			t.Errorf("error %v, want the store's", err)
		}
		s.fail(nil)
		if _, err := checker.Check(t.Context(), text); err != nil {
			t.Errorf("after the outage: %v", err)
		}
	})
}

func TestChecker_ManyCallersShareOneReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, checker, _, text := world(t, acme)
		s.delay = 50 * time.Millisecond
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := checker.Check(t.Context(), text); err != nil {
					t.Error(err)
				}
			})
		}
		left, cancel := context.WithCancel(t.Context())
		cancel()
		synctest.Wait()
		if _, err := checker.Check(left, text); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that has left: %v", err)
		}
		wg.Wait()
		if n := s.finds.Load(); n != 1 {
			t.Errorf("%d looks at the store", n)
		}
	})
}
