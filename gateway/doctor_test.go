package gateway_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/gateway"
	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// states are the worst state of each check.
func states(found []gateway.Finding) map[string]gateway.FindingState {
	worst := map[string]gateway.FindingState{}
	rank := map[gateway.FindingState]int{gateway.FindingOK: 1, gateway.FindingWarning: 2, gateway.FindingProblem: 3}
	for _, f := range found {
		if rank[f.State] > rank[worst[f.Check]] {
			worst[f.Check] = f.State
		}
	}
	return worst
}

// judged wants one check in one state, told with these words, and what to do
// where it is not all right.
type judged struct {
	name  string
	found []gateway.Finding
	check string
	state gateway.FindingState
	words string
}

func (j judged) test(t *testing.T) {
	t.Helper()
	if got := states(j.found)[j.check]; got != j.state {
		t.Errorf("%s: %s is %q, want %q: %+v", j.name, j.check, got, j.state, j.found)
	}
	for _, f := range j.found {
		if (f.Do == "") != (f.State == gateway.FindingOK) {
			t.Errorf("%s: %+v: what to do is for what is not all right", j.name, f)
		}
		if f.Check == j.check && strings.Contains(f.Seen, j.words) {
			return
		}
	}
	t.Errorf("%s: no %q in %+v", j.name, j.words, j.found)
}

