package repository_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// A claim whose answer was lost is given back: the client was told that nothing
// ran, and the same request must be able to, also where an interrupted run may
// not be repeated (contract rows 43 and 47, I4).
func TestFailure_C9_Row47_AClaimWithoutAnswerIsGivenBack(t *testing.T) {
	t.Parallel()
	p, r, _ := proxied(t)
	records := r.Records()
	req := idempotency.Request{Tenant: "default", Key: "k", Fingerprint: idempotency.NewFingerprint("POST", "/charges", nil, "application/json", []byte("{}"))}
	begin := idempotency.Beginning{Lease: time.Minute, Takeover: false}

	p.rule(nil, answers(1000, "INSERT"))
	if _, _, ok, err := records.Begin(t.Context(), req, begin); ok || !errors.Is(err, idempotency.ErrUnavailable) && !errors.Is(err, idempotency.ErrOutcomeUnknown) {
		t.Fatalf("with all answers lost: %v, %v", ok, err)
	}
	p.rule(nil, nil)
	claim, rec, ok, err := records.Begin(t.Context(), req, begin)
	if err != nil || !ok || claim.Attempt != 1 {
		t.Fatalf("the same request again: %+v, %+v, %v, %v", claim, rec, ok, err)
	}
}
