package main

import (
	"context"
	"os"

	"github.com/sekali/sekali/gateway"
)

type serveCommand struct{ configFlags }

// Run serves until the process is told to stop, and drains.
func (s serveCommand) Run(ctx context.Context) error {
	cfg, err := s.load()
	if err != nil {
		return err
	}
	g, err := gateway.New(cfg, gateway.WithLogger(gateway.NewLogger(cfg.Log, os.Stderr)), gateway.WithVersion(version))
	if err != nil {
		return err
	}
	return g.Run(ctx)
}
