package repository

import (
	"context"
	"fmt"
	"time"

	"github.com/sekali/sekali/access"
)

// Tokens keeps API keys. Its errors for a database that is away are those of the
// repository's other methods.
type Tokens struct{ r *Repository }

var _ access.Store = (*Tokens)(nil)

// Tokens returns the API keys of the database.
func (r *Repository) Tokens() *Tokens { return &Tokens{r} }

const createTokenSQL = `
insert into api_tokens (id, hash, tenant, name, permissions, created_at, expires_at, revoked_at)
values ($1, $2, $3, $4, $5, $6, $7, $8)
on conflict (id) do nothing`

// Create implements access.Store.
func (s *Tokens) Create(ctx context.Context, t access.Token) error {
	n, repeated, err := s.r.execute(ctx, "create token", createTokenSQL, t.ID, t.Hash, t.Tenant, t.Name, t.Permissions.String(),
		stamp(t.CreatedAt), stampOrNull(t.ExpiresAt), stampOrNull(t.RevokedAt))
	if err == nil && n == 0 && !repeated {
		return fmt.Errorf("repository: create token: the id %s is taken", t.ID)
	}
	return err
}

func stampOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return stamp(t)
}

const findTokenSQL = `
select id, hash, tenant, name, permissions, created_at, expires_at, revoked_at
from api_tokens
where id = $1`

// Find implements access.Store.
func (s *Tokens) Find(ctx context.Context, id string) (access.Token, error) {
	if !storable(id) {
		return access.Token{}, access.ErrNotFound
	}
	rows, err := collect[tokenRow](ctx, s.r.engine.reads(), findTokenSQL, id)
	if err != nil {
		return access.Token{}, s.r.fail("find token", err)
	}
	if len(rows) == 0 {
		return access.Token{}, access.ErrNotFound
	}
	return rows[0].token(), nil
}

const listTokensSQL = `
select id, hash, tenant, name, permissions, created_at, expires_at, revoked_at
from api_tokens
order by created_at, id`

// List implements access.Store.
func (s *Tokens) List(ctx context.Context) ([]access.Token, error) {
	rows, err := collect[tokenRow](ctx, s.r.engine.reads(), listTokensSQL)
	if err != nil {
		return nil, s.r.fail("list tokens", err)
	}
	tokens := make([]access.Token, len(rows))
	for i := range rows {
		tokens[i] = rows[i].token()
	}
	return tokens, nil
}

// revokeTokenSQL keeps the time of the first revocation.
const revokeTokenSQL = `
update api_tokens
set revoked_at = coalesce(revoked_at, now())
where id = $1`

// Revoke implements access.Store.
func (s *Tokens) Revoke(ctx context.Context, id string) error {
	if !storable(id) {
		return access.ErrNotFound
	}
	n, _, err := s.r.execute(ctx, "revoke token", revokeTokenSQL, id)
	if err == nil && n == 0 {
		return access.ErrNotFound
	}
	return err
}

type tokenRow struct {
	ID          text   `db:"id"`
	Hash        []byte `db:"hash"`
	Tenant      text   `db:"tenant"`
	Name        text   `db:"name"`
	Permissions text   `db:"permissions"`
	CreatedAt   moment `db:"created_at"`
	ExpiresAt   moment `db:"expires_at"`
	RevokedAt   moment `db:"revoked_at"`
}

func (r *tokenRow) token() access.Token {
	return access.Token{
		ID: string(r.ID), Hash: r.Hash, Tenant: string(r.Tenant), Name: string(r.Name),
		Permissions: access.SplitPermissions(string(r.Permissions)),
		CreatedAt:   r.CreatedAt.Time, ExpiresAt: r.ExpiresAt.Time, RevokedAt: r.RevokedAt.Time,
	}
}
