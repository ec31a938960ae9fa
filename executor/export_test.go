package executor

// Permit is asked at the moment of connecting.
var (
	Permit     = permit
	ErrPrivate = errPrivate
)
