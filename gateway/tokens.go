package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/access"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

// Token is an API key, without its secret.
type Token struct {
	ID          string     `json:"id"`
	Tenant      string     `json:"tenant"`
	Name        string     `json:"name"`
	Permissions []string   `json:"permissions"`
	CreatedAt   time.Time  `json:"created_at"`
	ExpiresAt   *time.Time `json:"expires_at"`
	RevokedAt   *time.Time `json:"revoked_at"`
}

// TokenDraft is what a new API key is to be.
type TokenDraft struct {
	Tenant      string
	Name        string
	Permissions string        // words joined by commas; * is everything
	Expires     time.Duration // from now; 0: never
}

// DraftError reports a TokenDraft of which no token can be made.
type DraftError struct{ Err error }

func (e *DraftError) Error() string { return e.Err.Error() }

func (e *DraftError) Unwrap() error { return e.Err }

// CreateToken makes an API key in the database and returns it with its text,
// which nobody can show again. It may run beside gateways, which take the token
// at once. Error, among others: *DraftError.
func CreateToken(ctx context.Context, cfg Config, d TokenDraft) (Token, string, error) {
	var token access.Token
	var text string
	err := withTokens(ctx, cfg, false, func(repo *repository.Repository) error {
		if err := repo.Clock().Sync(ctx); err != nil {
			return err
		}
		var err error
		token, text, err = access.New(access.Draft{
			Tenant: d.Tenant, Name: d.Name, Permissions: access.SplitPermissions(d.Permissions), Expires: d.Expires,
		}, repo.Clock().Now())
		if err != nil {
			return &DraftError{Err: err}
		}
		err = repo.Tokens().Create(ctx, token)
		if errors.Is(err, job.ErrOutcomeUnknown) {
			return &AdvisedError{Err: err, Do: "look with sekali token list whether it was made; its text is lost: revoke it, and make another one"}
		}
		return err
	})
	return publicToken(token), text, err
}

// ListTokens returns all API keys, oldest first.
func ListTokens(ctx context.Context, cfg Config) ([]Token, error) {
	tokens := []Token{}
	err := withTokens(ctx, cfg, true, func(repo *repository.Repository) error {
		kept, err := repo.Tokens().List(ctx)
		for _, t := range kept {
			tokens = append(tokens, publicToken(t))
		}
		return err
	})
	return tokens, err
}

// RevokeToken ends an API key. Gateways refuse it within a second.
func RevokeToken(ctx context.Context, cfg Config, id string) error {
	return withTokens(ctx, cfg, true, func(repo *repository.Repository) error {
		err := repo.Tokens().Revoke(ctx, id)
		if errors.Is(err, access.ErrNotFound) {
			// The id is not told: it may be a whole token, which is a secret.
			return &AdvisedError{Err: err, Do: "give the id as sekali token list shows it; a token itself is none"}
		}
		return err
	})
}

// withTokens opens the database as a second program beside a gateway, and
// brings the schema up if the configuration says so: the first token is often
// made before the first gateway runs. With existing there must be a database.
func withTokens(ctx context.Context, cfg Config, existing bool, do func(*repository.Repository) error) error {
	repo, err := openBeside(ctx, cfg, existing)
	if err != nil {
		return err
	}
	if cfg.Migrate {
		err = repo.Migrate(ctx)
	}
	if err == nil {
		err = repo.CheckSchema(ctx)
	}
	if err == nil {
		err = do(repo)
	}
	var draft *DraftError
	var advised *AdvisedError
	switch err = errors.Join(err, repo.Close()); {
	case err == nil:
		return nil
	case errors.As(err, &draft), errors.As(err, &advised): // the database is all right
		return fmt.Errorf("gateway: %w", err)
	}
	return databaseError(cfg, err)
}

func publicToken(t access.Token) Token {
	public := Token{
		ID: t.ID, Tenant: t.Tenant, Name: t.Name, Permissions: make([]string, len(t.Permissions)), CreatedAt: t.CreatedAt,
		ExpiresAt: timeOrNil(t.ExpiresAt), RevokedAt: timeOrNil(t.RevokedAt),
	}
	for i, p := range t.Permissions {
		public.Permissions[i] = string(p)
	}
	return public
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
