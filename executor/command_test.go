//go:build unix

package executor_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
)

func newCommand(t *testing.T, cfg executor.CommandConfig) *executor.Command {
	t.Helper()
	c, err := executor.NewCommand(cfg)
	if err != nil {
		t.Fatalf("NewCommand: %v", err)
	}
	return c
}

func shell(t *testing.T, script string) *executor.Command {
	t.Helper()
	return newCommand(t, executor.CommandConfig{Argv: []string{"sh", "-c", script}})
}

func TestContract_SectionI_CommandResult(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ script, body, mediaType string }{
		"the payload is the input":     {"cat", `{"a": 1.0}`, "application/json"},
		"text":                         {"echo hi", "hi\n", "text/plain; charset=utf-8"},
		"bytes":                        {`printf '\377\001'`, "\xff\x01", "application/octet-stream"},
		"an error output is no result": {"echo 1; echo warning >&2", "1\n", "application/json"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, err := shell(t, test.script).Execute(t.Context(), claimed(`{"a": 1.0}`))
			wantResult(t, result, err, test.body, test.mediaType)
		})
	}
	t.Run("no output is no result", func(t *testing.T) {
		t.Parallel()
		if result, err := shell(t, "cat >/dev/null").Execute(t.Context(), claimed("{}")); err != nil || result != nil {
			t.Errorf("Execute = %v, %v, want neither", result, err)
		}
	})
}

func TestContract_SectionI_CommandEnvironment(t *testing.T) {
	t.Setenv("SEKALI_DATABASE_URL", "canary") // not parallel: what the gateway's own environment holds
	t.Setenv("CANARY", "canary")
	c := newCommand(t, executor.CommandConfig{Argv: []string{"env"}, Env: map[string]string{"SIZE": "200", "SPACE": "a b\n$c"}, Dir: "/"})
	claim := claimed("{}")
	claim.Key = `k"$(id) ~`
	result, err := c.Execute(t.Context(), claim)
	if err != nil {
		t.Fatalf("Execute: %v", err)
	}
	want := []string{
		"PATH=" + os.Getenv("PATH"), "SIZE=200", "SPACE=a b", "$c",
		"SEKALI_JOB_ID=" + jobID, `SEKALI_KEY=k"$(id) ~`, "SEKALI_TENANT=acme",
		"SEKALI_ATTEMPT=3", "SEKALI_FENCING_TOKEN=17",
	}
	got := strings.Split(strings.TrimSpace(string(result.Body)), "\n")
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("environment = %q, want %q", got, want)
	}
}

func TestCommand_ArgumentsAreNoShell(t *testing.T) {
	t.Parallel()
	c := newCommand(t, executor.CommandConfig{Argv: []string{"printf", "%s|", "$(id)", ";rm", "a\nb", "-"}})
	result, err := c.Execute(t.Context(), claimed("{}"))
	wantResult(t, result, err, "$(id)|;rm|a\nb|-|", "text/plain; charset=utf-8")
}

func TestCommand_RelativeProgramsLieInDir(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeProgram(t, filepath.Join(dir, "job.sh"), "#!/bin/sh\npwd")
	result, err := newCommand(t, executor.CommandConfig{Argv: []string{"./job.sh"}, Dir: dir}).Execute(t.Context(), claimed("{}"))
	wantResult(t, result, err, dir+"\n", "text/plain; charset=utf-8")
}

