//go:build torture

package e2e_test

import (
	"testing"
	"time"
)

// The receiver of callbacks is away for a tenth of the time, with a kill of the
// gateway about each second: for a minute where TORTURE_SECONDS is 600.
func TestTorture_TheReceiverOfCallbacksIsDown(t *testing.T) {
	outageOfReceiver(t, max(2, fromEnv("TORTURE_SECONDS", 60)/10), time.Second)
}
