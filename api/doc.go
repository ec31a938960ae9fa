// Package api is the wire contract: the documents that go in and out, and the
// one table that turns errors into statuses.
//
// It promises that a payload and a result come back byte for byte, that a text
// of an error that it does not know never reaches a client, and that a problem
// with a Retry-After header has the member retry_after_ms and the other way
// round. It neither reads nor changes a job: what it writes about one is a
// function of the job that it is given.
package api
