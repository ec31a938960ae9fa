package section

import (
	"context"
	"fmt"
	"time"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/bench/internal/load"
	"github.com/sekali/sekali/bench/internal/report"
	"github.com/sekali/sekali/bench/internal/rig"
)

// waiters is as many as a gateway lets wait by default.
const waiters = 10_000

// arriving is how many begin to wait at once.
const arriving = 250

// waitTime is how long each waits: more than by default, since they come one
// after the other and are looked at when all are there.
const waitTime = 5 * time.Minute

// eagerGC makes the collector run so often that what it found alive last is what
// lives now.
const eagerGC = 10

// memory measures what a client costs that waits for a job. It is told in two
// ways: against a connection on which nothing is asked, and above what any
// waiting request costs in net/http, which a handler shows that does nothing but
// wait.
func memory(ctx context.Context, b *Bench) error {
	ours, err := b.waiterOfSekali(ctx)
	if err != nil {
		return err
	}
	floor, err := b.waiterOfChi(ctx)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("with %d clients", waiters)
	b.figure("memory of a waiter", "above an idle connection, "+name, report.Kibibytes, []float64{ours / 1024}, nil)
	b.figure("memory of a waiter", "the same of a chi handler that only waits", report.Kibibytes, []float64{floor / 1024}, nil)
	b.Report.Add(report.Figure{
		Section: "memory of a waiter", Name: "above what any waiting request costs", Unit: report.Kibibytes,
		Values: []float64{(ours - floor) / 1024}, Goal: report.AtMost(1), Bound: report.AtMost(18),
	})
	return nil
}

func (b *Bench) waiterOfSekali(ctx context.Context) (bytes float64, err error) {
	var e ending
	defer e.end(&err)
	database, err := b.Rig.Postgres.Database(ctx, "sekali_waiters")
	if err != nil {
		return 0, err
	}
	e.add(func() error { return b.Rig.Postgres.Drop(context.WithoutCancel(ctx), database) })
	process, err := b.Rig.Gateway(ctx, database.URL, acceptOnly+fmt.Sprintf("limits: {wait: %s}\n", waitTime), fmt.Sprintf("GOGC=%d", eagerGC))
	if err != nil {
		return 0, err
	}
	e.add(process.Kill)
	if err := b.submitAll(ctx, process, "echo", waiters); err != nil {
		return 0, err
	}
	prefix := fmt.Sprintf("w%05d", b.windows)
	ask := func(header string) func(int) load.Request {
		return func(i int) load.Request {
			request, _ := load.Get("/jobs/"+load.Key(prefix, i%workLevel, i/workLevel), header)()
			return request
		}
	}
	return b.waiter(ctx, process, ask("Accept: */*"), ask(fmt.Sprintf("Prefer: wait=%.0f", waitTime.Seconds())), livingOfSekali)
}

func (b *Bench) waiterOfChi(ctx context.Context) (bytes float64, err error) {
	process, err := b.Rig.Contestant(ctx, "chi", contestant.Options{})
	if err != nil {
		return 0, err
	}
	var e ending
	e.add(process.Kill)
	defer e.end(&err)
	ask := func(path string) func(int) load.Request {
		return func(int) load.Request {
			request, _ := load.Get(path)()
			return request
		}
	}
	return b.waiter(ctx, process, ask("/healthz"), ask("/wait"), livingOfContestant)
}

