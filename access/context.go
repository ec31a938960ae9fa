package access

import "context"

type callerContextKey struct{}

// WithCaller returns ctx carrying who the request comes from.
func WithCaller(ctx context.Context, c Caller) context.Context {
	return context.WithValue(ctx, callerContextKey{}, c)
}

// CallerOf returns the caller that WithCaller put into ctx. A context without
// one has a caller that is permitted nothing.
func CallerOf(ctx context.Context) Caller {
	c, _ := ctx.Value(callerContextKey{}).(Caller)
	return c
}
