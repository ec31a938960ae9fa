package idempotency_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
)

func TestAnswer(t *testing.T) {
	t.Parallel()
	req := idempotency.Request{Tenant: "acme", Key: "k", Fingerprint: fingerprint("POST", "/jobs", "", "", "a")}
	stored := idempotency.Response{Status: 202, Body: []byte("x")}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	tests := []struct {
		name  string
		state idempotency.State
		err   error // nil: the stored response
	}{
		{"Contract_Row29 completed", idempotency.Completed, nil},
		{"Contract_Row30 in progress", idempotency.InProgress, &idempotency.InProgressError{RetryIn: time.Second}},
		{"Contract_Row43 interrupted", idempotency.Interrupted, idempotency.ErrInterrupted},
		{"Contract_Row57 retired", idempotency.Retired, &idempotency.RetiredError{ExpiredAt: at}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rec := idempotency.Record{Request: req, State: tt.state, Response: stored, RetryIn: time.Second, ExpiresAt: at}
			got, err := idempotency.Answer(rec, req)
			if !reflect.DeepEqual(err, tt.err) || (err == nil) != (got.Status == 202) {
				t.Errorf("got %+v, %v; want %v", got, err, tt.err)
			}
			// Row 27: the mismatch comes first, in every state.
			other := req
			other.Fingerprint = fingerprint("POST", "/jobs", "", "", "b")
			got, err = idempotency.Answer(rec, other)
			var mismatch *idempotency.MismatchError
			if !errors.As(err, &mismatch) || mismatch.Part != idempotency.PartBody || got.Status != 0 {
				t.Errorf("another request gets %+v, %v", got, err)
			}
		})
	}
	t.Run("Contract_Row60 unknown state is served to nobody", func(t *testing.T) {
		t.Parallel()
		if got, err := idempotency.Answer(idempotency.Record{Request: req, State: "odd", Response: stored}, req); err == nil || got.Status != 0 {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}

func TestContext(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	if _, ok := idempotency.FromContext(ctx); ok || idempotency.TenantOf(ctx) != "" {
		t.Error("an empty context has a request or a tenant")
	}
	ctx = idempotency.NewContext(idempotency.WithTenant(ctx, "acme"), idempotency.Request{Key: "k"})
	if req, ok := idempotency.FromContext(ctx); !ok || req.Key != "k" || idempotency.TenantOf(ctx) != "acme" {
		t.Errorf("got %+v, %q", req, idempotency.TenantOf(ctx))
	}
}