func writeProgram(t *testing.T, name, text string) {
	t.Helper()
	// No process is forked meanwhile, for another test: it would hold the file open
	// for writing until it executes something, and such a program cannot be started.
	syscall.ForkLock.RLock()
	err := os.WriteFile(name, []byte(text), 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
}

func TestContract_SectionI_CommandFailures(t *testing.T) {
	t.Parallel()
	tests := map[string]struct{ script, code, detail string }{
		"exit 1":    {"echo secret >&2; exit 1", executor.CodeExit, "the program exited with 1"},
		"exit 75":   {"exit 75", executor.CodeExit, "the program exited with 75"},
		"signal":    {"kill -TERM $$", executor.CodeSignal, "the program ended by signal: terminated"},
		"segfault":  {"kill -SEGV $$", executor.CodeSignal, "the program ended by signal: segmentation fault"},
		"not found": {"exec /no/such/program 2>/dev/null", executor.CodeExit, "the program exited with 127"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := shell(t, test.script).Execute(t.Context(), claimed("{}"))
			e := wantFailure(t, err, test.code, false)
			if got := strings.TrimSuffix(e.Detail, " (core dumped)"); got != test.detail {
				t.Errorf("detail = %q, want %q", e.Detail, test.detail)
			}
		})
	}
	for _, program := range []string{"/no/such/program", "no-such-program", "/"} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			_, err := newCommand(t, executor.CommandConfig{Argv: []string{program}}).Execute(t.Context(), claimed("{}"))
			e := wantFailure(t, err, executor.CodeNotStarted, false)
			if e.Detail != "the program could not be started" {
				t.Errorf("detail = %q", e.Detail)
			}
		})
	}
}

func TestCommand_ErrorBodyIsTheEndOfTheErrorOutput(t *testing.T) {
	t.Parallel()
	c := newCommand(t, executor.CommandConfig{
		Argv:      []string{"sh", "-c", `head -c 3000000 /dev/zero | tr '\0' x >&2; printf '\377\033[31m no such order\n' >&2; exit 3`},
		ErrorBody: true,
	})
	_, err := c.Execute(t.Context(), claimed("{}"))
	e := wantFailure(t, err, executor.CodeExit, false)
	quoted, found := strings.CutPrefix(e.Detail, "the program exited with 3: ")
	if !found || len(quoted) > 1024 || !strings.HasSuffix(quoted, "xx??[31m no such order") {
		t.Errorf("detail = %q, want the last KiB in clean UTF-8", e.Detail)
	}
}

func TestCommand_AnUnreadPayloadIsNoFailure(t *testing.T) {
	t.Parallel()
	large := `"` + strings.Repeat("x", 8<<20) + `"` // far more than a pipe holds
	for _, script := range []string{"exit 0", "exec <&-; exit 0", "head -c 1 >/dev/null"} {
		if _, err := shell(t, script).Execute(t.Context(), claimed(large)); err != nil {
			t.Errorf("%q: %v", script, err)
		}
	}
	// A process that holds the input open and does not read does not hold us.
	if _, err := shell(t, "sleep 300 <&0 & exit 0").Execute(t.Context(), claimed(large)); err != nil {
		t.Errorf("with the input held open: %v", err)
	}
}

func TestContract_SectionI_CommandResultTooLarge(t *testing.T) {
	t.Parallel()
	limited := func(script string) (*job.Result, error) {
		c := newCommand(t, executor.CommandConfig{Argv: []string{"sh", "-c", script}, ResultLimit: 10})
		return c.Execute(t.Context(), claimed("{}"))
	}
	for _, script := range []string{"printf 12345678901", "yes", "trap '' PIPE TERM; yes", "yes & wait"} {
		_, err := limited(script)
		wantFailure(t, err, executor.CodeResultTooLarge, true)
	}
	result, err := limited("printf 1234567890")
	wantResult(t, result, err, "1234567890", "application/json")
}

