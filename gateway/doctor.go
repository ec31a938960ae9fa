package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sekali/sekali/migrations"
	"github.com/sekali/sekali/repository"
)

// FindingState says how one thing stands that was looked at.
type FindingState string

// The states of a finding.
const (
	FindingOK      FindingState = "ok"
	FindingWarning FindingState = "warning" // works, and should be known
	FindingProblem FindingState = "problem" // does not work, or breaks a promise
)

// Finding is one thing that was looked at: what was seen, and what to do about it
// where that is not all right.
type Finding struct {
	Check string       `json:"check"` // stable name, e.g. database.clock
	State FindingState `json:"state"`
	Seen  string       `json:"seen"`
	Do    string       `json:"do,omitempty"`
}

// findingList are in the order in which they were made.
type findingList []Finding

func (f *findingList) ok(check, seen string, args ...any) {
	*f = append(*f, Finding{Check: check, State: FindingOK, Seen: fmt.Sprintf(seen, args...)})
}

func (f *findingList) warn(check, do, seen string, args ...any) {
	*f = append(*f, Finding{Check: check, State: FindingWarning, Seen: fmt.Sprintf(seen, args...), Do: do})
}

func (f *findingList) problem(check, do, seen string, args ...any) {
	*f = append(*f, Finding{Check: check, State: FindingProblem, Seen: fmt.Sprintf(seen, args...), Do: do})
}

// unread tells of a check that could not be made.
func (f *findingList) unread(check string, err error) {
	f.warn(check, "find out why, and ask again: what was not looked at may be in any state", "could not be looked at: %v", err)
}

// Names of checks that are told of in several places.
const (
	checkConfiguration = "configuration"
	checkDatabase      = "database"
	checkPooler        = "database.pooler"
	checkSchemaOf      = "database.schema"
	checkFile          = "database.file"
	checkJobs          = "jobs"
)

// ExamineConfig tells what Load said of a configuration.
func ExamineConfig(err error) []Finding {
	var f findingList
	var wrong *ConfigError
	switch {
	case err == nil:
		f.ok(checkConfiguration, "it can be read, and contradicts itself nowhere")
	case errors.As(err, &wrong):
		for _, p := range wrong.Problems {
			f.problem(checkConfiguration, "correct it; docs/configuration.md lists every key", "%s", p)
		}
	default:
		f.problem(checkConfiguration, "correct it", "%v", err)
	}
	return f
}

// Examine looks at everything that the configuration names, and at the jobs in the
// database, and tells what it has seen. It needs no running gateway, disturbs none,
// and changes nothing: the database is not migrated, and what is written to find
// out whether it can be is rolled back.
func Examine(ctx context.Context, cfg Config) []Finding {
	f := findingList(judgeConfig(cfg, openFiles()))
	examineDatabase(ctx, cfg, &f)
	if cfg.RedisURL != "" {
		f = append(f, judgeRedis(readRedis(ctx, cfg.RedisURL), redactURL(cfg.RedisURL))...)
	}
	return f
}

const (
	// doctorConns are as few as a repository opens: a server that is short of them
	// is one of the things to find.
	doctorConns = 4
	// damagePatience is how long the look for damage in a file may take: long enough
	// for gigabytes, short enough for somebody who waits.
	damagePatience = 10 * time.Second
)

func examineDatabase(ctx context.Context, cfg Config, f *findingList) {
	repo, err := repository.Open(ctx, cfg.DatabaseURL, repository.Options{MaxConns: doctorConns, AsIs: true})
	if errors.Is(err, fs.ErrNotExist) {
		examineFolder(cfg.DatabaseURL, err, f)
		return
	}
	if err != nil {
		f.problem(checkDatabase, "make database_url right, or the database reachable from here (a file: readable and writable by this user)", "cannot be opened: %v", err)
		return
	}
	defer repo.Close()
	if repo.Engine() == string(migrations.SQLite) {
		examineFile(ctx, repo, f)
	}
	server, err := repo.ReadServer(ctx)
	if errors.Is(err, repository.ErrPooler) {
		f.problem(checkPooler, poolerAdvice, "%s cannot be used: %v", redactURL(cfg.DatabaseURL), err)
		return
	}
	if err != nil {
		f.problem(checkDatabase, "make database_url right, or the database reachable from here: submissions get 503 until then",
			"%s cannot be used: %v", redactURL(cfg.DatabaseURL), err)
		return
	}
	*f = append(*f, judgeServer(server)...)
	if upkeep, err := repo.ReadUpkeep(ctx); err != nil {
		f.unread("database.upkeep", err)
	} else if repo.Engine() == string(migrations.Postgres) {
		*f = append(*f, judgeUpkeep(upkeep, server.Settings)...)
	}
	examineSchema(ctx, cfg, repo, server, f)
}

// examineFolder looks whether a start could make the file that is not there, by
// making another one and removing it: rights alone do not tell of a disk that is
// full or mounted for reading.
func examineFolder(database string, missing error, f *findingList) {
	folder := filepath.Dir(strings.TrimPrefix(database, "sqlite:"))
	probe, err := os.CreateTemp(folder, ".sekali-doctor-")
	if err != nil {
		f.problem(checkDatabase, "make the folder, or let this user write into it, or set database_url right (relative paths begin in the working folder)",
			"there is no file yet, and it cannot be made: %v", err)
		return
	}
	_ = probe.Close()
	_ = os.Remove(probe.Name())
	f.warn(checkDatabase, "nothing, if no gateway has run yet: the first start makes it. Else the path is wrong (relative ones begin in the working folder)",
		"there is no file yet: %v", missing)
}

func examineFile(ctx context.Context, repo *repository.Repository, f *findingList) {
	file, err := repo.ReadFile(ctx, damagePatience)
	if err != nil {
		f.unread(checkFile, err)
		return
	}
	*f = append(*f, judgeFile(file)...)
}

// examineSchema looks at what is there with the schema only.
func examineSchema(ctx context.Context, cfg Config, repo *repository.Repository, server repository.ServerReading, f *findingList) {
	err := repo.CheckSchema(ctx)
	switch {
	case errors.Is(err, migrations.ErrMissing):
		f.problem(checkSchemaOf, schemaAdvice(cfg.Migrate), "tables are missing, or older than this program")
		return
	case err != nil:
		f.problem(checkSchemaOf, "use a database of its own for each installation, and a program that is not older than the database", "%v", err)
		return
	}
	f.ok(checkSchemaOf, "is that of this program, or newer")
	if err := repo.TryWrite(ctx); err != nil {
		f.problem("database.write", "look for a full disk, a file or a file system that may only be read, a standby behind database_url, or a role without rights on the tables", "cannot be written to: %v", err)
	} else {
		f.ok("database.write", "takes writes (tried, and rolled back)")
	}
	reading, err := repo.ReadJobs(ctx)
	if err != nil {
		f.unread(checkJobs, err)
		return
	}
	*f = append(*f, judgeConnections(server, cfg.DatabaseMaxConns, len(reading.Overview.Workers))...)
	*f = append(*f, judgeJobs(reading, cfg)...)
}

func schemaAdvice(migrate bool) string {
	if migrate {
		return "start a gateway of this version, or run sekali migrate"
	}
	return "run sekali migrate: with migrate: false nobody else does"
}
