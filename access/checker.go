package access

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"sync"
	"time"
)

// freshness is how old a reading of a token may be when it lets somebody in:
// with the time of a request on top, a revocation counts everywhere within a
// second.
const freshness = 500 * time.Millisecond

// maxReadings bounds the memory for readings; a process rarely sees so many
// tokens within the time that a reading is good for.
const maxReadings = 10_000

// ErrUnauthenticated reports a token that lets nobody in. It does not say why:
// the caller must not learn which tokens exist.
var ErrUnauthenticated = errors.New("access: token is not valid")

// Caller is who a request comes from.
type Caller struct {
	Token       string // id of the token
	Tenant      string
	Permissions Permissions
}

// Checker looks tokens up and keeps good readings for a moment. It is safe for
// concurrent use.
type Checker struct {
	store Store
	now   func() time.Time

	mu       sync.Mutex
	readings map[string]*reading
}

// reading is one look at a token in the store, done or under way.
type reading struct {
	begun time.Time
	done  chan struct{} // closed when token and err are set
	token Token
	err   error
}

// NewChecker makes a checker. now is the clock by which tokens expire: the
// store's.
func NewChecker(store Store, now func() time.Time) *Checker {
	return &Checker{store: store, now: now, readings: map[string]*reading{}}
}

// Check returns who sends a token's text. Errors: ErrUnauthenticated; any other
// one is the store's, and says nothing about the token.
//
// A reading that is kept can only let somebody in. Whoever is refused has cost
// a look at the store, so that a wrong secret, a revoked token and one that
// never was take the same time, and a new token works at once.
func (c *Checker) Check(ctx context.Context, text string) (Caller, error) {
	id, secret, ok := split(text)
	if !ok {
		return Caller{}, ErrUnauthenticated
	}
	given := hash(secret)
	if t, ok := c.kept(id); ok && c.good(t, given) {
		return t.caller(), nil
	}
	t, err := c.look(ctx, id)
	if errors.Is(err, ErrNotFound) {
		t, err = Token{Hash: make([]byte, sha256.Size)}, nil // compared like any other
	}
	if err != nil {
		return Caller{}, err
	}
	if !c.good(t, given) {
		return Caller{}, ErrUnauthenticated
	}
	return t.caller(), nil
}

func (t Token) caller() Caller {
	return Caller{Token: t.ID, Tenant: t.Tenant, Permissions: t.Permissions}
}

// good compares first, whatever else is wrong with the token.
func (c *Checker) good(t Token, given []byte) bool {
	same := subtle.ConstantTimeCompare(t.Hash, given) == 1
	return same && t.ID != "" && t.RevokedAt.IsZero() && (t.ExpiresAt.IsZero() || c.now().Before(t.ExpiresAt))
}

// kept returns the token of a reading that is done and still fresh.
func (c *Checker) kept(id string) (Token, bool) {
	c.mu.Lock()
	r := c.readings[id]
	c.mu.Unlock()
	if r == nil || !r.fresh() {
		return Token{}, false
	}
	if !r.ended() {
		return Token{}, false
	}
	return r.token, r.err == nil
}

// fresh goes by the process's monotonic clock: the store's may be set back.
func (r *reading) fresh() bool { return time.Since(r.begun) < freshness }

// look reads the token in the store. Those who come while a reading is under
// way share it, so that a busy token costs one reading at a time.
func (c *Checker) look(ctx context.Context, id string) (Token, error) {
	r, mine := c.join(id)
	if !mine {
		select {
		case <-r.done:
			return r.token, r.err
		case <-ctx.Done():
			return Token{}, context.Cause(ctx)
		}
	}
	r.err = errBrokenOff
	defer c.end(id, r)
	// Others wait for it: it goes on when this caller has left. The store bounds
	// its time.
	r.token, r.err = c.store.Find(context.WithoutCancel(ctx), id)
	return r.token, r.err
}

// errBrokenOff is what those get who share a reading that panicked.
var errBrokenOff = errors.New("access: token could not be read")

// join returns the reading of the id that is under way, or a new one that is
// the caller's to do. One that began too long ago may have missed a revocation.
func (c *Checker) join(id string) (r *reading, mine bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.readings[id]; r != nil && r.fresh() && !r.ended() {
		return r, false
	}
	if len(c.readings) >= maxReadings {
		clear(c.readings)
	}
	now := time.Now() //nolint:forbidigo // the beginning of a span within this process
	r = &reading{begun: now, done: make(chan struct{})}
	c.readings[id] = r
	return r, true
}

func (r *reading) ended() bool {
	select {
	case <-r.done:
		return true
	default:
		return false
	}
}

// end tells those who share the reading. Only that of a token that exists is
// kept: there are few of these, and any number of guesses.
func (c *Checker) end(id string, r *reading) {
	close(r.done)
	if r.err == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readings[id] == r {
		delete(c.readings, id)
	}
}
