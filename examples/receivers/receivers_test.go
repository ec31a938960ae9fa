package receivers_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// parallel is how many attempts of one job arrive at the same time.
const parallel = 20

// Each receiver must make one effect of any number of attempts.
func TestReceivers(t *testing.T) {
	t.Parallel()
	for name, command := range map[string][]string{
		"go":     {buildGo(t)},
		"python": {"python3", script(t, "python/receiver.py")},
		"node":   {"node", script(t, "node/receiver.mjs")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(command[0]); err != nil {
				t.Fatalf("%v: scripts/test-deps.sh installs it", err)
			}
			receipts := filepath.Join(t.TempDir(), "receipts")
			address, kill := start(t, command, receipts)
			if before := send(t, http.MethodGet, address, "one"); before.status != http.StatusNotFound {
				t.Errorf("asked about a job that it never got it answers %d, want 404", before.status)
			}
			first := attempt(t, address, "one", "false")
			if asked := send(t, http.MethodGet, address, "one"); asked.status != http.StatusOK || asked.body != first {
				t.Errorf("asked about the job it answers %d %s, want its receipt %s", asked.status, asked.body, first)
			}
			if again := attempt(t, address, "one", "true"); again != first {
				t.Errorf("the second attempt got %s, the first one %s", again, first)
			}
			if other := attempt(t, address, "two", "false"); other == first {
				t.Errorf("another job got the same receipt %s", other)
			}
			attemptInParallel(t, address, "three")

			kill()
			address, _ = start(t, command, receipts)
			if after := attempt(t, address, "one", "true"); after != first {
				t.Errorf("after a crash the receiver answers %s, before it %s", after, first)
			}
			for _, method := range []string{http.MethodPost, http.MethodGet} {
				if got := send(t, method, address, ""); got.status != http.StatusBadRequest {
					t.Errorf("a %s without a key got %d, want 400", method, got.status)
				}
			}
		})
	}
}

func buildGo(t *testing.T) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "receiver")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./go").CombinedOutput(); err != nil {
		t.Fatalf("build: %v: %s", err, out)
	}
	return program
}

func script(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start runs a receiver and returns its address, and what ends it as a crash does.
func start(t *testing.T, command []string, receipts string) (string, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "LISTEN=127.0.0.1:0", "RECEIPTS="+receipts)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill := sync.OnceFunc(func() {
		cancel()
		_ = cmd.Wait() // killed: an error by design
	})
	t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the receiver said %q: %v", line, err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "listening on ")), kill
}

// attempt sends a job and returns the answer's body.
func attempt(t *testing.T, address, job, replayed string) string {
	t.Helper()
	got := send(t, http.MethodPost, address, job)
	if got.status != http.StatusOK || got.replayed != replayed {
		t.Errorf("job %s: %d, replayed %s; want 200 and %s", job, got.status, got.replayed, replayed)
	}
	return got.body
}

func attemptInParallel(t *testing.T, address, job string) {
	t.Helper()
	bodies, effects := map[string]int{}, 0
	var mutex sync.Mutex
	var attempts sync.WaitGroup
	for range parallel {
		attempts.Go(func() {
			got := send(t, http.MethodPost, address, job)
			mutex.Lock()
			defer mutex.Unlock()
			bodies[got.body]++
			if got.replayed == "false" {
				effects++
			}
		})
	}
	attempts.Wait()
	if len(bodies) != 1 || effects != 1 {
		t.Errorf("%d attempts in parallel had %d effects and the answers %v, want one", parallel, effects, bodies)
	}
}

type answer struct {
	status         int
	replayed, body string
}

// send sends one attempt (POST) or the question what became of it (GET) as the
// gateway does: the key is the job's id, quoted.
func send(t *testing.T, method, address, job string) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	body := io.Reader(nil)
	if method == http.MethodPost {
		body = strings.NewReader(`{"order":1}`)
	}
	request, err := http.NewRequestWithContext(ctx, method, address, body)
	if err != nil {
		t.Error(err)
		return answer{}
	}
	request.Header.Set("Content-Type", "application/json")
	if job != "" {
		request.Header.Set("Idempotency-Key", fmt.Sprintf("%q", job))
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Error(err)
		return answer{}
	}
	defer response.Body.Close()
	answered, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return answer{response.StatusCode, response.Header.Get("Idempotent-Replayed"), string(answered)}
}
