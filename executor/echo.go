package executor

import (
	"context"

	"github.com/sekali/sekali/job"
)

// Echo succeeds at once; its result is the payload, byte for byte. It is for
// trying the gateway out.
type Echo struct{}

var _ Executor = Echo{}

// Execute returns the payload.
func (Echo) Execute(_ context.Context, c job.Claimed) (*job.Result, error) {
	return &job.Result{Body: payloadOf(c), MediaType: mediaJSON}, nil
}
