// Package repository keeps jobs and idempotency records in Postgres or SQLite.
//
// What it promises, on both engines, and what repositorytest checks:
//
//   - Accept writes the record, the stored response and the job in one
//     transaction. Of any number of first requests with one key, one is
//     accepted, and every other one finds what that one wrote.
//   - Claim gives a job to one holder and raises its fencing token. Each later
//     write of the job's state names the token, and changes nothing once another
//     claim has raised it.
//   - A job ends once: the statement that ends it takes the row out of jobs and
//     puts it into finished_jobs.
//   - Retry and resolve are accepts: the record of the operator's key and the
//     change of the job are one transaction, and of any number of calls about one
//     version of a job one changes it.
//   - A business operation is taken by one job at a time and done once. A function
//     that runs in the transaction of its job's end takes it there.
//   - The end of a job and the accept of what follows it, the job that compensates it
//     and the one that tells of it, are one transaction.
//   - Payloads, results and responses come back byte for byte.
//   - Whether something is due, expired or retired is judged in SQL, by the
//     database's clock; on SQLite that is the process's.
//
// What it does not promise: that a write whose connection broke has not
// happened. Such a call returns job.ErrOutcomeUnknown, and may be repeated with
// the same arguments: accepts are recognised by their job's id, endings and
// requeues by the token of their attempt. Calls of operators are read back by the
// repository itself where that is possible.
//
// The engines share the statements that read (reads.go). Each writes in its own
// way: Postgres with one statement and arrays of parameters, so that a batch is
// one round trip and one commit; SQLite with prepared single-row statements in
// one transaction, where there are no round trips to save. What operators do, and
// what follows a failure, is rare: a short transaction of a few statements that both
// engines run (transact.go).
package repository
