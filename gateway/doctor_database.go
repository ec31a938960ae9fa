package gateway

import (
	"strconv"
	"strings"
	"time"

	"github.com/sekali/sekali/repository"
)

const (
	// slowRoundTrip: a job takes about ten of them one after the other, so that a
	// slot ends fewer than five jobs a second.
	slowRoundTrip = 20 * time.Millisecond
	// clockTolerance is more than machines that follow a time server differ by.
	clockTolerance = time.Second
	// manyDeadRows is where claims begin to feel the rows that they step over.
	manyDeadRows = 100_000
	// littleSpace is used up by a busy hour, and tooLittleSpace by a burst.
	littleSpace, tooLittleSpace = 1 << 30, 100 << 20
	// writableByOthers are the bits of a file's mode for its group and for all.
	writableByOthers = 0o022
)

// poolerAdvice is for a pooler that cannot be used; a gateway would not start.
const poolerAdvice = "let the pooler pool sessions (PgBouncer: pool_mode = session), or name the server's own address in database_url: a gateway does not start here"

// judgeServer says what the database's answers mean.
func judgeServer(s repository.ServerReading) []Finding {
	var f findingList
	if s.RoundTrip > slowRoundTrip {
		f.warn(checkDatabase, "move the gateway and the database closer together, or find out what slows it down: each job needs several round trips",
			"%s answers, but takes %s for nothing", s.Version, brief(s.RoundTrip))
	} else {
		f.ok(checkDatabase, "%s answers in %s", s.Version, brief(s.RoundTrip))
	}
	if s.Settings == nil {
		return f // a file has the clock of its process, and we set how it commits
	}
	if s.Ahead.Abs() > clockTolerance {
		where := "ahead of"
		if s.Ahead < 0 {
			where = "behind"
		}
		f.warn("database.clock", "let both machines follow a time server: due times are the database's, log lines and request times this machine's",
			"the database's clock is %s %s this machine's", brief(s.Ahead.Abs()), where)
	} else {
		f.ok("database.clock", "agrees with this machine's")
	}
	if s.Pooled {
		f.ok(checkPooler, "one is in between, and keeps sessions; it must have room for database_max_conns of each process")
	}
	return append(f, judgeDurability(s.Settings)...)
}

// judgeDurability: an answer to a submission promises that the job is kept.
func judgeDurability(settings map[string]string) []Finding {
	var f findingList
	const check = "database.durability"
	if settings["fsync"] == "off" {
		f.problem(check, "set fsync = on in postgresql.conf", "fsync is off: a crash of the database's machine destroys accepted jobs, or the whole database")
	}
	if settings["synchronous_commit"] == "off" {
		f.problem(check, "set synchronous_commit = on, at least for this role: alter role … set synchronous_commit = on",
			"synchronous_commit is off: a crash of the database loses jobs that were accepted just before")
	}
	if settings["full_page_writes"] == "off" {
		f.warn(check, "set full_page_writes = on, unless the file system writes pages whole", "full_page_writes is off: a crash of the machine may leave torn pages")
	}
	if len(f) == 0 {
		f.ok(check, "commits are on disk before they are answered (synchronous_commit = %s)", settings["synchronous_commit"])
	}
	return f
}

// judgeConnections compares what the processes may open with what the server
// lets them.
func judgeConnections(s repository.ServerReading, each, processes int) []Finding {
	var f findingList
	if s.MostConnections == 0 {
		return nil
	}
	const check = "database.connections"
	const advice = "raise max_connections, or lower database_max_conns"
	needed := each * max(1, processes)
	switch {
	case s.Connections >= s.MostConnections:
		f.problem(check, advice, "all %d connections of the server are taken", s.MostConnections)
	case needed > s.MostConnections:
		f.warn(check, advice, "%d processes with database_max_conns %d may open %d, and the server lets %d", max(1, processes), each, needed, s.MostConnections)
	default:
		f.ok(check, "%d of %d are open; this installation may open %d", s.Connections, s.MostConnections, needed)
	}
	return f
}

