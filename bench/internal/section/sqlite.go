package section

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"

	_ "modernc.org/sqlite" // the driver "sqlite"

	"github.com/sekali/sekali/bench/internal/load"
	"github.com/sekali/sekali/bench/internal/report"
	"github.com/sekali/sekali/bench/internal/rig"
)

const sqliteLevel = 64

// sqlite measures accepts on SQLite beside those on Postgres.
func sqlite(ctx context.Context, b *Bench) (err error) {
	var e ending
	defer e.end(&err)
	postgres, err := b.sekali(ctx, &e, "sekali_beside", acceptOnly)
	if err != nil {
		return err
	}
	at := map[string][]sample{}
	for round := range b.Rounds {
		got, err := b.sqliteWindow(ctx, round)
		if err != nil {
			return err
		}
		at["sqlite"] = append(at["sqlite"], got)
		if got, err = b.acceptWindow(ctx, postgres, sqliteLevel); err != nil {
			return err
		}
		at["postgres"] = append(at["postgres"], got)
		b.say("sqlite, round %d: %s", round+1, rates(at))
	}
	b.figure("sqlite", "accept on SQLite ÷ accept on Postgres, 64 connections", report.Ratio, ratioOf(at, "sqlite", "postgres", rate), report.AtLeast(1.2))
	b.side("sqlite", "sqlite", sqliteLevel, at["sqlite"])
	b.side("sqlite", "postgres", sqliteLevel, at["postgres"])
	return nil
}

// sqliteWindow has a new file, since the gateway keeps others out of its own.
func (b *Bench) sqliteWindow(ctx context.Context, round int) (got sample, err error) {
	file := filepath.Join(b.Rig.Folder, fmt.Sprintf("accept-%d.db", round))
	var e ending
	defer e.end(&err)
	s, err := b.gateway(ctx, &e, "sqlite", &rig.Database{URL: "sqlite:" + file, Name: "sqlite"}, acceptOnly)
	if err != nil {
		return got, err
	}
	if got, err = b.window(ctx, s, sqliteLevel, load.Post(s.jobType, b.prefix())); err != nil {
		return got, err
	}
	if err := s.process.Stop(); err != nil {
		return got, err
	}
	if s.database.DB, err = sql.Open("sqlite", file); err != nil {
		return got, fmt.Errorf("open %s: %w", file, err)
	}
	e.add(s.database.Close)
	return got, s.check(ctx, got.Sent)
}
