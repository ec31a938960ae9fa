package main

import (
	"context"
	"log/slog"
	"os"

	"github.com/KimMachineGun/automemlimit/memlimit"

	"github.com/sekali/sekali/gateway"
)

type serveCommand struct{ configFlags }

// Help has the examples.
func (serveCommand) Help() string {
	return `Without any configuration it serves http://127.0.0.1:8080 on the file sekali.db. Every setting has a
variable too, such as SEKALI_LISTEN and DATABASE_URL.

While it serves, SIGTERM or SIGINT lets running jobs end (dispatcher.shutdown_grace), hands back the others, and
the exit code is 0; so it is while it still waits for its database. A second one ends the process at once, with a
line in the log and by that signal (143 or 130 in shells): what was running is then taken up again as after a
crash.

  sekali serve
  sekali serve --config sekali.yaml --listen 127.0.0.1:9000
  DATABASE_URL=postgres://sekali@db.internal/sekali sekali serve`
}

// Run serves until the process is told to stop, and drains.
func (s serveCommand) Run(ctx context.Context, signals *endSignals) error {
	cfg, err := s.load()
	if err != nil {
		return err
	}
	log := gateway.NewLogger(cfg.Log, os.Stderr)
	signals.onSecond(func(second os.Signal) {
		log.WarnContext(ctx, "ending at once: a second signal came before all had ended; what was running is taken up again as after a crash", slog.String("signal", second.String()))
	})
	g, err := gateway.New(cfg, gateway.WithLogger(log), gateway.WithVersion(version))
	if err != nil {
		return err
	}
	collectLess()
	limitMemory(ctx, log, memlimit.FromCgroup)
	return g.Run(ctx)
}
