package idempotency

// Key is the client's value for one operation: 1 to 255 printable ASCII
// characters, case-sensitive, kept as given.
type Key string