func TestExamine_Database(t *testing.T) {
	t.Parallel()
	durable := func(changes ...string) map[string]string {
		settings := map[string]string{"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "autovacuum": "on", "track_counts": "on"}
		for i := 0; i < len(changes); i += 2 {
			settings[changes[i]] = changes[i+1]
		}
		return settings
	}
	server := func(change func(*repository.ServerReading)) []gateway.Finding {
		s := repository.ServerReading{Version: "Postgres 17", RoundTrip: time.Millisecond, Settings: durable(), Connections: 5, MostConnections: 97}
		change(&s)
		return gateway.JudgeServer(s)
	}
	connections := func(open, each, processes int) []gateway.Finding {
		return gateway.JudgeConnections(repository.ServerReading{Connections: open, MostConnections: 97}, each, processes)
	}
	upkeep := func(u repository.UpkeepReading, changes ...string) []gateway.Finding {
		return gateway.JudgeUpkeep(u, durable(changes...))
	}
	for _, j := range []judged{
		{"sound", server(func(*repository.ServerReading) {}), "database", gateway.FindingOK, "Postgres 17 answers in 1ms"},
		{"sound", server(func(*repository.ServerReading) {}), "database.clock", gateway.FindingOK, "agrees"},
		{"sound", server(func(*repository.ServerReading) {}), "database.durability", gateway.FindingOK, "on disk"},
		{"far away", server(func(s *repository.ServerReading) { s.RoundTrip = 25 * time.Millisecond }), "database", gateway.FindingWarning, "25ms"},
		{"ahead", server(func(s *repository.ServerReading) { s.Ahead = 90 * time.Second }), "database.clock", gateway.FindingWarning, "1m30s ahead of"},
		{"behind", server(func(s *repository.ServerReading) { s.Ahead = -1100 * time.Millisecond }), "database.clock", gateway.FindingWarning, "1.1s behind"},
		{"pooler", server(func(s *repository.ServerReading) { s.Pooled = true }), "database.pooler", gateway.FindingOK, "keeps sessions"},
		{"fsync", server(func(s *repository.ServerReading) { s.Settings = durable("fsync", "off") }), "database.durability", gateway.FindingProblem, "fsync is off"},
		{"commits", server(func(s *repository.ServerReading) { s.Settings = durable("synchronous_commit", "off") }), "database.durability", gateway.FindingProblem, "synchronous_commit is off"},
		{"pages", server(func(s *repository.ServerReading) { s.Settings = durable("full_page_writes", "off") }), "database.durability", gateway.FindingWarning, "torn pages"},
		{"enough", connections(5, 24, 4), "database.connections", gateway.FindingOK, "may open 96"},
		{"nobody runs", connections(5, 24, 0), "database.connections", gateway.FindingOK, "may open 24"},
		{"too many", connections(5, 24, 5), "database.connections", gateway.FindingWarning, "5 processes with database_max_conns 24 may open 120, and the server lets 97"},
		{"full", connections(97, 24, 1), "database.connections", gateway.FindingProblem, "all 97"},
		{"index", upkeep(repository.UpkeepReading{InvalidIndexes: []string{"jobs_due of jobs"}}), "database.indexes", gateway.FindingProblem, "jobs_due of jobs is invalid"},
		{"idle", upkeep(repository.UpkeepReading{Transactions: []repository.OpenTransaction{{Of: "psql (pid 7)", State: "idle in transaction", Open: time.Hour}}}), "database.transactions", gateway.FindingWarning, "psql (pid 7) has had a transaction open for 1h (idle in transaction)"},
		{"vacuum", upkeep(repository.UpkeepReading{Unvacuumed: []string{"jobs"}}), "database.autovacuum", gateway.FindingWarning, "off for jobs"},
		{"vacuum everywhere", upkeep(repository.UpkeepReading{}, "autovacuum", "off"), "database.autovacuum", gateway.FindingWarning, "whole server"},
		{"dead rows", upkeep(repository.UpkeepReading{DeadRows: 100_001}), "database.autovacuum", gateway.FindingWarning, "100001 dead rows"},
		{"kept up", upkeep(repository.UpkeepReading{DeadRows: 10}), "database.autovacuum", gateway.FindingOK, "10 dead rows"},
	} {
		j.test(t)
	}
	if len(connections(1, 24, 1)) != 1 || len(gateway.JudgeConnections(repository.ServerReading{}, 24, 1)) != 0 {
		t.Error("SQLite has no connections to count")
	}
}

func TestExamine_File(t *testing.T) {
	t.Parallel()
	file := func(change func(*repository.FileReading)) []gateway.Finding {
		r := repository.FileReading{Path: "/data/sekali.db", Mode: 0o644, Journal: "wal", Size: 1 << 20, Free: 5 << 30, Checked: true}
		change(&r)
		return gateway.JudgeFile(r)
	}
	for _, j := range []judged{
		{"sound", file(func(*repository.FileReading) {}), "database.file", gateway.FindingOK, "/data/sekali.db (1.0 MiB) is sound"},
		{"large", file(func(r *repository.FileReading) { r.Checked = false }), "database.file", gateway.FindingOK, "too short for all of it"},
		{"damaged", file(func(r *repository.FileReading) { r.Damage = []string{"page 3"} }), "database.file", gateway.FindingProblem, "is damaged: page 3"},
		{"journal", file(func(r *repository.FileReading) { r.Journal = "delete" }), "database.journal", gateway.FindingWarning, "is delete, not wal"},
		{"mode", file(func(r *repository.FileReading) { r.Mode = 0o666 }), "database.permissions", gateway.FindingWarning, "-rw-rw-rw-"},
		{"room", file(func(*repository.FileReading) {}), "database.space", gateway.FindingOK, "5.0 GiB"},
		{"little room", gateway.JudgeSpace(1<<30 - 1), "database.space", gateway.FindingWarning, "left"},
		{"no room", gateway.JudgeSpace(1 << 20), "database.space", gateway.FindingProblem, "1.0 MiB"},
	} {
		j.test(t)
	}
	if len(gateway.JudgeSpace(-1)) != 0 {
		t.Error("what is not known is not told")
	}
}

func TestExamine_RedisAndConfig(t *testing.T) {
	t.Parallel()
	redis := func(latency time.Duration, changes ...string) []gateway.Finding {
		info := map[string]string{"redis_version": "7.2.1", "role": "master", "used_memory": "1048576", "maxmemory": "0", "maxmemory_policy": "allkeys-lru"}
		for i := 0; i < len(changes); i += 2 {
			info[changes[i]] = changes[i+1]
		}
		return gateway.JudgeRedis(latency, info)
	}
	config := func(files uint64, change func(*gateway.Config)) []gateway.Finding {
		cfg := gateway.Default()
		change(&cfg)
		return gateway.JudgeConfig(cfg, files)
	}
	for _, j := range []judged{
		{"sound", redis(time.Millisecond), "redis", gateway.FindingOK, "Redis 7.2.1 answers in 1ms"},
		{"sound", redis(time.Millisecond), "redis.memory", gateway.FindingOK, "without a limit"},
		{"slow", redis(50 * time.Millisecond), "redis", gateway.FindingWarning, "takes 50ms"},
		{"old", redis(0, "redis_version", "3.2.0"), "redis", gateway.FindingProblem, "too old"},
		{"follower", redis(0, "role", "slave"), "redis.role", gateway.FindingProblem, "takes no writes"},
		{"evicts", redis(0, "maxmemory", "2097152"), "redis.memory", gateway.FindingWarning, "allkeys-lru"},
		{"limit", redis(0, "maxmemory", "2097152", "maxmemory_policy", "noeviction"), "redis.memory", gateway.FindingOK, "1.0 MiB of 2.0 MiB used"},
		{"full", redis(0, "maxmemory", "1048577", "maxmemory_policy", "noeviction"), "redis.memory", gateway.FindingWarning, "are used"},

		{"loopback", config(0, func(*gateway.Config) {}), "auth", gateway.FindingOK, "only this machine"},
		{"keys", config(0, func(c *gateway.Config) { c.Listen, c.Auth.Mode = ":80", "api_key" }), "auth", gateway.FindingOK, "API key"},
		{"public", config(0, func(c *gateway.Config) { c.Listen, c.Auth.AllowPublic = "0.0.0.0:80", true }), "auth", gateway.FindingWarning, "0.0.0.0:80 is no loopback address"},
		{"files", config(20_000, func(*gateway.Config) {}), "limits.waiters", gateway.FindingOK, "20000 open files"},
		{"few files", config(1024, func(*gateway.Config) {}), "limits.waiters", gateway.FindingWarning, "may have 1024"},
	} {
		j.test(t)
	}
	if _, told := states(config(0, func(*gateway.Config) {}))["limits.waiters"]; told {
		t.Error("what is not known is not told")
	}
}

func TestExamine_Jobs(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	worker := func(id string, types ...job.Type) job.Worker {
		return job.Worker{ID: id, Slots: 4, Types: types, SeenAt: now}
	}
	jobs := func(change func(*repository.JobsReading), configs ...func(*gateway.Config)) []gateway.Finding {
		r := repository.JobsReading{Now: now, Overview: job.Overview{Types: map[job.Type]*job.TypeOverview{}, Workers: []job.Worker{worker("w", "echo", "pay")}}}
		cfg := gateway.Default()
		cfg.JobTypes = map[string]gateway.JobType{"pay": {Executor: "echo"}}
		for _, configure := range configs {
			configure(&cfg)
		}
		change(&r)
		return gateway.JudgeJobs(r, cfg)
	}
	waits := func(name job.Type, d time.Duration) func(*repository.JobsReading) {
		return func(r *repository.JobsReading) {
			r.Waiting = append(r.Waiting, repository.OldestWaiting{Type: name, Due: now.Add(-d)})
			r.Overview.Types[name] = &job.TypeOverview{Waiting: job.Waiting{Pending: 3}}
		}
	}
	alone := func(change func(*repository.JobsReading)) func(*repository.JobsReading) {
		return func(r *repository.JobsReading) {
			change(r)
			r.Overview.Workers = nil
		}
	}
	overdue := func(r *repository.JobsReading) {
		r.Overdue = []repository.OverdueLease{
			{Type: "pay", Key: "order-1", WorkerID: "dead", Ended: now.Add(-time.Hour)},
			{Type: "pay", Key: "order-2", WorkerID: "dead", Ended: now.Add(-2 * time.Hour)},
		}
	}
	locked := func(c *gateway.Config) { c.JobTypes["pay"] = gateway.JobType{Executor: "echo", Lock: "key"} }
	limited := func(c *gateway.Config) {
		c.JobTypes["pay"] = gateway.JobType{Executor: "echo", Concurrency: 2, Rate: "10/h"}
	}
	pulled := func(c *gateway.Config) { c.JobTypes["pay"] = gateway.JobType{Executor: "remote"} }
	second := func(r *repository.JobsReading) { r.Overview.Workers = append(r.Overview.Workers, worker("x")) }
	nothing := func(*repository.JobsReading) {}
	for _, j := range []judged{
		{"sound", jobs(nothing), "jobs.processes", gateway.FindingOK, "1 run jobs, with 4 slots"},
		{"sound", jobs(nothing), "jobs.leases", gateway.FindingOK, "has a lease"},
		{"nobody", jobs(alone(nothing)), "jobs.processes", gateway.FindingOK, "none runs jobs"},
		{"silent", jobs(func(r *repository.JobsReading) {
			r.Silent = []job.Worker{{ID: "gone", SeenAt: now.Add(-3 * time.Minute)}}
		}), "jobs.processes", gateway.FindingWarning, "gone was last heard of 3m ago"},
		{"locks of two", jobs(second, locked), "jobs.locks", gateway.FindingWarning, "job_types.pay.lock is key, 2 processes"},
		{"overdue", jobs(overdue), "jobs.leases", gateway.FindingProblem, "2h ago: order-1 (pay, of dead), order-2"},
		{"just waits", jobs(waits("pay", 4*time.Minute)), "jobs.waiting", gateway.FindingOK, "longer than 5m"},
		{"waits for a slot", jobs(waits("pay", 6*time.Minute)), "jobs.waiting", gateway.FindingWarning, "pay has waited for a slot for 6m"},
		{"waits for its limit", jobs(func(r *repository.JobsReading) {
			waits("pay", 6*time.Minute)(r)
			r.Overview.Types["pay"].Busy = 2
		}, limited), "jobs.waiting", gateway.FindingWarning, "pay has waited for its limit of 2 at once for 6m"},
		{"waits for its rate", jobs(func(r *repository.JobsReading) {
			waits("pay", 6*time.Minute)(r)
			r.Overview.Types["pay"].NextAt = now.Add(time.Minute)
		}, limited), "jobs.waiting", gateway.FindingWarning, "pay has waited for its limit of 10/h for 6m"},
		{"waits, and its limit has room", jobs(waits("pay", 6*time.Minute), limited), "jobs.waiting", gateway.FindingWarning, "pay has waited for a slot for 6m"},
		{"waits for a process", jobs(alone(waits("pay", 6*time.Minute))), "jobs.waiting", gateway.FindingProblem, "no process runs the type"},
		{"waits for a worker", jobs(alone(waits("pay", 6*time.Minute)), pulled), "jobs.waiting", gateway.FindingWarning, "pay has waited for a worker to claim it for 6m"},
		{"unknown type", jobs(waits("gone", time.Hour)), "jobs.types", gateway.FindingProblem, "3 jobs of the type gone are unfinished"},
		{"unknown type", jobs(waits("gone", time.Hour)), "jobs.waiting", gateway.FindingOK, ""},
		{"another's type", jobs(func(r *repository.JobsReading) {
			waits("theirs", time.Second)(r)
			r.Overview.Workers = append(r.Overview.Workers, worker("x", "theirs"))
		}), "jobs.types", gateway.FindingWarning, "does not have the type theirs"},
		{"paused", jobs(func(r *repository.JobsReading) {
			waits("pay", time.Hour)(r)
			r.Overview.Types["pay"].PausedAt = now.Add(-time.Hour)
		}), "jobs.types", gateway.FindingWarning, "pay has been paused for 1h; 3 jobs"},
		{"lost", jobs(func(r *repository.JobsReading) {
			r.Overview.Types["pay"] = &job.TypeOverview{Ended: job.Ended{Lost: 2, Succeeded: 9}}
		}), "jobs.lost", gateway.FindingWarning, "2 attempts of the type pay were lost within the last hour; 9 succeeded"},
		{"unknown outcome", jobs(func(r *repository.JobsReading) { r.Unknown = []string{"a", "b", "c", "d", "e", "f"} }), "jobs.unknown_outcome", gateway.FindingWarning, "a, b, c, d, e, …"},
		{"not moved", jobs(func(r *repository.JobsReading) { r.NotMoved = 7 }), "jobs.due", gateway.FindingProblem, "7 scheduled"},
		{"not reaped", jobs(func(r *repository.JobsReading) { r.Reapable = 1001 }), "jobs.retention", gateway.FindingWarning, "1001"},
	} {
		j.test(t)
	}
	for _, found := range [][]gateway.Finding{
		jobs(nothing, locked),
		jobs(second, locked, func(c *gateway.Config) { c.RedisURL = "redis://x" }),
		jobs(waits("echo", 0)),
		jobs(func(r *repository.JobsReading) { r.Reapable = 1000 }),
	} {
		for _, f := range found {
			if f.State != gateway.FindingOK {
				t.Errorf("%+v", f)
			}
		}
	}
}

func TestExamineConfig(t *testing.T) {
	t.Parallel()
	wrong := &gateway.ConfigError{Problems: []gateway.Problem{{Path: "listen", Value: "x", Want: "takes host:port"}, {Path: "a", Want: "b"}}}
	for _, j := range []judged{
		{"right", gateway.ExamineConfig(nil), "configuration", gateway.FindingOK, "can be read"},
		{"wrong", gateway.ExamineConfig(wrong), "configuration", gateway.FindingProblem, `listen: "x": takes host:port`},
		{"wrong", gateway.ExamineConfig(wrong), "configuration", gateway.FindingProblem, `a: b`},
		{"else", gateway.ExamineConfig(errors.New("x")), "configuration", gateway.FindingProblem, `x`},
	} {
		j.test(t)
	}
}

// What cannot be reached is told in the time that a person waits, without secrets.
func TestExamine_NothingThere(t *testing.T) {
	t.Parallel()
	cfg := gateway.Default()
	cfg.DatabaseURL, cfg.RedisURL = "postgres://user:canary-1@127.0.0.1:1/x", "redis://:canary-2@127.0.0.1:1"
	found := gateway.Examine(t.Context(), cfg)
	if got := states(found); got["database"] != gateway.FindingProblem || got["redis"] != gateway.FindingProblem {
		t.Errorf("%+v", found)
	}
	cfg.DatabaseURL, cfg.RedisURL = testenv.SQLite(t), ""
	absent := gateway.Examine(t.Context(), cfg)
	if got := states(absent); got["database"] != gateway.FindingWarning {
		t.Errorf("%+v", absent)
	}
	cfg.DatabaseURL = "sqlite:" + filepath.Join(t.TempDir(), "missing", "x.db")
	if got := states(gateway.Examine(t.Context(), cfg)); got["database"] != gateway.FindingProblem {
		t.Errorf("a file in a folder that is not there: %v", got)
	}
	for _, f := range append(found, absent...) {
		if strings.Contains(f.Seen+f.Do, "canary") {
			t.Errorf("a secret is shown: %+v", f)
		}
	}
}
