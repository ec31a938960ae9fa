package repository

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/migrations"
)

// processTime is the process's clock, from which the clock of the database is
// derived and which is the clock of SQLite.
var processTime = time.Now //nolint:forbidigo // this is the clock that all others are given

// Clock tells the database's time without asking it each time: a reading of it,
// carried on by the process's monotonic clock, which no change of the machine's
// time moves. Until the first Sync, and always on SQLite, it is the process's.
type Clock struct {
	r    *Repository
	last atomic.Pointer[reading]
}

// reading is the database's time at a moment of the process's clock.
type reading struct {
	database, process time.Time
	took              time.Duration
}

// Now implements job.Clock.
func (c *Clock) Now() time.Time {
	now := processTime()
	if last := c.last.Load(); last != nil {
		now = last.database.Add(now.Sub(last.process))
	}
	return now.UTC().Truncate(time.Millisecond)
}

const clockSQL = `select now() as now`

// A reading is wrong by half of the time that it took, at most. One that took long
// is made again, a few times, and the quickest is kept.
const (
	quickReading = 2 * time.Millisecond
	readings     = 4
)

// Sync reads the database's time. Call it at start and every minute: clocks
// drift. If it fails, the reading before stays in use.
func (c *Clock) Sync(ctx context.Context) error {
	if c.r.engine.name() == migrations.SQLite {
		return nil
	}
	var best reading
	for n := range readings {
		read, err := c.read(ctx)
		if err != nil && n > 0 {
			break
		}
		if err != nil {
			return err
		}
		if n == 0 || read.took < best.took {
			best = read
		}
		if best.took <= quickReading {
			break
		}
	}
	c.last.Store(&best)
	return nil
}

func (c *Clock) read(ctx context.Context) (reading, error) {
	before := processTime()
	rows, err := collect[struct {
		Now moment `db:"now"`
	}](ctx, c.r.engine.reads(), clockSQL)
	if err != nil {
		return reading{}, c.r.fail("read the clock", err)
	}
	took := processTime().Sub(before)
	return reading{database: rows[0].Now.Time, process: before.Add(took / 2), took: took}, nil
}
