//go:build torture

package e2e_test

import "testing"

// The example workers among the tortured: TORTURE_JOBS says how many jobs they
// have to work off.
func TestTorture_WorkersAreKilledAndStopped(t *testing.T) {
	runChaos(t, fromEnv("TORTURE_JOBS", 2000))
}
