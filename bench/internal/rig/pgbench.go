package rig

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// SingleRow is pgbench with a script.
type SingleRow struct {
	Database *Database

	program, script string
	environment     []string
}

// SingleRow prepares pgbench, of the same version as the server.
func (r *Rig) SingleRow(d *Database, script string) (SingleRow, error) {
	server, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", r.Postgres.master))
	if err != nil {
		return SingleRow{}, fmt.Errorf("rig: find pgbench: %w", err)
	}
	s := SingleRow{Database: d, program: filepath.Join(filepath.Dir(server), "pgbench"), script: filepath.Join(r.Folder, "single-row.sql")}
	if _, err := os.Stat(s.program); err != nil {
		return SingleRow{}, fmt.Errorf("rig: pgbench belongs to the server's programs: %w", err)
	}
	if err := os.WriteFile(s.script, []byte(script), 0o600); err != nil {
		return SingleRow{}, fmt.Errorf("rig: pgbench: %w", err)
	}
	address, err := url.Parse(d.URL)
	if err != nil {
		return SingleRow{}, errors.New("rig: the database's URL is none") // its text holds a password
	}
	password, _ := address.User.Password()
	s.environment = []string{
		"PATH=" + os.Getenv("PATH"), "PGHOST=" + address.Hostname(), "PGPORT=" + address.Port(),
		"PGUSER=" + address.User.Username(), "PGPASSWORD=" + password, "PGDATABASE=" + d.Name,
	}
	return s, nil
}

var (
	transactions = regexp.MustCompile(`number of transactions actually processed: (\d+)`)
	perSecond    = regexp.MustCompile(`tps = ([0-9.]+) \(without initial connection time\)`)
)

// Run runs the script on so many connections, without the pauses in which they
// connect, and returns how many transactions it did in which time.
func (s SingleRow) Run(ctx context.Context, connections int, window time.Duration) (int, time.Duration, error) {
	seconds := max(1, int(window.Round(time.Second).Seconds()))
	cmd := exec.CommandContext(ctx, s.program, "--no-vacuum", "--protocol=prepared", "--jobs=2",
		"--client="+strconv.Itoa(connections), "--time="+strconv.Itoa(seconds), "--file="+s.script)
	cmd.Env = s.environment
	out, err := cmd.CombinedOutput()
	if err != nil {
		return 0, 0, fmt.Errorf("rig: pgbench: %w: %s", err, out)
	}
	done, tps := transactions.FindSubmatch(out), perSecond.FindSubmatch(out)
	if done == nil || tps == nil {
		return 0, 0, fmt.Errorf("rig: pgbench says something new: %s", out)
	}
	n, err := strconv.Atoi(string(done[1]))
	if err != nil {
		return 0, 0, fmt.Errorf("rig: pgbench: %w", err)
	}
	rate, err := strconv.ParseFloat(string(tps[1]), 64)
	if err != nil {
		return 0, 0, fmt.Errorf("rig: pgbench: %w", err)
	}
	return n, time.Duration(float64(n) / rate * float64(time.Second)), nil
}
