package job_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func TestID_CarriesItsSlotAndSortsByTime(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var ids []job.ID
	for i := range 300 {
		id := job.NewID(start.Add(time.Duration(i)*time.Millisecond), job.Slot(i%job.Slots))
		if got := id.Slot(); got != job.Slot(i%job.Slots) {
			t.Fatalf("%s: slot %d, want %d", id, got, i%job.Slots)
		}
		if parsed, err := job.ParseID(string(id)); err != nil || parsed != id {
			t.Fatalf("ParseID(%s) = %s, %v", id, parsed, err)
		}
		if id[14] != '7' || id[19] < '8' || id[19] > 'b' {
			t.Fatalf("%s is no UUIDv7", id)
		}
		ids = append(ids, id)
	}
	if !slices.IsSorted(ids) {
		t.Error("ids of later milliseconds do not sort later")
	}
}

func TestParseID_RefusesWhatIsNone(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "x", "0198F000-0000-7000-8000-000000000000", "0198f000-0000-7000-8000-00000000000",
		"0198f000-0000-7000-8000-0000000000000", "0198f000x0000-7000-8000-000000000000", "0198f000-0000-7000-8000-00000000000\x00",
	} {
		if id, err := job.ParseID(text); err == nil {
			t.Errorf("ParseID(%q) = %q", text, id)
		}
	}
}

// The slot function is fixed for ever: rows of existing databases carry it. The
// numbers were computed by another implementation: the first four bytes of
// sha256("tenant\x00key"), big-endian, modulo 256.
func TestKeySlot_IsFixed(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		tenant idempotency.Tenant
		key    idempotency.Key
		want   job.Slot
	}{{"default", "order-42", 188}, {"default", "", 243}, {"t1", "1k", 43}, {"t11", "k", 38}} {
		if got := job.KeySlot(tt.tenant, tt.key); got != tt.want {
			t.Errorf("%s/%s: slot %d, want %d", tt.tenant, tt.key, got, tt.want)
		}
	}
}
