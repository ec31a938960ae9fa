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
//   - Payloads, results and responses come back byte for byte.
//   - Whether something is due, expired or retired is judged in SQL, by the
//     database's clock; on SQLite that is the process's.
//
// What it does not promise: that a write whose connection broke has not
// happened. Such a call returns job.ErrOutcomeUnknown, and may be repeated with
// the same arguments: accepts are recognised by their job's id, endings and
// requeues by the token of their attempt.
//
// The engines share the statements that read (reads.go). Each writes in its own
// way: Postgres with one statement and arrays of parameters, so that a batch is
// one round trip and one commit; SQLite with prepared single-row statements in
// one transaction, where there are no round trips to save.
package repository
