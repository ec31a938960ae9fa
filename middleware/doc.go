// Package middleware holds what stands before the handlers, one concern in each
// file, all of the form func(http.Handler) http.Handler.
//
// The order matters, from the outside in:
//
//	EscapedPath   the router sees the path as it was sent
//	Unread        what a handler left of the body does not cost the answer
//	RequestID     a name for the request
//	AccessLog     one line when it is answered
//	Metrics       one count
//	Recover       a panic becomes a problem, before the two above see the answer
//	CORS          pages of other origins; their preflights end here
//	Compress      what comes out below it is not coded
//	IgnoreKey     a key where it has no meaning
//	Auth, Tenant  whose request it is
//	RateLimit     how often that tenant may ask
//	Permit        what it may do
//	Drain         nothing new once the process is about to end
//	Key, Body     on routes that take keyed requests, or others with a body
//	Once, OnceTx  the handler runs once for each key
//
// AccessLog, Metrics and EscapedPath have to be used by the router itself, not
// wrapped around it: they ask it which route was matched.
//
// Once and OnceTx alone use a store. Whatever is refused before them has left no
// trace, and its key is not used up. With Key before them they serve any program
// of package net/http; nothing else of this module is needed for that but a store.
package middleware
