package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sekali/sekali/internal/telemetry"
)

// Gateway is the whole program as a value.
type Gateway struct {
	cfg      Config
	log      *slog.Logger
	version  string
	listener atomic.Pointer[net.TCPAddr]
	serving  chan struct{} // closed once the listener is open
}

// Option changes what New makes.
type Option func(*Gateway)

// WithLogger sets where the gateway logs; the default follows Config.Log to
// standard error.
func WithLogger(log *slog.Logger) Option { return func(g *Gateway) { g.log = log } }

// WithVersion sets the version that the gateway logs at start.
func WithVersion(version string) Option { return func(g *Gateway) { g.version = version } }

// New checks the configuration (a *ConfigError lists everything that is wrong)
// and returns a gateway that does nothing yet.
func New(cfg Config, options ...Option) (*Gateway, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	g := &Gateway{cfg: cfg, version: "embedded", serving: make(chan struct{})}
	for _, option := range options {
		option(g)
	}
	if g.log == nil {
		g.log = NewLogger(cfg.Log, os.Stderr)
	}
	return g, nil
}

// Serving is closed once the gateway accepts requests.
func (g *Gateway) Serving() <-chan struct{} { return g.serving }

// URL returns the address to call, once Serving is closed.
func (g *Gateway) URL() string {
	if addr := g.listener.Load(); addr != nil {
		return "http://" + addr.String()
	}
	return ""
}

// Limits of the server on slow or broken clients. The body's time is bounded
// where it is read (middleware.Key): a limit here would also end long polls.
const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 16 << 10
)

// closeTimeout bounds the wait for the last answers after the drain.
const closeTimeout = 2 * time.Second

// Run opens the database, serves, and returns when ctx has ended and the
// gateway has drained: it stops claiming, answers submissions with 503 while
// running jobs end (at most dispatcher.shutdown_grace), hands back the rest and
// closes. It must be called once.
func (g *Gateway) Run(ctx context.Context) error {
	g.warn()
	repo, err := g.open(ctx)
	if err != nil && ctx.Err() != nil { // while it waited for the database
		g.log.InfoContext(ctx, "stopped before it served", slog.Any(telemetry.Error, err))
		return nil
	}
	if err != nil {
		return err
	}
	defer repo.Close()
	p, err := g.assemble(ctx, repo)
	if err != nil {
		return err
	}
	defer p.close()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", g.cfg.Listen)
	if err != nil {
		return fmt.Errorf("gateway: listen on %s: %w", g.cfg.Listen, err)
	}
	addr, _ := listener.Addr().(*net.TCPAddr)
	g.listener.Store(addr)
	g.log.InfoContext(ctx, "sekali serves", slog.String("url", g.URL()), slog.String("version", g.version),
		slog.String("database", redactURL(g.cfg.DatabaseURL)), slog.Int("slots", g.cfg.Dispatcher.Slots), slog.String("worker_id", p.workerID))
	close(g.serving)
	return g.serve(ctx, listener, p)
}

func (g *Gateway) serve(ctx context.Context, listener net.Listener, p *parts) error {
	server := &http.Server{
		Handler:           p.handler,
		ReadHeaderTimeout: readHeaderTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          slog.NewLogLogger(g.log.Handler(), slog.LevelDebug), // clients' broken TLS and the like
	}
	// An error of any part ends the others, as the end of ctx does.
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("gateway: serve: %w", err)
		}
		return nil
	})
	group.Go(func() error { p.keepClock(running, g.log); return nil })
	group.Go(func() error { p.watchRedis(running); return nil })
	drained := make(chan struct{})
	group.Go(func() error {
		defer close(drained)
		<-running.Done()
		g.log.InfoContext(ctx, "shutting down: submissions are refused, running jobs and proxied requests may end", telemetry.MillisecondsAttr("grace_ms", g.cfg.Dispatcher.ShutdownGrace))
		p.drain(ctx)
		return nil
	})
	group.Go(func() error {
		err := p.awaitSchema(running)
		if err == nil {
			err = p.dispatcher.Run(running)
		}
		if running.Err() != nil {
			<-drained
		}
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		return errors.Join(err, shutdown(closing, server))
	})
	err := group.Wait()
	if err == nil {
		g.log.InfoContext(ctx, "stopped")
	}
	return err
}

// drain refuses new work, answers those who wait, and returns when no proxied
// request is under way any more or the grace is over.
func (p *parts) drain(ctx context.Context) {
	p.draining.Store(true)
	close(p.stopping)
	p.waiters.End()
	p.dispatcher.Remote().EndClaims()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.cfg.Dispatcher.ShutdownGrace)
	defer cancel()
	p.calls.wait(ctx)
}

// shutdown closes the server, and cuts off who is still not answered in time.
func shutdown(ctx context.Context, server *http.Server) error {
	if err := server.Shutdown(ctx); err != nil {
		return server.Close()
	}
	return nil
}

// warn says what is allowed and yet should be known.
func (g *Gateway) warn() {
	if g.cfg.Auth.Mode == authNone {
		g.log.Warn("authentication is off: every caller is the tenant default", slog.String("listen", g.cfg.Listen))
		if len(g.cfg.Proxy) > 0 {
			g.log.Warn("all callers of proxied routes share one key space: whoever sends another's key and request gets its stored response, and the upstream is not asked; set auth.mode: api_key where callers must not see each other's",
				slog.Int("rules", len(g.cfg.Proxy)))
		}
	}
	if g.cfg.callsBack() && g.cfg.Callbacks.Secret == "" {
		g.log.Warn("callbacks are not signed, and a receiver cannot know who sends them; set callbacks.secret")
	}
	if g.cfg.Idempotency.Retention < time.Hour {
		g.log.Warn("idempotency.retention is under an hour: a client that retries later than that runs the job again",
			slog.String("retention", g.cfg.Idempotency.Retention.String()))
	}
}
