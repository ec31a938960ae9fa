package section

import (
	"context"
	"fmt"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/bench/internal/load"
	"github.com/sekali/sekali/bench/internal/report"
	"github.com/sekali/sekali/bench/internal/rig"
)

const (
	replayLevel = 64
	// knownKeys are repeated again and again; any cache holds them.
	knownKeys = 1000
	// storedKeys are each repeated once, by a process that has just started: more
	// than any window gets through.
	storedKeys = 48_000
)

// replay measures the repetition of submissions whose jobs have succeeded.
func replay(ctx context.Context, b *Bench) (err error) {
	var e ending
	defer e.end(&err)
	database, keys, err := b.history(ctx, &e)
	if err != nil {
		return err
	}
	floor, err := b.contestant(ctx, &e, "chi", "chi", contestant.Options{})
	if err != nil {
		return err
	}
	at := map[string][]sample{}
	for round := range b.Rounds {
		got, err := b.window(ctx, floor, replayLevel, load.Post("echo", b.prefix()))
		if err != nil {
			return err
		}
		at["chi"] = append(at["chi"], got)
		if err := b.replayRound(ctx, database, keys, at); err != nil {
			return err
		}
		b.say("replay, round %d: %s", round+1, rates(at))
	}
	b.replayFigures(at)
	return nil
}

// history is a database with jobs that a gateway has accepted and run.
func (b *Bench) history(ctx context.Context, e *ending) (*rig.Database, []string, error) {
	gateway, err := b.sekali(ctx, e, "sekali_replay", running)
	if err != nil {
		return nil, nil, err
	}
	const each = storedKeys / replayLevel
	prefix := b.prefix()
	var keys []string
	for n := range each {
		for connection := range replayLevel {
			keys = append(keys, load.Key(prefix, connection, n))
		}
	}
	b.say("replay: submits %d jobs", len(keys))
	_, err = load.Closed(ctx, load.Plan{
		Address: gateway.process.Address, Connections: replayLevel, Window: maxFill,
		Source: load.Repost("echo", keys, replayLevel, false),
	})
	if err != nil {
		return nil, nil, err
	}
	if err := await(ctx, gateway.database, `select count(*) from finished_jobs where state = 'succeeded'`, float64(len(keys))); err != nil {
		return nil, nil, err
	}
	if err := gateway.process.Stop(); err != nil {
		return nil, nil, err
	}
	if err := gateway.database.Exec(ctx, `vacuum analyze`); err != nil {
		return nil, nil, err
	}
	return gateway.database, keys, b.Rig.Postgres.Checkpoint(ctx)
}

// replayRound starts a gateway that knows no key yet.
func (b *Bench) replayRound(ctx context.Context, database *rig.Database, keys []string, at map[string][]sample) (err error) {
	var e ending
	defer e.end(&err)
	gateway, err := b.gateway(ctx, &e, "sekali", database, acceptOnly)
	if err != nil {
		return err
	}
	for _, turn := range []struct {
		name   string
		source func(int) load.Source
	}{
		{"stored", load.Repost("echo", keys, replayLevel, false)},
		{"known", load.Repost("echo", keys[:knownKeys], replayLevel, true)},
	} {
		got, err := b.window(ctx, gateway, replayLevel, turn.source)
		if err != nil {
			return err
		}
		at[turn.name] = append(at[turn.name], got)
	}
	if err := gateway.check(ctx, len(keys)); err != nil {
		return fmt.Errorf("a replay was accepted as new: %w", err)
	}
	return nil
}

func (b *Bench) replayFigures(at map[string][]sample) {
	add := func(name, unit string, values []float64, goal *report.Goal) {
		b.Report.Add(report.Figure{Section: "replay", Name: name, Unit: unit, Values: values, Goal: goal})
	}
	ratio := func(name string) []float64 { return report.Ratios(values(at[name], rate), values(at["chi"], rate)) }
	add("replay ÷ bare chi, key known to the process", report.Ratio, ratio("known"), report.AtLeast(0.5))
	add("replay ÷ bare chi, key only in the database", report.Ratio, ratio("stored"), report.AtLeast(0.3))
	for _, name := range []string{"known", "stored"} {
		// Other writers are the process's own heartbeats: a few in each window.
		add("transaction ids per replay, "+name, report.Count, values(at[name], xids), report.AtMost(0.001))
		add("WAL bytes per replay, "+name, report.Bytes, values(at[name], wal), nil)
	}
	for _, name := range []string{"chi", "known", "stored"} {
		b.side("replay", name, replayLevel, at[name])
	}
}
