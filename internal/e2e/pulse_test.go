package e2e_test

import (
	"net/http"
	"sync"
	"testing"
	"time"
)

// pulse tells the waits that a gateway causes from those of everybody: it beats every
// 50 ms, and stops where the machine stands still.
type pulse struct {
	mu      sync.Mutex
	beat    time.Time // the last one
	resumed time.Time // end of the last standstill
}

// standstill is a gap between beats in which nobody's answer could come.
const standstill = 300 * time.Millisecond

// newPulse beats as long as the test runs.
func newPulse(t testing.TB) *pulse {
	p := &pulse{beat: time.Now()}
	done := t.Context().Done()
	go func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				p.beats()
			}
		}
	}()
	return p
}

func (p *pulse) beats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.beat) > standstill {
		p.resumed = time.Now()
	}
	p.beat = time.Now()
}

// stopped reports whether the machine has stood still since then, or just now does.
func (p *pulse) stopped(since time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.resumed.After(since) || time.Since(p.beat) > standstill
}

// submit fails unless the effect is accepted. A machine that stood still excuses that the
// client is to come again; whether its first try was stored, nobody can say then.
func (p *pulse) submit(t testing.TB, g *gateway, key, replayed string) answer {
	for {
		began := time.Now()
		a := g.submit(key, effect)
		if !a.comeAgain() || !p.stopped(began) {
			return a.want(t, http.StatusAccepted, "Idempotent-Replayed: "+replayed)
		}
		replayed = "*"
	}
}

// comeAgain reports that the gateway could not do it in time, and asks for the same again.
func (a answer) comeAgain() bool {
	return a.StatusCode == http.StatusServiceUnavailable && a.Header.Get("Retry-After") != ""
}
