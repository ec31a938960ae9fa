package main

import (
	"context"
	"fmt"

	"github.com/sekali/sekali/gateway"
)

type migrateCommand struct {
	Up     migrateUp     `cmd:"" default:"withargs" help:"Bring the schema up to this version (the default)."`
	Status migrateStatus `cmd:"" help:"List the migrations and whether each is applied."`
}

type migrateUp struct{ configFlags }

// Run applies what is missing.
func (m migrateUp) Run(ctx context.Context) error {
	cfg, err := m.load()
	if err != nil {
		return err
	}
	migrations, err := gateway.Migrate(ctx, cfg)
	show(migrations)
	return err
}

type migrateStatus struct{ configFlags }

// Run lists the migrations.
func (m migrateStatus) Run(ctx context.Context) error {
	cfg, err := m.load()
	if err != nil {
		return err
	}
	migrations, err := gateway.MigrationStatus(ctx, cfg)
	show(migrations)
	return err
}

func show(migrations []gateway.Migration) {
	for _, one := range migrations {
		state := "pending"
		if one.Applied {
			state = "applied"
		}
		fmt.Printf("%-8s %s\n", state, one.Name)
	}
}
