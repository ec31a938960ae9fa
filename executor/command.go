package executor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/job"
)

// leftoverGrace is how long a process that left the program's group may keep
// the program's pipes open after its end, before they are closed. What the
// program wrote is read within milliseconds.
const leftoverGrace = time.Second

// CommandConfig says which program a Command executor runs.
type CommandConfig struct {
	Argv        []string          // the program and its arguments, as they are: no shell
	Env         map[string]string // added to the program's environment
	Dir         string            // working directory; empty: the gateway's
	ResultLimit int64             // of standard output in bytes; 0: DefaultResultLimit
	ErrorBody   bool              // quote the end of standard error in the job's error
}

// Command runs a local program: the payload on its standard input, the result
// from its standard output. Exit code 0 succeeds; any other follows the retry
// policy (75, EX_TEMPFAIL, is the one to choose for "try again").
//
// It runs at least once. The program has a process group of its own, of which
// nothing is left when Execute returns; only a process that has left the group
// escapes. When ctx ends the group is killed. On Linux the program dies with
// the gateway, even if that is killed.
//
// Its environment is SEKALI_JOB_ID, SEKALI_KEY, SEKALI_TENANT, SEKALI_ATTEMPT,
// SEKALI_FENCING_TOKEN, the configured variables, and PATH: nothing else of
// the gateway's, which may hold secrets.
type Command struct {
	argv        []string
	env         []string
	dir         string
	resultLimit int64
	errorBody   bool
}

var _ Executor = (*Command)(nil)

// NewCommand returns a Command executor. The program is looked up at each
// attempt, so it may be installed later. On a system without process groups
// it returns an error.
func NewCommand(cfg CommandConfig) (*Command, error) {
	env, envErr := parseEnv(cfg.Env)
	if err := errors.Join(supported(), checkArgv(cfg.Argv), envErr); err != nil {
		return nil, err
	}
	return &Command{
		argv:        slices.Clone(cfg.Argv),
		env:         env,
		dir:         cfg.Dir,
		resultLimit: cmp.Or(cfg.ResultLimit, DefaultResultLimit),
		errorBody:   cfg.ErrorBody,
	}, nil
}

func checkArgv(argv []string) error {
	if len(argv) == 0 || argv[0] == "" {
		return errors.New("executor: command argv: want the program and its arguments")
	}
	if slices.ContainsFunc(argv, func(arg string) bool { return strings.ContainsRune(arg, 0) }) {
		return errors.New("executor: command argv: an argument cannot hold a NUL byte")
	}
	return nil
}

// parseEnv returns the fixed part of the environment. Its errors do not show
// values: they may be credentials.
func parseEnv(configured map[string]string) ([]string, error) {
	env := []string{"PATH=" + os.Getenv("PATH")}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		switch {
		case name == "" || strings.ContainsAny(name, "=\x00"):
			problems = append(problems, fmt.Errorf("executor: command env %q: not a name", name))
		case strings.HasPrefix(name, "SEKALI_"):
			problems = append(problems, fmt.Errorf("executor: command env %q: SEKALI_ names are the gateway's own", name))
		case strings.ContainsRune(configured[name], 0):
			problems = append(problems, fmt.Errorf("executor: command env %q: its value cannot hold a NUL byte", name))
		}
		env = append(env, name+"="+configured[name]) // the last PATH counts
	}
	return env, errors.Join(problems...)
}

// Execute runs the program once.
func (c *Command) Execute(ctx context.Context, claimed job.Claimed) (*job.Result, error) {
	runCtx, kill := context.WithCancel(ctx)
	defer kill()
	output := &cappedBuffer{limit: c.resultLimit, overflow: kill}
	complaints := &tail{limit: quoteLimit}

	cmd := exec.CommandContext(runCtx, c.argv[0], c.argv[1:]...)
	cmd.Dir = c.dir
	cmd.Env = c.environment(claimed)
	cmd.Stdin = bytes.NewReader(payloadOf(claimed))
	cmd.Stdout = output
	cmd.Stderr = complaints
	cmd.WaitDelay = leftoverGrace
	err := run(cmd)

	if output.exceeded {
		return nil, tooLarge(c.resultLimit)
	}
	// ErrWaitDelay: the program exited with 0, and others held its pipes.
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return resultOf(output.buf.Bytes()), nil
	}
	// Not before: a program that ended well just before its time was over has
	// succeeded.
	if over := ended(ctx); over != nil {
		return nil, over
	}
	return nil, c.failed(err, complaints.buf)
}

func (c *Command) environment(claimed job.Claimed) []string {
	return append(slices.Clone(c.env),
		"SEKALI_JOB_ID="+string(claimed.ID),
		"SEKALI_KEY="+string(claimed.Key),
		"SEKALI_TENANT="+string(claimed.Tenant),
		"SEKALI_ATTEMPT="+strconv.Itoa(claimed.Attempts),
		"SEKALI_FENCING_TOKEN="+strconv.FormatInt(claimed.Lease.Token, 10),
	)
}

// run starts the program and waits for its end, which comes at the latest with
// that of the command's context. Then it kills what is left of the group.
func run(cmd *exec.Cmd) error {
	// The kernel sends the parent-death signal when the thread that started
	// the program ends, not the process (golang/go#27505). While it is ours,
	// nobody else can end it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ownGroup(cmd)
	cmd.Cancel = func() error {
		_ = cmd.Process.Kill() // fails if it has ended: just as well
		// So that Wait tells how the program ended, and not that ctx did.
		return os.ErrProcessDone
	}
	if err := cmd.Start(); err != nil {
		return &job.AttemptError{
			Code:   CodeNotStarted,
			Detail: "the program could not be started",
			Err:    fmt.Errorf("executor: start program: %w", err),
		}
	}
	return await(cmd)
}

func (c *Command) failed(err error, complaints []byte) error {
	if attempt := (*job.AttemptError)(nil); errors.As(err, &attempt) {
		return attempt
	}
	e := &job.AttemptError{
		Code:   CodeExit,
		Detail: "how the program ended is not known",
		Err:    fmt.Errorf("executor: run program: %w", err),
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		e.Detail = "the program exited with " + strconv.Itoa(exit.ExitCode())
		if !exit.Exited() {
			e.Code = CodeSignal
			e.Detail = "the program ended by " + exit.ProcessState.String() // "signal: killed"
		}
	}
	if c.errorBody {
		e.Detail = withQuote(e.Detail, complaints)
	}
	return e
}

// cappedBuffer keeps up to limit bytes. The first byte beyond it calls
// overflow (which must bear being called again); the rest is dropped.
type cappedBuffer struct {
	buf      bytes.Buffer
	limit    int64
	overflow func()
	exceeded bool
}

func (b *cappedBuffer) Write(p []byte) (int, error) {
	if int64(b.buf.Len()+len(p)) <= b.limit {
		return b.buf.Write(p)
	}
	b.exceeded = true
	b.overflow()
	return len(p), nil
}

// tail keeps the last bytes written to it: the last thing that a program
// prints tells best why it failed.
type tail struct {
	buf   []byte
	limit int
}

func (t *tail) Write(p []byte) (int, error) {
	t.buf = append(t.buf, p[max(0, len(p)-t.limit):]...)
	t.buf = t.buf[max(0, len(t.buf)-t.limit):]
	return len(p), nil
}
