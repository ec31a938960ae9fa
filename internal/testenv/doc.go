// Package testenv gives tests real servers: a private Postgres and a private
// Redis on free ports of the loopback address, with their files in a temporary
// folder, started at the first use and gone with the test program, also when
// that is killed.
//
// A test may put a private PgBouncer before its database.
//
// Where SEKALI_TEST_POSTGRES_URL or SEKALI_TEST_REDIS_URL is set, that running
// server is used instead. The command with-servers sets both for a whole run of
// go test, so that its packages share one server each.
//
// Only tests and their tools import it.
package testenv
