package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/internal/testenv"
)

// Rig is the servers and programs of one run.
type Rig struct {
	Postgres *Postgres
	Redis    *testenv.RedisServer
	Folder   string // for logs, configuration and SQLite files
	Program  string // the gateway's

	self string // this program, which runs the contestants
}

// New starts Postgres and Redis. Close ends everything.
func New(ctx context.Context, program string) (*Rig, error) {
	program, err := filepath.Abs(program)
	if err != nil {
		return nil, fmt.Errorf("rig: program: %w", err)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("rig: find this program: %w", err)
	}
	r := &Rig{Program: program, self: self}
	if r.Folder, err = os.MkdirTemp("", "sekali-bench-"); err != nil {
		return nil, fmt.Errorf("rig: %w", err)
	}
	if r.Postgres, err = StartPostgres(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if r.Redis, err = testenv.StartRedis(); err != nil {
		return nil, errors.Join(fmt.Errorf("rig: %w", err), r.Close())
	}
	return r, nil
}

// Close ends the servers and removes their files and the folder.
func (r *Rig) Close() error {
	var failures []error
	if r.Postgres != nil {
		failures = append(failures, r.Postgres.Stop())
	}
	if r.Redis != nil {
		failures = append(failures, r.Redis.Stop())
	}
	return errors.Join(append(failures, os.RemoveAll(r.Folder))...)
}

// Gateway starts the program with the database, the configuration, as YAML, and
// more of an environment; its log is as it is by default, written to a file.
func (r *Rig) Gateway(ctx context.Context, database, config string, environment ...string) (*Process, error) {
	file, err := os.CreateTemp(r.Folder, "config-*.yaml")
	if err != nil {
		return nil, fmt.Errorf("rig: configuration: %w", err)
	}
	defer file.Close()
	if _, err := file.WriteString("listen: 127.0.0.1:0\n" + config); err != nil {
		return nil, fmt.Errorf("rig: configuration: %w", err)
	}
	cmd := exec.CommandContext(ctx, r.Program, "serve", "--config", file.Name())
	cmd.Dir = r.Folder
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + r.Folder, "DATABASE_URL=" + database}, environment...)
	return launch("sekali", r.Folder, cmd, servesAt)
}

// servesAt finds the address in the gateway's log.
func servesAt(output string) string {
	for line := range strings.Lines(output) {
		var entry struct {
			Message string `json:"msg"`
			URL     string `json:"url"`
		}
		if json.Unmarshal([]byte(line), &entry) == nil && entry.Message == "sekali serves" {
			return strings.TrimPrefix(entry.URL, "http://")
		}
	}
	return ""
}

// Contestant starts one of the others.
func (r *Rig) Contestant(ctx context.Context, name string, o contestant.Options) (*Process, error) {
	options, err := json.Marshal(o)
	if err != nil {
		return nil, fmt.Errorf("rig: options: %w", err)
	}
	cmd := exec.CommandContext(ctx, r.self, "contestant", name)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), OptionsVariable + "=" + string(options)}
	return launch(name, r.Folder, cmd, func(output string) string {
		line, _, complete := strings.Cut(output, "\n")
		if !complete || !strings.HasPrefix(line, "127.0.0.1:") {
			return ""
		}
		return line
	})
}

// OptionsVariable carries the options to the contestant's process: its command
// line would show the password of the database.
const OptionsVariable = "BENCH_CONTESTANT_OPTIONS"
