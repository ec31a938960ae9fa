// Package e2e holds the tests that talk to the running program over HTTP, on
// SQLite and on Postgres: a test for each row of the HTTP contract, and one for
// each reported failure of systems like this one. It has no code of its own.
package e2e
