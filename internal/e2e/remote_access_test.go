package e2e_test

import (
	"net/http"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
)

// A tenant that asks for much else must not lose the jobs that its workers hold.
func TestContract_Row105_Row20_HeartbeatsAreNotLimited(t *testing.T) {
	onGateway(t, both(t, longHeld, "limits: {rate: 20/h}"), func(t *testing.T, g *gateway) {
		g.outside("a")
		e := g.claimed("w1")
		limited := false
		for range 40 {
			limited = g.get("/jobs/a").StatusCode == http.StatusTooManyRequests || limited
			e.say("heartbeat", "").want(t, http.StatusOK)
		}
		if !limited {
			t.Error("nothing was limited")
		}
		e.say("complete", "").want(t, http.StatusOK, "Job-Status: succeeded")
	})
}

// A token that is revoked while its claim waits gets no job any more.
func TestContract_Row104_Row19_ARevokedTokenGetsNoJobAfterItsWait(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		_, client := token(t, database, "--tenant", "one")
		id, worker := token(t, database, "--tenant", "one", "--permissions", "work")
		_, other := token(t, database, "--tenant", "one", "--permissions", "work")
		g := start(t, database, both(t, withKeys, remote, oneWaits))
		waiting := g.waitingClaim(t, bearer(worker))
		if _, problems, code := sekali(t, database, "token", "revoke", id); code != 0 {
			t.Fatalf("%d %s", code, problems)
		}
		testenv.Eventually(t, 0, "the gateway knows it", func() bool {
			a, err := g.try(http.MethodPost, "/executions/claim", `{"worker":"w1","types":["outside"]}`, jsonType, bearer(worker))
			return err == nil && a.StatusCode == http.StatusUnauthorized
		})
		g.submit("a", `{"type":"outside","payload":{"secret":1}}`, bearer(client)).want(t, http.StatusAccepted)
		if a := <-waiting; a.Response == nil || a.StatusCode != http.StatusUnauthorized {
			t.Errorf("the claim got %v %s", a.Response, a.body)
		}
		e := g.claimed("w2", bearer(other))
		if e.Number != 1 {
			t.Errorf("attempt %d: that the first one got nothing was counted", e.Number)
		}
	})
}
