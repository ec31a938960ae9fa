package e2e_test

import (
	"path"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sekali/sekali/internal/testenv"
)

const workersGuide = "docs/workers.md"

// The page is typed into one terminal: its commands share variables.
func TestDocs_TheWorkersPageShowsTheAnswersThatCome(t *testing.T) {
	onEngines(t, func(t *testing.T, database string) {
		d := follow(t, database)
		example := repositoryFile(t, "examples/worker-python/sekali.yaml")
		d.config = string(merge(t, example, "listen: 127.0.0.1:"+d.ports["8080"]))
		starts := 0
		d.steps = map[string]func(){
			"$ make run CONFIG=examples/worker-python/sekali.yaml": func() { d.serve(); starts++ },
			"$ sekali token": func() {}, // shown only: this gateway asks for no tokens
		}
		d.variables = []string{"claimed", "id", "lease"}
		d.read(workersGuide)
		if starts != 1 || d.checked < 9 {
			t.Errorf("the gateway was started %d times, and %d answers were compared", starts, d.checked)
		}
	})
}

func TestDocs_TheWorkersOfTheExamplesDoWhatTheirReadmesSay(t *testing.T) {
	t.Parallel()
	for kind, command := range exampleWorkers {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := follow(t, testenv.SQLite(t))
			folder := path.Dir(command[1])
			d.config = string(merge(t, repositoryFile(t, folder+"/sekali.yaml"), "listen: 127.0.0.1:"+d.ports["8080"]))
			started := false
			d.steps = map[string]func(){
				"$ make run CONFIG=" + folder + "/sekali.yaml": d.serve,
				"$ " + strings.Join(command, " "):              func() { startWorker(t, kind, d.g.url); started = true },
			}
			d.read(folder + "/README.md")
			d.g.became(t, "nap-1", "processing")
			if !started || d.checked != 1 {
				t.Errorf("the worker was started: %v; %d answers were compared", started, d.checked)
			}
		})
	}
}

func TestDocs_TheWorkersPageShowsTheConfigurationOfTheExamples(t *testing.T) {
	t.Parallel()
	var example, shown map[string]any
	if err := yaml.Unmarshal([]byte(repositoryFile(t, "examples/worker-python/sekali.yaml")), &example); err != nil {
		t.Fatal(err)
	}
	for _, block := range docBlocks(t, workersGuide) {
		if block.language != "yaml" {
			continue
		}
		if err := yaml.Unmarshal([]byte(block.text), &shown); err != nil {
			t.Fatal(err)
		}
	}
	if !reflect.DeepEqual(example, shown) {
		t.Errorf("the page shows %v, and the examples have %v", shown, example)
	}
}
