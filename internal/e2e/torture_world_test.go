//go:build torture

package e2e_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sekali/sekali/internal/testenv"
)

const tortureLease = 1500 * time.Millisecond

// tortureConfig is every kind of job. The table effects has no unique constraint
// whatever: what is in it twice was done twice.
func tortureConfig(sink, redis string) string {
	return fmt.Sprintf(`
redis_url: %q
defaults: {lease: %s, heartbeat: 400ms, timeout: 10s, max_attempts: 30, backoff: {base: 50ms, cap: 500ms}}
dispatcher: {slots: 16, poll_interval: 200ms, shutdown_grace: 1s}
job_types:
  write:
    executor: sql
    lock: key
    sql:
      setup: "create table if not exists effects (what text not null, job text not null)"
      statement: "insert into effects (what, job) values ('write', {{ .id }})"
  write_once:
    executor: sql
    operation_key: "{{ .payload.operation }}"
    sql: {statement: "insert into effects (what, job) values ('operation ' || {{ .payload.operation }}, {{ .id }})"}
  call_once:
    executor: http
    operation_key: "{{ .payload.operation }}"
    on_unknown_outcome: reconcile
    http: {url: "%[3]s/once", reconcile_url: "%[3]s/asked"}
  call:
    executor: http
    lock: key
    http: {url: "%[3]s/call"}
  reconciled:
    executor: http
    on_unknown_outcome: reconcile
    timeout: 1s
    http: {url: "%[3]s/reconciled", reconcile_url: "%[3]s/asked"}
  parked:
    executor: http
    on_unknown_outcome: park
    timeout: 1s
    http: {url: "%[3]s/parked"}
  queued:
    executor: http
    lock: business_key
    on_business_key_conflict: queue
    http: {url: "%[3]s/queued"}
  program:
    executor: command
    lock: business_key
    command: {argv: [cat]}
  poison:
    executor: command
    max_attempts: 3
    compensate: undo
    command: {argv: ["false"]}
  undo:
    executor: sql
    sql: {statement: "insert into effects (what, job) values ('undo ' || {{ .payload.id }}, {{ .id }})"}
`, redis, tortureLease, sink)
}

// tortured is the world of one run.
type tortured struct {
	t        *testing.T
	random   *rand.Rand // of the faults alone
	db       *sql.DB
	database string
	redis    *testenv.RedisServer
	client   *redis.Client
	receiver *fencedReceiver
	config   string
	replicas []*replica
	over     atomic.Bool // the clients are to end

	mu    sync.Mutex
	first map[string][]byte // key → the body of its first 202
	keys  []string          // in the order of their first answers
}

func newTortured(t *testing.T, withRedis bool, random *rand.Rand) *tortured {
	w := &tortured{t: t, random: random, first: map[string][]byte{}}
	w.database = testenv.Postgres(t)
	w.receiver = newFencedReceiver(t)
	url := ""
	if withRedis {
		var err error
		if w.redis, err = testenv.StartRedis(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = w.redis.Stop() })
		url = w.redis.URL()
		w.client = newRedisClient(url)
		t.Cleanup(func() { _ = w.client.Close() })
	}
	w.config = tortureConfig(w.receiver.URL, url)
	for range 3 {
		w.replicas = append(w.replicas, &replica{w: w, g: start(t, w.database, w.config)})
	}
	w.db = beside(t, w.database)
	return w
}

// replica is one of the gateways, through its deaths.
type replica struct {
	w  *tortured
	mu sync.Mutex
	g  *gateway
}

func (r *replica) gateway() *gateway {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.g
}

// restart ends the replica, at once or as an operator does, and starts another
// one in its place.
func (r *replica) restart(atOnce bool) {
	old := r.gateway()
	if atOnce {
		old.kill()
	} else {
		old.signal(syscall.SIGTERM)
		select {
		case <-old.exited:
		case <-time.After(60 * time.Second): // its grace is a second; the rest is for a machine that is busy
			r.w.t.Errorf("a replica does not end:\n%s", old.logged())
			old.kill()
		}
	}
	fresh := start(r.w.t, r.w.database, r.w.config)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.g = fresh
}

