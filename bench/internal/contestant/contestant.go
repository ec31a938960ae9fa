// Package contestant holds the servers that Sekali is measured against, each run
// in a process of its own: what people write with chi and a database driver, a
// job library behind chi, and chi alone. They are written to be fast within what
// they are, not to lose.
package contestant

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"
)

// Connections is the size of each contestant's pool of database connections: as
// many as clients in most figures, and kept open, since a pool with the default
// of two idle connections would do little but connect.
const Connections = 64

// bodyLimit is what a contestant reads at most, as Sekali does by default.
const bodyLimit = 1 << 20

// Options say what a contestant works with.
type Options struct {
	Database string // URL of its own database
	// Only for River: Tuned widens what its defaults limit, Work runs jobs, and
	// Effect gives each an effect of its own in the transaction of its completion.
	Tuned, Work, Effect bool
}

// start makes the contestant's routes; the second function ends it.
type start func(ctx context.Context, o Options, router chi.Router) (func(), error)

var contestants = map[string]start{
	"chi":            startChi,
	"naive":          startNaive,
	"naive-prepared": startPrepared,
	"river":          startRiver,
}

// Serve runs the contestant until ctx is done, and writes its address to out.
func Serve(ctx context.Context, name string, o Options, out io.Writer) error {
	begin, ok := contestants[name]
	if !ok {
		return fmt.Errorf("contestant: there is no %q", name)
	}
	router := chi.NewRouter()
	router.Get("/mallocs", mallocs)
	router.Get("/living", living)
	end, err := begin(ctx, o, router)
	if err != nil {
		return fmt.Errorf("contestant: %s: %w", name, err)
	}
	defer end()
	// Port 0: nobody else's server can answer in place of ours.
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("contestant: listen: %w", err)
	}
	server := &http.Server{Handler: router, ReadHeaderTimeout: 10 * time.Second}
	closed := context.AfterFunc(ctx, func() { _ = server.Close() }) // Serve then says so
	defer closed()
	fmt.Fprintln(out, listener.Addr())
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("contestant: serve: %w", err)
	}
	return nil
}

// mallocs tells how many objects the process has allocated so far.
func mallocs(w http.ResponseWriter, _ *http.Request) {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	_, _ = io.WriteString(w, strconv.FormatUint(m.Mallocs, 10))
}

// living collects the garbage, twice for what finalizers keep, and tells how many
// bytes are left, how many of them are stacks, and how many goroutines.
func living(w http.ResponseWriter, _ *http.Request) {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	fmt.Fprintln(w, m.HeapAlloc+m.StackInuse, m.StackInuse, runtime.NumGoroutine())
}

// readBody reads the request's body, and answers if it cannot.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, bool) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bodyLimit))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return body, err == nil
}

// answer sends a JSON document.
func answer(w http.ResponseWriter, status int, document []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(document) // the client has gone
}

// startChi answers without a database: the floor that the HTTP server sets. Its
// GET /wait never answers: it shows what a waiting request costs by itself.
func startChi(_ context.Context, _ Options, router chi.Router) (func(), error) {
	router.Post("/jobs", func(w http.ResponseWriter, r *http.Request) {
		if _, ok := readBody(w, r); ok {
			answer(w, http.StatusAccepted, accepted(r.Header.Get("Idempotency-Key")))
		}
	})
	router.Get("/wait", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	router.Get("/healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, []byte("{}")) })
	return func() {}, nil
}

// accepted is the answer to a submission.
func accepted(key string) []byte {
	return []byte(`{"key":` + strconv.Quote(key) + `,"status":"pending"}`)
}
