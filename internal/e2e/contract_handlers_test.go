package e2e_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/middleware"
	"github.com/sekali/sekali/repository"
)

// Rows that only a handler of Go can bring about: programs of their own, whose
// handlers the middleware protects, with a real store.

// embedded serves the handler behind the middleware, as a program would.
func embedded(t testing.TB, database string, protect func(*repository.Records) func(http.Handler) http.Handler, handler http.HandlerFunc) *gateway {
	t.Helper()
	repo, err := repository.Open(t.Context(), database, repository.Options{MaxConns: 8})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = repo.Close() })
	if err := repo.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	keyed := middleware.Key(middleware.KeyPolicy{Required: true})
	served := middleware.Tenant(keyed(protect(repo.Records())(handler)))
	server := httptest.NewUnstartedServer(middleware.Recover(slog.New(slog.DiscardHandler))(served))
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	server.Start()
	t.Cleanup(server.Close)
	return &gateway{t: t, url: server.URL, database: database}
}

func onceWith(o middleware.Options) func(*repository.Records) func(http.Handler) http.Handler {
	return func(s *repository.Records) func(http.Handler) http.Handler { return middleware.Once(s, o) }
}

func onceTx(s *repository.Records) func(http.Handler) http.Handler {
	return middleware.OnceTx(s, middleware.Options{})
}

func (g *gateway) pay(key, path string) answer {
	g.t.Helper()
	return g.do(http.MethodPost, path, `{"amount":1}`, jsonType, "Idempotency-Key: "+key)
}

// payments is a handler that writes a row in its transaction, and then answers
// as the path says while it is its turn to fail.
type payments struct {
	mu    sync.Mutex
	calls map[string]int
}

func (p *payments) serve(w http.ResponseWriter, r *http.Request) {
	key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
	p.mu.Lock()
	p.calls[key]++
	n := p.calls[key]
	p.mu.Unlock()
	if tx, ok := idempotency.TxOf(r.Context()); ok {
		if err := effectOf(r.Context(), tx, key); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if r.URL.Path == "/uncommittable" && n == 1 {
			_, _ = tx.ExecContext(r.Context(), `insert into orphans (parent) values (1)`)
		}
	}
	if n == 1 {
		switch r.URL.Path {
		case "/fails":
			http.Error(w, "zz-37", http.StatusInternalServerError)
			return
		case "/panics":
			w.WriteHeader(http.StatusCreated)
			_, _ = io.WriteString(w, "half of it, zz-40")
			panic("zz-40")
		case "/aborts":
			panic(http.ErrAbortHandler)
		case "/rejects":
			middleware.Reject(w, r, errors.New("amount must be a whole number of cents"))
			return
		}
	}
	w.Header().Set("Content-Type", "text/plain")
	w.Header().Set("Location", fmt.Sprintf("/payments/%d", n))
	w.WriteHeader(http.StatusCreated)
	_, _ = fmt.Fprintf(w, "payment %d", n)
}

func effectOf(ctx context.Context, tx *sql.Tx, key string) error {
	_, err := tx.ExecContext(ctx, `insert into payments (key) values ($1)`, key)
	return err
}

// paid counts the rows that the handler has left for the key.
func (g *gateway) paid(t testing.TB, key string, times int) {
	t.Helper()
	if n := count(t, g.beside(t), `select count(*) from payments where key = $1`, key); n != times {
		t.Errorf("%d payments under %s, want %d", n, key, times)
	}
}

func (p *payments) ran(t testing.TB, key string, times int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls[key] != times {
		t.Errorf("the handler ran %d times for %s, want %d", p.calls[key], key, times)
	}
}

// onHandler runs the test on each engine with the handler protected.
func onHandler(t *testing.T, protect func(*repository.Records) func(http.Handler) http.Handler, test func(t *testing.T, g *gateway, p *payments)) {
	t.Helper()
	onEngines(t, func(t *testing.T, database string) {
		db := beside(t, database)
		for _, table := range []string{
			`create table payments (key text not null)`, `create table parents (id int primary key)`,
			`create table orphans (parent int references parents (id) deferrable initially deferred)`,
		} {
			change(t, db, table)
		}
		p := &payments{calls: map[string]int{}}
		test(t, embedded(t, database, protect, p.serve), p)
	})
}

// C42: an answer that a panic broke off is stored nowhere.
func TestContract_Row37_Row40_Row41_C42_ATransactionLeavesNothingBehind(t *testing.T) {
	onHandler(t, onceTx, func(t *testing.T, g *gateway, p *payments) {
		for path, status := range map[string]int{"/fails": 500, "/panics": 500, "/rejects": 400} {
			key := rand.Text()
			first := g.pay(key, path).want(t, status).keyed(t, key, false)
			g.paid(t, key, 0)
			if n := stored(t, g.beside(t), key); n != 0 {
				t.Errorf("%s: %d records", path, n)
			}
			if strings.Contains(string(first.body), "zz-40") {
				t.Errorf("%s: half of an answer went out: %s", path, first.body)
			}
			if path == "/rejects" { // corrected, under the same key
				g.do(http.MethodPost, path, `{"amount":2}`, jsonType, "Idempotency-Key: "+key).want(t, http.StatusCreated).keyed(t, key, false)
				g.paid(t, key, 1)
				continue
			}
			again := g.pay(key, path).want(t, http.StatusCreated, "Location: /payments/2").keyed(t, key, false)
			g.pay(key, path).isReplayOf(t, key, again)
			g.paid(t, key, 1)
			p.ran(t, key, 2)
		}
	})
}

