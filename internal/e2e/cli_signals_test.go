package e2e_test

import (
	"net/http"
	"syscall"
	"testing"
	"time"

	"github.com/sekali/sekali/internal/testenv"
)

// A second signal ends a gateway that drains at once, as that signal does, and its
// log says so.
func TestCLI_ASecondSignalEndsTheGatewayAtOnce(t *testing.T) {
	t.Parallel()
	for _, second := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(second.String(), func(t *testing.T) {
			t.Parallel()
			r := newHeldReceiver(t)
			g := start(t, testenv.SQLite(t), both(t, r.config(), "dispatcher: {shutdown_grace: 5m}"))
			g.submit("k", `{"type":"call"}`).want(t, http.StatusAccepted)
			next(t, r.begun, 1, "begun")
			g.draining()
			if lines := g.logLines(endsAtOnce); len(lines) > 0 {
				t.Errorf("the first signal: %v", lines)
			}
			g.signal(second)
			code := g.wait(time.Minute)
			status, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus)
			bySignal := ok && status.Signaled() && status.Signal() == second
			// Who runs this test in the background of a shell has SIGINT ignored, and so
			// has the gateway: its exit code says it then.
			if !bySignal && code != 128+int(second) {
				t.Errorf("ended with %v, not by %v", g.cmd.ProcessState, second)
			}
			lines := g.logLines(endsAtOnce)
			if len(lines) != 1 || lines[0]["level"] != "WARN" || lines[0]["signal"] != second.String() {
				t.Errorf("%v in the log: %s", lines, g.logged())
			}
		})
	}
}

const endsAtOnce = "ending at once: a second signal came before all had ended; what was running is taken up again as after a crash"

// Two signals that come together are two.
func TestCLI_SignalsThatComeTogether(t *testing.T) {
	t.Parallel()
	r := newHeldReceiver(t)
	g := start(t, testenv.SQLite(t), both(t, r.config(), "dispatcher: {shutdown_grace: 5m}"))
	g.submit("k", `{"type":"call"}`).want(t, http.StatusAccepted)
	next(t, r.begun, 1, "begun")
	g.signal(syscall.SIGINT)
	g.signal(syscall.SIGTERM)
	g.wait(time.Minute)
	if lines := g.logLines(endsAtOnce); len(lines) != 1 {
		t.Errorf("%v in the log: %s", lines, g.logged())
	}
}
