// Package idempotency is what a keyed request means, independent of HTTP
// frameworks, databases and jobs.
//
// Four words describe every keyed request:
//
//	request   tenant, key and fingerprint of what the client sent
//	record    what the database holds for that tenant and key
//	answer    one pure decision, [Answer]: may this request have that record's response?
//	write     the record, the stored response and the effect, together
//
// The record's row is the claim on the key, not a cache: the unique pair
// (tenant, key) in the database is what makes a second execution impossible.
// The package promises nothing about effects outside that database; those need
// a receiver that honours a key of its own.
package idempotency