// judgeUpkeep says what keeps Postgres from staying fast.
func judgeUpkeep(u repository.UpkeepReading, settings map[string]string) []Finding {
	var f findingList
	for _, index := range u.InvalidIndexes {
		f.problem("database.indexes", "reindex index concurrently …; or drop it if its name ends in _ccnew or _ccold",
			"the index %s is invalid: it is kept up, and never used", index)
	}
	if len(u.InvalidIndexes) == 0 {
		f.ok("database.indexes", "all are valid")
	}
	for _, one := range u.Transactions {
		f.warn("database.transactions", "end it (select pg_terminate_backend(pid), or rollback prepared), and find out why it stays open: dead rows pile up behind it",
			"%s has had a transaction open for %s (%s)", one.Of, brief(one.Open), one.State)
	}
	if len(u.Transactions) == 0 {
		f.ok("database.transactions", "none is open for longer than %s", brief(repository.LongTransaction))
	}
	return append(f, judgeVacuum(u, settings)...)
}

func judgeVacuum(u repository.UpkeepReading, settings map[string]string) []Finding {
	var f findingList
	const check = "database.autovacuum"
	if settings["autovacuum"] == "off" || settings["track_counts"] == "off" {
		f.warn(check, "set autovacuum = on and track_counts = on", "autovacuum is off for the whole server: claims get slower with every job")
	}
	if len(u.Unvacuumed) > 0 {
		f.warn(check, "alter table … reset (autovacuum_enabled)", "autovacuum is off for %s", strings.Join(u.Unvacuumed, ", "))
	}
	if u.DeadRows > manyDeadRows {
		f.warn(check, "look for old transactions and replication slots that hold it up; vacuum jobs", "the table jobs has %d dead rows", u.DeadRows)
	}
	if len(f) == 0 {
		f.ok(check, "is on; the table jobs has %d dead rows", u.DeadRows)
	}
	return f
}

// judgeFile says how the file of SQLite stands.
func judgeFile(file repository.FileReading) []Finding {
	var f findingList
	switch {
	case len(file.Damage) > 0:
		f.problem(checkFile, "stop the gateway, keep a copy, and go back to a backup, or try: sqlite3 FILE .recover",
			"%s is damaged: %s", file.Path, strings.Join(file.Damage, "; "))
	case !file.Checked:
		f.ok(checkFile, "%s (%s) was looked at for %s, too short for all of it; pragma quick_check looks at the rest", file.Path, about(file.Size), brief(damagePatience))
	default:
		f.ok(checkFile, "%s (%s) is sound", file.Path, about(file.Size))
	}
	if file.Journal != "wal" {
		f.warn("database.journal", "nothing, if no gateway has run on it yet: a start sets it. Else keep other programs from changing it",
			"the journal mode is %s, not wal: readers and the writer wait for each other", file.Journal)
	}
	if file.Mode.Perm()&writableByOthers != 0 {
		f.warn("database.permissions", "chmod go-w, for the file and those beside it", "%s can be written to by other users (%s)", file.Path, file.Mode.Perm())
	}
	return append(f, judgeSpace(file.Free)...)
}

func judgeSpace(free int64) []Finding {
	var f findingList
	const check = "database.space"
	const advice = "make room: without it nothing is accepted"
	switch {
	case free < 0: // not known on this system
	case free < tooLittleSpace:
		f.problem(check, advice, "%s are left on the disk", about(free))
	case free < littleSpace:
		f.warn(check, advice, "%s are left on the disk", about(free))
	default:
		f.ok(check, "%s are left on the disk", about(free))
	}
	return f
}

// brief rounds a time to what a person wants to know of it.
func brief(d time.Duration) string {
	unit := time.Microsecond * 10
	switch {
	case d >= time.Minute:
		unit = time.Second
	case d >= time.Second:
		unit = 100 * time.Millisecond
	case d >= 10*time.Millisecond:
		unit = time.Millisecond
	}
	text := d.Round(unit).String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// about writes a number of bytes for people.
func about(bytes int64) string {
	value, unit := float64(bytes), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return strconv.FormatFloat(value, 'f', min(unit, 1), 64) + " " + units[unit]
}
