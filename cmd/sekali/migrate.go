package main

import (
	"context"

	"github.com/sekali/sekali/gateway"
)

type migrateCommand struct {
	Up     migrateUp     `cmd:"" default:"withargs" help:"Bring the schema up to this version (the default)."`
	Status migrateStatus `cmd:"" help:"List the migrations and whether each is applied."`
}

// Help has the examples.
func (migrateCommand) Help() string {
	return `A gateway brings the schema up when it starts, unless migrate: false says that this command does. It may
run beside gateways, of this version and of the one before.

  sekali migrate
  sekali migrate status --database-url postgres://sekali@db.internal/sekali`
}

type migrateUp struct {
	configFlags
	outputFlag
}

// Help has the examples.
func (migrateUp) Help() string {
	return `Applies the migrations that are missing, and lists all. Several at once wait for each other.

  sekali migrate up --config sekali.yaml`
}

// Run applies what is missing.
func (m migrateUp) Run(ctx context.Context, t terminal) error {
	cfg, err := m.load()
	if err != nil {
		return err
	}
	migrations, err := gateway.Migrate(ctx, cfg)
	if err != nil {
		return err
	}
	return m.show(t, migrations)
}

type migrateStatus struct {
	configFlags
	outputFlag
}

// Help has the examples.
func (migrateStatus) Help() string {
	return `Says how far the schema is.

  sekali migrate status
  sekali migrate status -o json`
}

// Run lists the migrations.
func (m migrateStatus) Run(ctx context.Context, t terminal) error {
	cfg, err := m.load()
	if err != nil {
		return err
	}
	migrations, err := gateway.MigrationStatus(ctx, cfg)
	if err != nil {
		return err
	}
	return m.show(t, migrations)
}

func (f outputFlag) show(t terminal, migrations []gateway.Migration) error {
	type step struct {
		Name    string `json:"name"`
		Applied bool   `json:"applied"`
	}
	steps, rows := make([]step, len(migrations)), make([][]string, len(migrations))
	for i, one := range migrations {
		state := "pending"
		if one.Applied {
			state = "applied"
		}
		steps[i], rows[i] = step(one), []string{state, one.Name}
	}
	if f.json() {
		return t.print(map[string]any{"migrations": steps})
	}
	return t.table([]string{"STATE", "MIGRATION"}, rows)
}
