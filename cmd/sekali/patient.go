package main

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sekali/sekali/client"
)

// notedPause is the longest one that nobody is told of: people wonder what a
// command is doing.
const notedPause = 5 * time.Second

// asker sends requests to a gateway, as a *client.Client does.
type asker interface {
	Do(ctx context.Context, r client.Request) (client.Answer, error)
}

// patient waits as long as a gateway that has too much to do says, however long
// that is, and tells of it.
type patient struct {
	gateway *client.Client
	tell    func(pause time.Duration)
}

// Do sends a request until it is answered with something else than to wait for
// longer than a notedPause. ctx ends the waiting, but no change that is on its way.
func (p patient) Do(ctx context.Context, r client.Request) (client.Answer, error) {
	for try := 0; ; try++ {
		got, err := p.once(ctx, r)
		var refused *client.Problem
		if !errors.As(err, &refused) || !busy(refused) || refused.RetryAfter <= notedPause || try == bulkRetries {
			return got, err
		}
		p.tell(refused.RetryAfter)
		if err := sleep(ctx, refused.RetryAfter); err != nil {
			return got, err
		}
	}
}

// pauseNote is what is said of a pause that is longer than a notedPause.
const pauseNote = "the gateway asks to wait %s: waiting. An interruption loses nothing."

func busy(p *client.Problem) bool {
	return p.Retryable && (p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable)
}

func (p patient) once(ctx context.Context, r client.Request) (client.Answer, error) {
	if r.Method != http.MethodGet {
		longer, cancel := late(ctx)
		defer cancel()
		ctx = longer
	}
	return p.gateway.Do(ctx, r)
}
