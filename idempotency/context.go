package idempotency

import (
	"context"
	"database/sql"
)

type (
	requestContextKey struct{}
	tenantContextKey  struct{}
	senderContextKey  struct{}
	txContextKey      struct{}
)

// NewContext returns ctx carrying the keyed request, for handlers further in.
func NewContext(ctx context.Context, req Request) context.Context {
	return context.WithValue(ctx, requestContextKey{}, req)
}

// FromContext returns the keyed request that NewContext put into ctx.
func FromContext(ctx context.Context) (Request, bool) {
	req, ok := ctx.Value(requestContextKey{}).(Request)
	return req, ok
}

// WithTenant returns ctx carrying the tenant of the authenticated caller.
func WithTenant(ctx context.Context, t Tenant) context.Context {
	return context.WithValue(ctx, tenantContextKey{}, t)
}

// TenantOf returns the tenant that WithTenant put into ctx. A context without
// one has no tenant (""), to which no record belongs.
func TenantOf(ctx context.Context) Tenant {
	t, _ := ctx.Value(tenantContextKey{}).(Tenant)
	return t
}

// WithSender returns ctx carrying what the caller calls its program (User-Agent).
func WithSender(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, senderContextKey{}, name)
}

// SenderOf returns the name that WithSender put into ctx, "" if there is none.
// Anybody may call themselves anything: it is for people who look for where
// repetitions come from, and decides nothing.
func SenderOf(ctx context.Context) string {
	name, _ := ctx.Value(senderContextKey{}).(string)
	return name
}

// WithTx returns ctx carrying the transaction that holds the request's record.
func WithTx(ctx context.Context, tx *sql.Tx) context.Context {
	return context.WithValue(ctx, txContextKey{}, tx)
}

// TxOf returns the transaction that WithTx put into ctx: what a handler writes
// through it is kept exactly if its response is. The handler neither commits it
// nor rolls it back.
func TxOf(ctx context.Context) (*sql.Tx, bool) {
	tx, ok := ctx.Value(txContextKey{}).(*sql.Tx)
	return tx, ok
}
