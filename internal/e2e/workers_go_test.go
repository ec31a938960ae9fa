package e2e_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	face "github.com/sekali/sekali/client"
)

// workInGo is a worker with one slot that uses the client for Go: it claims a job,
// does it, and completes it, until ctx is done.
func (c *chaos) workInGo(ctx context.Context, n int) {
	// A gateway that starts takes longer than the usual retries may: ctx ends them.
	gateway, err := face.New(c.front.URL, face.WithHTTPClient(&http.Client{Transport: client.Transport}), face.WithRetries(1000))
	if err != nil {
		c.t.Error(err)
		return
	}
	ask := face.Claim{Worker: fmt.Sprintf("go:%d", n), Types: []string{"thumbnail", "sleep"}, Wait: 2 * time.Second}
	for ctx.Err() == nil {
		claimed, err := gateway.Claim(ctx, ask)
		if err != nil { // an answer that was lost, a gateway that was killed
			pause := time.NewTimer(50 * time.Millisecond)
			<-pause.C
		}
		for _, e := range claimed {
			_, err := gateway.Complete(ctx, e, c.workOn(e))
			var problem *face.Problem
			switch {
			case err == nil:
				c.inGo.Add(1)
			case ctx.Err() == nil && (!errors.As(err, &problem) || problem.Code != face.CodeLeaseLost):
				c.t.Errorf("complete %s: %v", e.ID, err)
			}
		}
	}
}

// workOn does what the example workers do. Every thumbnail here is of one gray.
func (c *chaos) workOn(e face.Execution) any {
	var payload struct {
		Seconds float64
		Pixels  [][]int
	}
	if err := json.Unmarshal(e.Payload, &payload); err != nil {
		c.t.Error(err)
	}
	if e.Type == "thumbnail" {
		return map[string]any{"pixels": [][]int{{payload.Pixels[0][0]}}}
	}
	work := time.NewTimer(time.Duration(payload.Seconds * float64(time.Second)))
	<-work.C
	return map[string]any{"slept": payload.Seconds}
}