func (w *tortured) any(random *rand.Rand) *gateway {
	return w.replicas[random.IntN(len(w.replicas))].gateway()
}

// submit is one client: a job at a time, the same key at any replica until there is
// an answer, and sometimes once more.
func (w *tortured) submit(client int, random *rand.Rand) {
	for n := 0; !w.over.Load(); n++ {
		key := fmt.Sprintf("c%d-%d", client, n)
		kind, body := w.draft(random)
		if !w.submitted(key, kind, body, random) {
			return
		}
		if random.IntN(4) == 0 && !w.submitted(key, kind, body, random) {
			return
		}
	}
}

func (w *tortured) draft(random *rand.Rand) (kind, body string) {
	kinds := []string{"write", "write", "write_once", "call_once", "call", "reconciled", "reconciled", "parked", "queued", "queued", "program", "poison", "echo"}
	kind = kinds[random.IntN(len(kinds))]
	business, extra := fmt.Sprintf("b%d", random.IntN(8)), ""
	payload := fmt.Sprintf(`{"operation":"%s-%d","business":%q}`, kind, random.IntN(200), business)
	if kind == "queued" || kind == "program" {
		extra = fmt.Sprintf(`,"business_key":%q`, business)
	}
	return kind, fmt.Sprintf(`{"type":%q,"payload":%s%s}`, kind, payload, extra)
}

// submitted repeats the request until it is answered; false at the end of the run.
func (w *tortured) submitted(key, kind, body string, random *rand.Rand) bool {
	for !w.over.Load() {
		a, err := quick(w.any(random), http.MethodPost, "/jobs", body, jsonType, "Idempotency-Key: "+key)
		switch {
		case err != nil || a.StatusCode == http.StatusServiceUnavailable || a.StatusCode == http.StatusConflict:
			continue
		case a.StatusCode == http.StatusOK && kind == "program": // bound to the holder of its business key
			return true
		case a.StatusCode != http.StatusAccepted:
			w.t.Errorf("POST %s %s: %d %s", key, body, a.StatusCode, a.body)
			return true
		}
		w.mu.Lock()
		known, again := w.first[key]
		if again && !bytes.Equal(known, a.body) {
			w.t.Errorf("%s: two answers:\n%s\n%s", key, known, a.body)
		}
		if !again {
			w.first[key], w.keys = a.body, append(w.keys, key)
		}
		w.mu.Unlock()
		return true
	}
	return false
}

// quick is try with a client's patience: a stopped replica does not answer.
func quick(g *gateway, method, path, body string, headers ...string) (answer, error) {
	done := make(chan struct{})
	var a answer
	var err error
	go func() {
		defer close(done)
		a, err = g.try(method, path, body, headers...)
	}()
	timer := time.NewTimer(1200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-done:
		return a, err
	case <-timer.C:
		return answer{}, fmt.Errorf("no answer in time")
	}
}

func (w *tortured) acknowledged() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.keys)
}

// control is an operator: cancels jobs, reads them, retries failed ones.
func (w *tortured) control(random *rand.Rand) {
	for n := 0; !w.over.Load(); n++ {
		pause := time.NewTimer(20 * time.Millisecond)
		<-pause.C
		keys := w.acknowledged()
		if len(keys) == 0 {
			continue
		}
		key := keys[len(keys)-1-random.IntN(min(len(keys), 12))]
		if random.IntN(3) == 0 {
			key = keys[random.IntN(len(keys))]
		}
		var a answer
		var err error
		switch random.IntN(4) {
		case 0:
			a, err = quick(w.any(random), http.MethodPost, "/jobs/"+key+"/cancel", "")
		case 1:
			a, err = quick(w.any(random), http.MethodPost, "/jobs/"+key+"/retry", "", "Idempotency-Key: "+fmt.Sprintf("again-%d", n))
		default:
			a, err = quick(w.any(random), http.MethodGet, "/jobs/"+key, "")
			if err == nil && a.StatusCode == http.StatusNotFound {
				w.t.Errorf("GET %s: an acknowledged job is not there", key)
			}
		}
		if err == nil && a.StatusCode >= 500 && a.StatusCode != http.StatusServiceUnavailable {
			w.t.Errorf("%s: %d %s", key, a.StatusCode, a.body)
		}
	}
}
