//go:build torture

package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// Torture: three replicas on one Postgres and one Redis run jobs of every kind
// while faults come at them, and then what is promised is checked. `make
// torture-short` runs it; TORTURE_SEED repeats a run's faults, TORTURE_SECONDS
// makes it longer.
//
// A run in which the faults did not bite proves nothing and fails too.

func TestTorture_RedisAndReplicasFail(t *testing.T) {
	torture(t, plan{seconds: 60, redis: true, faults: func(w *tortured) []fault {
		return append(replicaFaults(w), append(redisFaults(w), lockFaults(w)...)...)
	}})
}

func TestTorture_WithoutRedis(t *testing.T) {
	torture(t, plan{seconds: 20, faults: replicaFaults})
}

func TestTorture_RedisAloneMisbehaves(t *testing.T) {
	torture(t, plan{seconds: 20, redis: true, unscathed: true, faults: func(w *tortured) []fault {
		return append(redisFaults(w), redisRefusals(w)...)
	}})
}

// plan is one run.
type plan struct {
	seconds int
	redis   bool
	// unscathed: no replica is hurt, so no attempt may be lost and no call stale.
	unscathed bool
	faults    func(*tortured) []fault
}

// fault is one way to hurt the gateway.
type fault struct {
	name string
	do   func()
}

func torture(t *testing.T, p plan) {
	seed, seconds := rand.Uint64(), p.seconds
	if text := os.Getenv("TORTURE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	if n, err := strconv.Atoi(os.Getenv("TORTURE_SECONDS")); err == nil {
		seconds = n * p.seconds / 60
	}
	t.Logf("TORTURE_SEED=%d, %d seconds", seed, seconds)
	fmt.Printf("%s: TORTURE_SEED=%d, %d seconds\n", t.Name(), seed, seconds)

	w := newTortured(t, p.redis, rand.New(rand.NewPCG(seed, 1)))
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	var clients sync.WaitGroup
	for n := range 6 {
		random := rand.New(rand.NewPCG(seed, uint64(n)+100))
		clients.Go(func() { w.submitUntil(end, n, random) })
	}
	clients.Go(func() { w.controlUntil(end, rand.New(rand.NewPCG(seed, 99))) })
	did := w.hurtUntil(end, p.faults(w))
	clients.Wait()
	w.heal()

	fmt.Printf("%s: %d jobs acknowledged, faults %v\n", t.Name(), len(w.acknowledged()), did)
	testenv.Eventually(t, 60*time.Second, "every job has ended", func() bool {
		return count(t, w.db, `select count(*) from jobs`) == 0
	})
	w.check(p, did)
}

// hurtUntil does one fault after the other, all of them in a new random order
// each time, and counts them.
func (w *tortured) hurtUntil(end time.Time, faults []fault) map[string]int {
	did := map[string]int{}
	for {
		for _, i := range w.random.Perm(len(faults)) {
			if !time.Now().Before(end) {
				return did
			}
			pause := time.NewTimer(time.Duration(300+w.random.IntN(700)) * time.Millisecond)
			<-pause.C
			faults[i].do()
			did[faults[i].name]++
		}
	}
}