// Not parallel: it looks at the memory of the whole process.
func TestFailure_BR74_AFloodOfOutputIsBoundedInMemory(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := shell(t, "yes | head -c 200000000; yes | head -c 200000000 >&2").Execute(t.Context(), claimed("{}"))
	wantFailure(t, err, executor.CodeResultTooLarge, true)
	_, err = shell(t, "yes | head -c 200000000 >&2").Execute(t.Context(), claimed("{}"))
	if err != nil {
		t.Errorf("a flood of error output: %v", err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 64<<20 {
		t.Errorf("%d bytes allocated for 400 MB of output", grown)
	}
}

// A named pipe tells when everything that holds it has ended: its reader sees
// the end of the file.
func pipe(t *testing.T) (name string, allGone <-chan struct{}) {
	t.Helper()
	name = filepath.Join(t.TempDir(), "held")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = os.ReadFile(name)
	}()
	return name, gone
}

func TestFailure_BR74_NothingIsLeftOfTheProgramsGroup(t *testing.T) {
	t.Parallel()
	tests := map[string]string{
		"pipes inherited": "sleep 300 & exit 0",
		"pipes closed":    "sleep 300 >/dev/null 2>&1 </dev/null & exit 0",
		"signals ignored": "(trap '' TERM HUP INT; sleep 300) & exit 0",
		"grandchildren":   "(sleep 300 & sleep 300 & wait) & exit 0",
		"after a failure": "sleep 300 & exit 9",
	}
	for name, script := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			held, gone := pipe(t)
			_, err := shell(t, "exec 9>"+held+"; "+script).Execute(t.Context(), claimed("{}"))
			if strings.HasSuffix(script, "exit 9") {
				wantFailure(t, err, executor.CodeExit, false)
			} else if err != nil {
				t.Errorf("Execute: %v", err)
			}
			receive(t, gone, "the end of what the program left behind")
		})
	}
}

func TestFailure_BR74_AnEndedAttemptKillsTheWholeGroup(t *testing.T) {
	t.Parallel()
	scripts := map[string]string{
		"waits for a child":      "sleep 300 & echo $!; wait",
		"ignores signals (BR66)": "trap '' TERM INT HUP; sleep 300; sleep 300",
		"prints for ever":        "yes >&2",
	}
	for name, script := range scripts {
		for _, test := range causes {
			t.Run(name+"/"+test.cause.Error(), func(t *testing.T) {
				t.Parallel()
				held, gone := pipe(t)
				begun := filepath.Join(t.TempDir(), "begun")
				ctx, cancel := context.WithCancelCause(t.Context())
				done := make(chan error, 1)
				c := shell(t, "exec 9>"+held+"; touch "+begun+"; "+script)
				go func() {
					_, err := c.Execute(ctx, claimed("{}"))
					done <- err
				}()
				testenv.Eventually(t, hangs, "the program began", func() bool { _, err := os.Stat(begun); return err == nil })
				cancel(test.cause)
				err := receive(t, done, "the end of the attempt")
				wantFailure(t, err, test.code, false)
				if !errors.Is(err, test.cause) {
					t.Errorf("error = %v, want it to wrap the cause", err)
				}
				receive(t, gone, "the end of the group")
			})
		}
	}
	t.Run("nothing starts after the end", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(job.ErrLeaseLost)
		begun := filepath.Join(t.TempDir(), "begun")
		_, err := shell(t, "touch "+begun).Execute(ctx, claimed("{}"))
		wantFailure(t, err, executor.CodeLeaseLost, false)
		if _, err := os.Stat(begun); err == nil {
			t.Error("the program ran")
		}
	})
}

func TestNewCommand_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	argv := []string{"true"}
	tests := map[string]struct {
		cfg  executor.CommandConfig
		want []string
	}{
		"no argv":       {executor.CommandConfig{}, []string{"argv"}},
		"empty program": {executor.CommandConfig{Argv: []string{""}}, []string{"argv"}},
		"NUL in argv":   {executor.CommandConfig{Argv: []string{"a", "b\x00"}}, []string{"NUL"}},
		"own variable":  {executor.CommandConfig{Argv: argv, Env: map[string]string{"SEKALI_KEY": "x"}}, []string{"SEKALI_KEY", "own"}},
		"all at once": {
			executor.CommandConfig{Env: map[string]string{"A=B": "canary", "": "canary", "C": "canary\x00"}},
			[]string{"argv", `"A=B"`, `""`, `"C"`},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := executor.NewCommand(test.cfg)
			wantProblem(t, err, test.want...)
			if strings.Contains(err.Error(), "canary") {
				t.Errorf("error %q shows a value", err)
			}
		})
	}
}