// waiter returns the memory that a waiting request has more than its connection.
func (b *Bench) waiter(ctx context.Context, p *rig.Process, first, wait func(int) load.Request,
	living func(context.Context, *rig.Process) (rig.Living, error),
) (bytes float64, err error) {
	var e ending
	defer e.end(&err)
	held, err := load.Hold(ctx, p.Address, waiters, first)
	e.add(held.Close)
	if err != nil {
		return 0, err
	}
	idle, err := settle(ctx, p, living, waiters)
	if err != nil {
		return 0, err
	}
	// A waiting request has a second goroutine, which sees when the client leaves.
	// All at once would be more than a database answers in time.
	for n := 0; n < waiters; n += arriving {
		if err := held.Send(n, n+arriving, wait); err != nil {
			return 0, err
		}
		if err := p.AwaitGoroutines(ctx, waiters+n+arriving); err != nil {
			return 0, err
		}
	}
	busy, err := settle(ctx, p, living, 2*waiters)
	if err != nil {
		return 0, err
	}
	b.say("memory, %s: %.1f MB idle, %.1f MB of it stacks; %.1f MB waiting, %.1f MB of it stacks",
		p.Name, idle.Bytes/(1<<20), idle.Stacks/(1<<20), busy.Bytes/(1<<20), busy.Stacks/(1<<20))
	return (busy.Bytes - idle.Bytes) / waiters, nil
}

// looks is how often what lives is looked at; the least counts, since a look may
// fall into the work of an idle process.
const looks = 3

// settle waits for so many goroutines and returns what lives then.
func settle(ctx context.Context, p *rig.Process, living func(context.Context, *rig.Process) (rig.Living, error), goroutines int) (rig.Living, error) {
	ctx, cancel := context.WithTimeout(ctx, waitTime-10*time.Second) // by then the first give up
	defer cancel()
	var least rig.Living
	for n := range looks {
		now, err := living(ctx, p)
		if err != nil {
			return least, err
		}
		if now.Goroutines < goroutines {
			return least, fmt.Errorf("%s: only %d goroutines are left, of %d", p.Name, now.Goroutines, goroutines)
		}
		if n == 0 || now.Bytes < least.Bytes {
			least = now
		}
	}
	return least, nil
}

// livingOfSekali has the gateway make garbage until its collector has run twice:
// then it has seen everything that was there at the beginning.
func livingOfSekali(ctx context.Context, p *rig.Process) (rig.Living, error) {
	before, err := p.Living(ctx, eagerGC)
	for now := before; err == nil; {
		if now.Collections >= before.Collections+2 {
			return now, nil
		}
		if err = p.Litter(ctx); err == nil {
			now, err = p.Living(ctx, eagerGC)
		}
	}
	return before, err
}

// livingOfContestant asks, which makes the collector run.
func livingOfContestant(ctx context.Context, p *rig.Process) (rig.Living, error) {
	return p.Collected(ctx)
}

// Accepted jobs at which memory is compared.
const (
	grownFrom = 1_000_000
	grownTo   = 3_000_000
)

// growth measures whether memory grows with the number of accepted jobs. It
// takes minutes, and runs on request.
func growth(ctx context.Context, b *Bench) (err error) {
	var e ending
	defer e.end(&err)
	s, err := b.sekali(ctx, &e, "sekali_growth", acceptOnly)
	if err != nil {
		return err
	}
	peaks := make([]int64, 0, 2)
	for _, jobs := range []int{grownFrom, grownTo - grownFrom} {
		if err := b.submitMany(ctx, s, jobs); err != nil {
			return err
		}
		_, peak, err := s.process.RSS()
		if err != nil {
			return err
		}
		b.say("growth: %d more jobs, peak %.1f MB", jobs, float64(peak)/(1<<20))
		peaks = append(peaks, peak)
	}
	b.Report.Add(report.Figure{
		Section: "memory", Name: "growth of the peak from 1 M to 3 M accepted jobs", Unit: report.Megabytes,
		Values: []float64{float64(peaks[1]-peaks[0]) / (1 << 20)}, Goal: report.AtMost(2), Bound: report.AtMost(8),
	})
	return s.check(ctx, grownTo)
}

// submitMany submits so many jobs without a list of their keys.
func (b *Bench) submitMany(ctx context.Context, s side, jobs int) error {
	source := load.Post(s.jobType, b.prefix())
	_, err := load.Closed(ctx, load.Plan{
		Address: s.process.Address, Connections: workLevel, Window: 20 * time.Minute,
		Source: func(connection int) load.Source {
			next, left := source(connection), jobs/workLevel
			return func() (load.Request, bool) {
				if left == 0 {
					return nil, false
				}
				left--
				return next()
			}
		},
	})
	return err
}
