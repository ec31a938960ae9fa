package e2e_test

import (
	"testing"

	"github.com/sekali/sekali/internal/testenv"
)

// The pages whose reader starts the gateway; the quick start's kills it in
// mid-work, and starts it again.
func TestDocs_TheReadmeAndTheQuickStartDoWhatTheySay(t *testing.T) {
	t.Parallel()
	for file, wanted := range map[string]int{"README.md": 1, "docs/quickstart.md": 2} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			d := follow(t, testenv.SQLite(t))
			starts := 0
			serve := func() { d.serve(); starts++ }
			d.steps = map[string]func(){
				"$ git clone": serve, "$ make run": serve,
				// What needs servers of one's own, or jobs that went wrong, is shown only.
				"$ DATABASE_URL=": func() {}, "$ sekali inspect": func() {},
			}
			d.read(file)
			if starts != wanted {
				t.Errorf("the gateway was started %d times and not %d times", starts, wanted)
			}
		})
	}
}
