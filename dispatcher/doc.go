// Package dispatcher gives accepted jobs to executors and settles what became
// of them.
//
// # The protocol
//
// The database is authoritative. A claim is one statement that raises the
// job's fencing token and sets the end of its lease by the database's clock.
// From then on every write about the attempt names that token; once another
// claim has raised it, the write changes nothing. Everything below makes
// duplicates rare; the token alone makes them harmless.
//
// Who runs a job: a process claims as many jobs as it has free slots, never
// more. It is woken through a channel by accepts of its own process and by its
// own slots becoming free, and by notices of other processes, which offer the jobs
// that they accept and have no free slot for; the poll interval is the truth for
// everything else, so a lost wake-up costs at most that.
//
// While it runs: one loop extends the leases of all running attempts, at a
// third of the lease. A process trusts a lease only until a little before its
// end, counted on its own monotonic clock from before the call that confirmed
// it; past that, or when the database says that the lease is not its any more,
// the attempt's context ends with the cause job.ErrLeaseLost. An attempt whose
// work is done keeps its heartbeat until the end is written: slow writes must
// not make finished work run again.
//
// Before it runs: the attempt takes its lock, if its type asks for one, and the
// business operation that the job names. If another job has one of them, the job
// is put off, uncounted. If nobody knows what an earlier attempt did, and the type
// wants that asked, the receiver is asked first. The lock is no fence: without it
// the lease alone carries on, and a lock that is lost ends the attempt.
//
// When somebody cancels it: a notice or the heartbeat brings the request, and the
// attempt's context ends with the cause job.ErrCancelled. A decision that did not know of it
// is refused by the database and made again. Work that is done stays done.
//
// When it ends: package job decides (succeeded, retrying, failed), one fenced
// statement applies it. A transactional executor's writes and the end of its
// job are one commit. What follows it, the job that undoes a failed one and the one
// that tells of its end, is accepted in the commit that ends it. Only then is the
// lock given back, and everybody told.
//
// When its process dies: the lease runs out. The rescuer, in every process,
// looks for leases that ended more than a grace ago and moves those jobs on,
// in a statement that checks the end of the lease again; a heartbeat that
// came in between wins. A lost attempt counts, so that a job which kills its
// process cannot run for ever. On an engine that one process owns (SQLite) a
// lease ends with its process instead, and time alone never ends one.
//
// What has outlived its retention is taken away by the reaper, in every process,
// in small batches with pauses between them. Nothing waits for it: whether a job
// or a key has expired is judged by the clock, not by whether its row is gone.
//
// When the process is told to stop: it claims nothing more, lets running
// attempts end within the grace, then ends their contexts with the cause
// job.ErrShutdown and hands their jobs back, uncounted, for others to claim.
package dispatcher
