package main_test

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/KimMachineGun/automemlimit/memlimit"

	sekali "github.com/sekali/sekali/cmd/sekali"
)

// Not parallel: the limit and the variable are the whole program's.
func TestLimitMemory(t *testing.T) {
	const before = 1 << 40
	for name, test := range map[string]struct {
		given     string // GOMEMLIMIT
		contained func() (uint64, error)
		want      int64
		logged    string
	}{
		"of the container":       {"", memlimit.Limit(1 << 30), (1 << 30) / 100 * 90, `"memory_limit_bytes":966367620,"set_by":"container"`},
		"the environment wins":   {"1TiB", memlimit.Limit(1 << 30), before, `"memory_limit_bytes":1099511627776,"set_by":"GOMEMLIMIT"`},
		"there is none":          {"", failing(memlimit.ErrNoLimit), before, ""},
		"no container":           {"", failing(memlimit.ErrNoCgroup), before, ""},
		"not on this system":     {"", failing(memlimit.ErrCgroupsNotSupported), before, ""},
		"it cannot be read":      {"", failing(errors.New("mountinfo is odd")), before, "mountinfo is odd"},
		"more than can be asked": {"", memlimit.Limit(1<<64 - 1), (1<<63 - 1) / 100 * 90, `"set_by":"container"`},
	} {
		t.Run(name, func(t *testing.T) {
			defer debug.SetMemoryLimit(debug.SetMemoryLimit(before))
			t.Setenv("GOMEMLIMIT", test.given) // puts it back at the end
			if test.given == "" {
				os.Unsetenv("GOMEMLIMIT")
			}
			var log bytes.Buffer
			sekali.LimitMemory(t.Context(), slog.New(slog.NewJSONHandler(&log, nil)), test.contained)
			if got := debug.SetMemoryLimit(-1); got != test.want {
				t.Errorf("the limit is %d, want %d", got, test.want)
			}
			if !strings.Contains(log.String(), test.logged) || (test.logged == "") != (log.Len() == 0) {
				t.Errorf("logged: %s, want %s", log.String(), test.logged)
			}
		})
	}
}

func failing(err error) func() (uint64, error) {
	return func() (uint64, error) { return 0, err }
}
