package contestant

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// What a River that is set up for throughput has in place of its defaults: 100
// jobs at once, and a fetch of at most so many each 100 ms or second.
const (
	tunedWorkers = 1000
	tunedFetch   = 10 * time.Millisecond
	// defaultWorkers is what River's documents show.
	defaultWorkers = 100
)

// RiverEffects is the table that an effect of each job goes to.
const RiverEffects = `create table if not exists effects (job text primary key)`

// riverJob is unique by its key.
type riverJob struct {
	Key     string          `json:"key" river:"unique"`
	Payload json.RawMessage `json:"payload"`
}

func (riverJob) Kind() string { return "bench" }

// riverWorker runs jobs that do nothing, or have one effect each, and notes when
// each was picked up.
type riverWorker struct {
	river.WorkerDefaults[riverJob]
	pool     *pgxpool.Pool
	effect   bool
	arrivals arrivals
}

// Work does nothing, or writes an effect and the completion in one transaction.
func (w *riverWorker) Work(ctx context.Context, job *river.Job[riverJob]) error {
	w.arrivals.note(job.Args.Key)
	if !w.effect {
		return nil
	}
	return pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `insert into effects (job) values ($1)`, job.Args.Key); err != nil {
			return fmt.Errorf("effect: %w", err)
		}
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
}

// startRiver inserts jobs through River's client, which runs them too where the
// options say so.
func startRiver(ctx context.Context, o Options, router chi.Router) (func(), error) {
	config, err := pgxpool.ParseConfig(o.Database)
	if err != nil {
		return nil, fmt.Errorf("database: %w", err)
	}
	config.MaxConns = Connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	worker := &riverWorker{pool: pool, effect: o.Effect}
	client, err := riverClient(ctx, o, pool, worker)
	if err != nil {
		return nil, err
	}
	router.Post("/jobs", riverSubmit(client))
	router.Get("/arrivals", worker.arrivals.serve)
	router.Get("/fill/{jobs}", riverFill(client))
	if !o.Work {
		return pool.Close, nil
	}
	// The contestant ends when its process does: it is killed between rounds.
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	return pool.Close, nil
}

func riverClient(ctx context.Context, o Options, pool *pgxpool.Pool, worker *riverWorker) (*river.Client[pgx.Tx], error) {
	driver := riverpgxv5.New(pool)
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, fmt.Errorf("migrator: %w", err)
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return nil, fmt.Errorf("migrate: %w", err)
	}
	if _, err := pool.Exec(ctx, RiverEffects); err != nil {
		return nil, fmt.Errorf("effects: %w", err)
	}
	config := &river.Config{Logger: slog.New(slog.DiscardHandler)}
	if o.Work {
		config.Workers = river.NewWorkers()
		river.AddWorker(config.Workers, worker)
		config.Queues = map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: defaultWorkers}}
	}
	if o.Work && o.Tuned {
		config.Queues[river.QueueDefault] = river.QueueConfig{MaxWorkers: tunedWorkers}
		config.FetchCooldown, config.FetchPollInterval = tunedFetch, tunedFetch
	}
	client, err := river.NewClient(driver, config)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	return client, nil
}

func riverSubmit(client *river.Client[pgx.Tx]) http.HandlerFunc {
	unique := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
	return func(w http.ResponseWriter, r *http.Request) {
		key := r.Header.Get("Idempotency-Key")
		body, ok := readBody(w, r)
		if !ok {
			return
		}
		if _, err := client.Insert(r.Context(), riverJob{Key: key, Payload: body}, unique); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, http.StatusAccepted, accepted(key))
	}
}

// fillBatch is how many jobs one statement inserts.
const fillBatch = 1000

// riverFill inserts many jobs at once.
func riverFill(client *river.Client[pgx.Tx]) http.HandlerFunc {
	payload := json.RawMessage(`{"note":"` + strings.Repeat("x", 250) + `"}`)
	return func(w http.ResponseWriter, r *http.Request) {
		jobs, err := strconv.Atoi(chi.URLParam(r, "jobs"))
		for n := 0; n < jobs && err == nil; n += fillBatch {
			batch := make([]river.InsertManyParams, 0, fillBatch)
			for i := n; i < min(n+fillBatch, jobs); i++ {
				batch = append(batch, river.InsertManyParams{Args: riverJob{Key: strconv.Itoa(i), Payload: payload}})
			}
			_, err = client.InsertManyFast(r.Context(), batch)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, http.StatusOK, []byte("{}"))
	}
}

// arrivals are the times at which jobs were picked up.
type arrivals struct {
	mu sync.Mutex
	at map[string]int64
}

// enoughArrivals bounds the memory: pick-up is measured with fewer jobs.
const enoughArrivals = 10_000

func (a *arrivals) note(key string) {
	now := time.Now().UnixNano()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.at == nil {
		a.at = map[string]int64{}
	}
	if len(a.at) < enoughArrivals {
		a.at[key] = now
	}
}

// serve tells the times, in nanoseconds since 1970, by key, and forgets them.
func (a *arrivals) serve(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	text, err := json.Marshal(a.at)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	a.at = nil
	answer(w, http.StatusOK, text)
}
