package middleware_test

import (
	"testing"

	"go.uber.org/goleak"
)

// No middleware leaves anything running behind a request.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
