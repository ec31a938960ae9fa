package e2e_test

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// submission and its reply are one operation of the history.
type submission struct{ key, body int }

type reply struct {
	status   int
	again    bool // a try before was answered 503, and may have been stored all the same
	replayed string
	hash     [sha256.Size]byte // of the body
}

// accepted is what a key stands for: nothing, or one body with one answer.
type accepted struct {
	taken bool
	body  int
	hash  [sha256.Size]byte
}

// acceptModel is the whole promise of an accept, one key at a time: the first
// submission makes the answer, the same again gets it, another one gets 422.
var acceptModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[int][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(submission).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return accepted{} },
	Step: func(before, input, output any) (bool, any) {
		state, in, out := before.(accepted), input.(submission), output.(reply)
		switch {
		case !state.taken:
			fresh := out.status == http.StatusAccepted && (out.replayed == "false" || out.again)
			return fresh, accepted{taken: true, body: in.body, hash: out.hash}
		case state.body == in.body:
			return out.status == http.StatusAccepted && out.replayed == "true" && out.hash == state.hash, state
		}
		return out.status == http.StatusUnprocessableEntity, state
	},
}

// submitted sends the submission until it is answered, and not told to come again.
func submitted(g *gateway, in submission) (reply, error) {
	again := false
	for deadline := time.Now().Add(60 * time.Second); ; again = true {
		a, err := g.try(http.MethodPost, "/jobs", fmt.Sprintf(`{"type":"echo","payload":%d}`, in.body),
			jsonType, fmt.Sprintf("Idempotency-Key: lin-%d", in.key))
		if err != nil {
			return reply{}, err
		}
		if !a.comeAgain() || time.Now().After(deadline) {
			return reply{a.StatusCode, again, a.Header.Get("Idempotent-Replayed"), sha256.Sum256(a.body)}, nil
		}
		<-time.After(100 * time.Millisecond)
	}
}

// Submissions of few keys by many clients over two gateways (one on SQLite)
// look as if they had happened one after the other.
func TestAccept_IsLinearizablePerKey(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		const config = `dispatcher: {slots: 4}`
		gateways := []*gateway{start(t, database, config)}
		if database[:6] != "sqlite" {
			gateways = append(gateways, start(t, database, config))
		}
		const clients, rounds, keys = 8, 40, 30
		begin := time.Now()
		var mu sync.Mutex
		var history []porcupine.Operation
		var wg sync.WaitGroup
		for c := range clients {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(c), 1))
				for range rounds {
					in := submission{random.IntN(keys), random.IntN(2)}
					op := porcupine.Operation{ClientId: c, Input: in}
					op.Call = int64(time.Since(begin))
					g := gateways[random.IntN(len(gateways))]
					out, err := submitted(g, in)
					if err != nil {
						t.Errorf("no answer: %v", err)
						return
					}
					op.Return = int64(time.Since(begin))
					op.Output = out
					mu.Lock()
					history = append(history, op)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		if len(history) != clients*rounds {
			t.Fatalf("%d of %d operations answered", len(history), clients*rounds)
		}
		if result := porcupine.CheckOperationsTimeout(acceptModel, history, 30*time.Second); result != porcupine.Ok {
			t.Errorf("the history is %s", result)
		}
	})
}
