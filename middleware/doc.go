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
//	IgnoreKey     a key where it has no meaning
//	Tenant        whose request it is
//	Drain, Key    on routes that take keyed requests
//
// AccessLog, Metrics and EscapedPath have to be used by the router itself, not
// wrapped around it: they ask it which route was matched.
//
// Nothing here reads or writes a store: a request that is refused by this
// package has left no trace, and its key is not used up.
package middleware
