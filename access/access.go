package access

import (
	"context"
	"errors"
	"time"
)

// Token is an API key as it is kept: without its secret.
type Token struct {
	ID          string // part of the token's text; no secret
	Hash        []byte // SHA-256 of the secret
	Tenant      string // whom it speaks for
	Name        string // for people; may be empty
	Permissions Permissions
	CreatedAt   time.Time // UTC, milliseconds
	ExpiresAt   time.Time // zero: never
	RevokedAt   time.Time // zero: it is not
}

// ErrNotFound reports that no token has the id.
var ErrNotFound = errors.New("access: no token of this id")

// Store keeps tokens. Its errors other than ErrNotFound are failures of the
// store: nothing is known then.
type Store interface {
	// Create keeps a new token, with the times that it has.
	Create(ctx context.Context, t Token) error
	// Find returns the token of the id, whether or not it is still good. Error:
	// ErrNotFound.
	Find(ctx context.Context, id string) (Token, error)
	// List returns all tokens, also those that have ended, oldest first.
	List(ctx context.Context) ([]Token, error)
	// Revoke ends the token, now by the store's clock. A token that is revoked
	// already stays as it is. Error: ErrNotFound.
	Revoke(ctx context.Context, id string) error
}
