package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// oldestPostgres is the oldest major version that Sekali supports, and so the
// oldest that tests may run on.
const oldestPostgres = 14

// postgresFolders is where systems keep programs that are not on the PATH:
// Debian, Red Hat, Homebrew.
var postgresFolders = []string{
	"/usr/lib/postgresql/*/bin",
	"/usr/pgsql-*/bin",
	"/opt/homebrew/opt/postgresql@*/bin",
	"/usr/local/opt/postgresql@*/bin",
}

var firstNumber = regexp.MustCompile(`\d+`)

// missing is the one message for a machine that lacks a server.
func missing(what string) error {
	return fmt.Errorf("testenv: %s was not found: install the packages postgresql-15 (or any from %d) and redis-server "+
		"(scripts/test-deps.sh does so), or name running servers in %s and %s",
		what, oldestPostgres, PostgresVariable, RedisVariable)
}

// postgresBin returns the folder with the newest usable Postgres programs.
func postgresBin() (string, error) {
	var candidates []string
	if path, err := exec.LookPath("postgres"); err == nil {
		candidates = append(candidates, filepath.Dir(path))
	}
	for _, pattern := range postgresFolders {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", fmt.Errorf("testenv: look for %s: %w", pattern, err)
		}
		candidates = append(candidates, found...)
	}
	best, newest := "", oldestPostgres-1
	for _, bin := range candidates {
		if v := postgresMajor(bin); v > newest {
			best, newest = bin, v
		}
	}
	if best == "" {
		return "", missing("Postgres")
	}
	return best, nil
}

// postgresMajor returns the major version of the programs in bin, 0 where there
// are none that can start a server.
func postgresMajor(bin string) int {
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return 0
	}
	out, err := exec.Command(filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return 0
	}
	major, err := strconv.Atoi(firstNumber.FindString(string(out)))
	if err != nil {
		return 0
	}
	return major
}

// faketimeLibraries is where systems keep libfaketime: Debian, Red Hat.
var faketimeLibraries = []string{
	"/usr/lib/*/faketime/libfaketime.so.1",
	"/usr/lib*/faketime/libfaketime.so.1",
}

// fakeClock returns the environment of a program whose clock is ahead. Durations
// stay as they are, and so do the times of files.
func fakeClock(ahead time.Duration) ([]string, error) {
	for _, pattern := range faketimeLibraries {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("testenv: look for %s: %w", pattern, err)
		}
		if len(found) > 0 {
			return []string{
				"LD_PRELOAD=" + found[0], fmt.Sprintf("FAKETIME=%+d", int64(ahead.Seconds())),
				"FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1",
			}, nil
		}
	}
	return nil, errors.New("testenv: libfaketime was not found: install the package libfaketime (scripts/test-deps.sh does so)")
}

func redisProgram() (string, error) {
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", missing("redis-server")
}
