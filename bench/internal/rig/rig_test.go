package rig_test

import (
	"testing"
	"time"

	"github.com/sekali/sekali/bench/internal/rig"
)

func TestParseStat_TheNameMayHoldAnything(t *testing.T) {
	t.Parallel()
	parent, own, err := rig.ParseStat("4711 (a ) b (c) S 42 4711 4711 0 -1 4194560 1 2 3 4 150 25 300 50 20 0 9 0 12345 0 0")
	if err != nil {
		t.Fatal(err)
	}
	if parent != 42 || own != 1750*time.Millisecond {
		t.Errorf("parent %d, own time %v", parent, own)
	}
	if _, _, err := rig.ParseStat("1 (x) S 2"); err == nil {
		t.Error("a short line was read")
	}
}

func TestServesAt_FindsTheAddressInTheLog(t *testing.T) {
	t.Parallel()
	log := `{"level":"INFO","msg":"something else","url":"http://127.0.0.1:1"}
not JSON
{"level":"INFO","msg":"sekali serves","url":"http://127.0.0.1:4711"}
`
	if got := rig.ServesAt(log); got != "127.0.0.1:4711" {
		t.Errorf("found %q", got)
	}
	if got := rig.ServesAt(log[:60]); got != "" {
		t.Errorf("found %q before it stood there", got)
	}
}
