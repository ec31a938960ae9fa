package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// workerFront stands between workers and gateways. It sees every call with its
// answer, and loses some answers.
type workerFront struct {
	*httptest.Server
	target func() string // the gateway for the next call
	client http.Client

	mu     sync.Mutex
	random *rand.Rand
	losing int // one answer of so many is lost; 0: none
	lost   int
	calls  []workerCall
}

// workerCall is one call about one execution: what a claim handed out, or what its
// holder, or somebody who was it once, said about it.
type workerCall struct {
	execution, leaseToken, verb string
	status                      int
	sent, answered              time.Time
}

func newWorkerFront(t testing.TB, random *rand.Rand, target func() string) *workerFront {
	f := &workerFront{target: target, random: random, client: http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
	f.Server = httptest.NewServer(http.HandlerFunc(f.serve))
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
		f.client.CloseIdleConnections()
	})
	return f
}

// serve hands the call on. What goes wrong on the way ends as a broken connection.
func (f *workerFront) serve(w http.ResponseWriter, r *http.Request) {
	question, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	sent := time.Now()
	call, err := http.NewRequestWithContext(r.Context(), r.Method, f.target()+r.URL.Path, bytes.NewReader(question))
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	call.Header = r.Header.Clone()
	response, err := f.client.Do(call)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	answered, err := io.ReadAll(response.Body)
	if err != nil || f.noted(r.URL.Path, question, response.StatusCode, answered, sent) {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), response.Header)
	w.WriteHeader(response.StatusCode)
	_, _ = w.Write(answered) // the worker may have been killed
}

// noted remembers the call, and tells whether its answer gets lost.
func (f *workerFront) noted(url string, question []byte, status int, answered []byte, sent time.Time) (lost bool) {
	var asked struct {
		LeaseToken string `json:"lease_token"`
	}
	var got struct {
		Executions []struct {
			ID         string
			LeaseToken string `json:"lease_token"`
		}
	}
	_, _ = json.Unmarshal(question, &asked), json.Unmarshal(answered, &got) // refusals have neither
	f.mu.Lock()
	defer f.mu.Unlock()
	now, verb := time.Now(), path.Base(url)
	if verb != "claim" {
		id := path.Base(strings.TrimSuffix(url, "/"+verb))
		f.calls = append(f.calls, workerCall{id, asked.LeaseToken, verb, status, sent, now})
	}
	for _, e := range got.Executions {
		f.calls = append(f.calls, workerCall{e.ID, e.LeaseToken, verb, status, sent, now})
	}
	lost = f.losing > 0 && f.random.IntN(f.losing) == 0
	if lost {
		f.lost++
	}
	return lost
}

// losses is how many answers were lost so far.
func (f *workerFront) losses() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lost
}

// seen returns the calls so far that match.
func (f *workerFront) seen(match func(workerCall) bool) []workerCall {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(f.calls), func(c workerCall) bool { return !match(c) })
}

// late are calls that came after the lease was lost.
func (f *workerFront) late(verb string) int {
	return len(f.seen(func(c workerCall) bool { return c.verb == verb && c.status == http.StatusGone }))
}

// twoHolders lists what shows that there were two holders of one execution: a
// heartbeat or a complete that was accepted although somebody else had the job when
// it was sent, and completes of more than one holder.
func (f *workerFront) twoHolders() (found []string) {
	taken := map[string][]workerCall{}   // execution → its claims
	completed := map[string]workerCall{} // execution → the complete that was accepted
	for _, c := range f.seen(func(c workerCall) bool { return c.status == http.StatusOK }) {
		if c.verb == "claim" {
			taken[c.execution] = append(taken[c.execution], c)
			continue
		}
		if c.verb != "heartbeat" && c.verb != "complete" {
			continue // a fail or a release may be repeated when the job is another's already
		}
		claims := taken[c.execution]
		own := slices.IndexFunc(claims, func(claim workerCall) bool { return claim.leaseToken == c.leaseToken })
		for _, later := range claims[own+1:] {
			if own >= 0 && later.answered.Before(c.sent) {
				found = append(found, fmt.Sprintf("%s under %s after %s", c.verb, c.leaseToken, later.leaseToken))
			}
		}
		if before, ok := completed[c.execution]; ok && before.leaseToken != c.leaseToken {
			found = append(found, fmt.Sprintf("completes under %s and %s", before.leaseToken, c.leaseToken))
		}
		if c.verb == "complete" {
			completed[c.execution] = c
		}
	}
	return found
}

func TestWorkerFront_SeesTwoHolders(t *testing.T) {
	t.Parallel()
	begun := time.Now()
	call := func(verb, token string, status, sent, answered int) workerCall {
		at := func(n int) time.Time { return begun.Add(time.Duration(n) * time.Second) }
		return workerCall{"e", token, verb, status, at(sent), at(answered)}
	}
	one, other := call("claim", "one", 200, 0, 1), call("claim", "other", 200, 4, 5)
	for what, c := range map[string]struct {
		calls []workerCall
		found int
	}{
		"one after the other":           {[]workerCall{one, call("heartbeat", "one", 200, 2, 3), other, call("complete", "other", 200, 6, 7)}, 0},
		"a late call is refused":        {[]workerCall{one, other, call("heartbeat", "one", 410, 6, 7), call("complete", "one", 410, 6, 8)}, 0},
		"a repeated complete":           {[]workerCall{one, call("complete", "one", 200, 2, 3), call("complete", "one", 200, 4, 5)}, 0},
		"sent before the other's claim": {[]workerCall{one, other, call("heartbeat", "one", 200, 2, 6)}, 0},
		"a late heartbeat is accepted":  {[]workerCall{one, other, call("heartbeat", "one", 200, 6, 7)}, 1},
		"two completes":                 {[]workerCall{one, call("complete", "one", 200, 2, 3), other, call("complete", "other", 200, 6, 7)}, 1},
		"a late complete is accepted":   {[]workerCall{one, other, call("complete", "other", 200, 6, 7), call("complete", "one", 200, 8, 9)}, 2},
	} {
		f := &workerFront{calls: c.calls}
		if found := f.twoHolders(); len(found) != c.found {
			t.Errorf("%s: %v", what, found)
		}
	}
}
