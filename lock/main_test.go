package lock_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No call leaves anything running behind it, whatever Redis does.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
