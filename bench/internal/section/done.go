package section

import (
	"context"
	"fmt"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/bench/internal/report"
)

// done measures jobs from their submission to their end.
func done(ctx context.Context, b *Bench) (err error) {
	var e ending
	defer e.end(&err)
	crews, err := b.doneCrews(ctx, &e)
	if err != nil {
		return err
	}
	at := map[string][]sample{}
	if err := b.Rig.Postgres.Checkpoint(ctx); err != nil {
		return err
	}
	for round := range b.Rounds {
		for _, c := range crews {
			got, err := b.through(ctx, c)
			if err != nil {
				return err
			}
			at[c.name] = append(at[c.name], got)
		}
		b.say("done, round %d: %s", round+1, rates(at))
	}
	add := func(name string, values []float64, goal *report.Goal) {
		b.figure("accept to done", name, report.Ratio, values, goal)
	}
	add("no-op jobs ÷ River tuned", ratioOf(at, "sekali", "river-tuned", rate), report.AtLeast(5))
	add("no-op jobs ÷ River default", ratioOf(at, "sekali", "river-default", rate), report.AtLeast(15))
	add("no-op jobs with a Redis lock each ÷ River tuned", ratioOf(at, "sekali-lock", "river-tuned", rate), report.AtLeast(3))
	add("CPU per job ÷ River tuned", ratioOf(at, "sekali", "river-tuned", cpu), nil)
	for _, c := range crews {
		b.side("done", c.name, workLevel, at[c.name])
	}
	return nil
}

func (b *Bench) doneCrews(ctx context.Context, e *ending) ([]*crew, error) {
	plain, err := b.sekaliCrew(ctx, e, "sekali", "echo", "")
	if err != nil {
		return nil, err
	}
	locked, err := b.sekaliCrew(ctx, e, "sekali-lock", "locked", lockedType+"redis_url: "+b.Rig.Redis.URL()+"\n")
	if err != nil {
		return nil, err
	}
	tuned, err := b.riverCrew(ctx, e, "river-tuned", contestant.Options{Tuned: true})
	if err != nil {
		return nil, err
	}
	plainRiver, err := b.riverCrew(ctx, e, "river-default", contestant.Options{})
	if err != nil {
		return nil, err
	}
	return []*crew{plain, tuned, locked, plainRiver}, nil
}

// effect measures jobs that write an effect and their end in one transaction.
func effect(ctx context.Context, b *Bench) (err error) {
	var e ending
	defer e.end(&err)
	ours, err := b.sekaliCrew(ctx, &e, "sekali-effect", "effect", effectType)
	if err != nil {
		return err
	}
	ours.reset += ", effects"
	river, err := b.riverCrew(ctx, &e, "river-effect", contestant.Options{Tuned: true, Effect: true})
	if err != nil {
		return err
	}
	at := map[string][]sample{}
	if err := b.Rig.Postgres.Checkpoint(ctx); err != nil {
		return err
	}
	for round := range b.Rounds {
		for _, c := range []*crew{ours, river} {
			got, err := b.through(ctx, c)
			if err != nil {
				return err
			}
			if err := c.effects(ctx, got.Sent); err != nil {
				return err
			}
			at[c.name] = append(at[c.name], got)
		}
		b.say("effect, round %d: %s", round+1, rates(at))
	}
	b.figure("accept to done", "jobs with an effect in one transaction ÷ River tuned, likewise", report.Ratio,
		ratioOf(at, ours.name, river.name, rate), report.AtLeast(2))
	b.side("effect", ours.name, workLevel, at[ours.name])
	b.side("effect", river.name, workLevel, at[river.name])
	return nil
}

// effects fails unless each job has had its effect.
func (c *crew) effects(ctx context.Context, want int) error {
	got, err := c.database.Number(ctx, `select count(*) from effects`)
	if err == nil && int(got) != want {
		err = fmt.Errorf("%s: %d jobs are done and %.0f effects are there", c.name, want, got)
	}
	return err
}

// queueJobs is how many jobs a filled queue holds.
const queueJobs = 30_000

// queue measures the working off of a filled queue.
func queue(ctx context.Context, b *Bench) (err error) {
	var e ending
	defer e.end(&err)
	ours, err := b.sekaliCrew(ctx, &e, "sekali-queue", "echo", "")
	if err != nil {
		return err
	}
	if err := ours.turn(ctx, func() error { return nil }); err != nil { // makes the schema
		return err
	}
	river, err := b.riverCrew(ctx, &e, "river-queue", contestant.Options{Tuned: true})
	if err != nil {
		return err
	}
	if err := river.turn(ctx, func() error { return nil }); err != nil {
		return err
	}
	at := map[string][]sample{}
	for round := range b.Rounds {
		for _, c := range []*crew{ours, river} {
			got, err := b.workOff(ctx, c, queueJobs)
			if err != nil {
				return err
			}
			at[c.name] = append(at[c.name], got)
		}
		b.say("queue, round %d: %s", round+1, rates(at))
	}
	b.figure("filled queue", "working off a filled queue ÷ River tuned", report.Ratio, ratioOf(at, ours.name, river.name, rate), report.AtLeast(1.5))
	b.side("queue", ours.name, 0, at[ours.name])
	b.side("queue", river.name, 0, at[river.name])
	return nil
}