func TestContract_Row40_Row41_C42_PanicsAndRejections(t *testing.T) {
	for policy, want := range map[string]int{middleware.Release5xx: http.StatusCreated, middleware.Interrupt5xx: http.StatusUnprocessableEntity, middleware.Store5xx: http.StatusUnprocessableEntity} {
		t.Run(policy, func(t *testing.T) {
			onHandler(t, onceWith(middleware.Options{On5xx: policy}), func(t *testing.T, g *gateway, p *payments) {
				for _, path := range []string{"/panics", "/aborts"} {
					key := rand.Text()
					first, err := g.try(http.MethodPost, path, `{"amount":1}`, jsonType, "Idempotency-Key: "+key)
					if path == "/aborts" && err == nil {
						t.Errorf("http.ErrAbortHandler became an answer: %d %s", first.StatusCode, first.body)
					}
					if path == "/panics" && (err != nil || first.StatusCode != http.StatusInternalServerError || strings.Contains(string(first.body), "zz-40")) {
						t.Errorf("a panic was answered with %s, %v", first.body, err)
					}
					a := g.pay(key, path).want(t, want)
					if want == http.StatusUnprocessableEntity {
						a.problem(t, want, "idempotency-outcome-unknown")
						p.ran(t, key, 1)
						continue
					}
					g.pay(key, path).isReplayOf(t, key, a)
					p.ran(t, key, 2)
				}
				key := rand.Text()
				refusal := g.pay(key, "/rejects").keyed(t, key, false).problem(t, http.StatusBadRequest, "request-rejected")
				if refusal["retryable"] != false || refusal["detail"] != "amount must be a whole number of cents" {
					t.Errorf("%v", refusal)
				}
				g.do(http.MethodPost, "/rejects", `{"amount":2}`, jsonType, "Idempotency-Key: "+key).want(t, http.StatusCreated).keyed(t, key, false)
				p.ran(t, key, 2)
			})
		})
	}
}

// C20: what could not be committed is not done, and the same request again does
// it.
func TestContract_Row45_C20_ACommitThatFails(t *testing.T) {
	onHandler(t, onceTx, func(t *testing.T, g *gateway, p *payments) {
		key := rand.Text()
		a := g.pay(key, "/uncommittable").want(t, http.StatusServiceUnavailable, "Retry-After: 1").keyed(t, key, false)
		a.refused(t, http.StatusServiceUnavailable, "idempotency-outcome-unknown-retry", true)
		g.paid(t, key, 0)
		again := g.pay(key, "/uncommittable").want(t, http.StatusCreated).keyed(t, key, false)
		g.pay(key, "/uncommittable").isReplayOf(t, key, again)
		g.paid(t, key, 1)
		p.ran(t, key, 2)
	})
}

// Two programs on one database: whoever loses the race rolls back, and answers
// like anybody who comes later.
func TestContract_Row33_Row44_C4_TwoProgramsOneTransaction(t *testing.T) {
	onHandler(t, onceTx, func(t *testing.T, g *gateway, p *payments) {
		other := embedded(t, g.database, onceTx, p.serve)
		for range 3 {
			key := rand.Text()
			answers := make([]answer, 12)
			var wg sync.WaitGroup
			for i := range answers {
				url := []string{g.url, other.url}[i%2]
				wg.Go(func() {
					answers[i], _ = (&gateway{t: t, url: url}).try(http.MethodPost, "/payments", `{"amount":1}`, jsonType, "Idempotency-Key: "+key, "Prefer: wait=20")
				})
			}
			wg.Wait()
			for _, a := range answers {
				if a.Response == nil {
					t.Fatal("no answer")
				}
				a.want(t, http.StatusCreated, "Location: "+answers[0].Header.Get("Location"))
				if string(a.body) != string(answers[0].body) {
					t.Errorf("answers differ: %q, %q", a.body, answers[0].body)
				}
			}
			g.paid(t, key, 1)
		}
	})
}

// C25: what handlers ask of the server works through the middleware.
func TestContract_Row52_C25_AHandlersStreams(t *testing.T) {
	var held doors
	handler := func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute))
		w.WriteHeader(http.StatusAccepted)
		_, _ = io.WriteString(w, "first ")
		w.(http.Flusher).Flush()
		held.pass(r)
		_, _ = w.(io.ReaderFrom).ReadFrom(strings.NewReader("second"))
	}
	onEngines(t, func(t *testing.T, database string) {
		g := embedded(t, database, onceWith(middleware.Options{}), handler)
		key := rand.Text()
		request, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, g.url+"/stream", http.NoBody)
		request.Header.Set("Idempotency-Key", key)
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		first := make([]byte, len("first "))
		if _, err := io.ReadFull(response.Body, first); err != nil || string(first) != "first " {
			t.Errorf("%q, %v", first, err)
		}
		close(held.of(key))
		if rest, err := io.ReadAll(response.Body); err != nil || string(rest) != "second" {
			t.Errorf("%q, %v", rest, err)
		}
		a := g.do(http.MethodPost, "/stream", "", "Idempotency-Key: "+key, "Prefer: wait=5").want(t, http.StatusUnprocessableEntity)
		if p := a.problem(t, http.StatusUnprocessableEntity, "idempotency-response-not-retained"); fmt.Sprint(p["original_status"]) != "202" {
			t.Errorf("%v", p)
		}
	})
}
