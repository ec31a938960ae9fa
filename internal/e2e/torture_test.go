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
	seed := rand.Uint64()
	if text := os.Getenv("TORTURE_SEED"); text != "" {
		seed, _ = strconv.ParseUint(text, 10, 64)
	}
	seconds := p.seconds * fromEnv("TORTURE_SECONDS", 60) / 60
	t.Logf("TORTURE_SEED=%d, %d seconds", seed, seconds)
	fmt.Printf("%s: TORTURE_SEED=%d, %d seconds\n", t.Name(), seed, seconds)

	w := newTortured(t, p.redis, rand.New(rand.NewPCG(seed, 1)))
	var clients sync.WaitGroup
	for n := range 6 {
		random := rand.New(rand.NewPCG(seed, uint64(n)+100))
		clients.Go(func() { w.submit(n, random) })
	}
	clients.Go(func() { w.control(rand.New(rand.NewPCG(seed, 99))) })
	did := w.hurt(p, time.Duration(seconds)*time.Second)
	w.over.Store(true)
	clients.Wait()
	w.heal()

	fmt.Printf("%s: %d jobs acknowledged, faults %v\n", t.Name(), len(w.acknowledged()), did)
	testenv.Eventually(t, 180*time.Second, "every job has ended", func() bool {
		return count(t, w.db, `select count(*) from jobs`) == 0
	})
	w.check(p, did)
}

// fromEnv is the number in the variable, or the usual one.
func fromEnv(name string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(name)); err == nil {
		return n
	}
	return usual
}

// leastFaults are the kinds of faults without which a run proves nothing.
const leastFaults = 3

// hurt does one fault after the other, all of them in a new random order each time,
// and counts them: for so long, and up to a minute more until they have bitten. A
// replica that is stopped has no attempt to lose now and then.
func (w *tortured) hurt(p plan, length time.Duration) map[string]int {
	faults, did, began := p.faults(w), map[string]int{}, time.Now()
	for {
		for _, i := range w.random.Perm(len(faults)) {
			took := time.Since(began)
			if took > length+time.Minute || took > length && len(did) >= leastFaults && (p.unscathed || w.bitten()) {
				return did
			}
			pause := time.NewTimer(time.Duration(300+w.random.IntN(700)) * time.Millisecond)
			<-pause.C
			faults[i].do()
			did[faults[i].name]++
		}
	}
}
