package job_test

import (
	"os"
	"regexp"
	"testing"

	"github.com/sekali/sekali/job"
)

// docs/state-machine.md draws the transition table; this holds the two together.
func TestStatus_TheDiagramIsTheTable(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/state-machine.md")
	if err != nil {
		t.Fatal(err)
	}
	drawn := map[[2]job.Status]bool{}
	for _, arrow := range regexp.MustCompile(`(?m)^ +(\w+) --> (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		drawn[[2]job.Status{job.Status(arrow[1]), job.Status(arrow[2])}] = true
	}
	for _, from := range job.Statuses() {
		for _, to := range job.Statuses() {
			if can := job.CanMove(from, to); can != drawn[[2]job.Status{from, to}] {
				t.Errorf("%s to %s: the table says %v, the diagram the opposite", from, to, can)
			}
		}
	}
}
