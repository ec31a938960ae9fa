package repository_test

import (
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sekali/sekali/access"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/repository"
)

func TestTokens(t *testing.T) {
	t.Parallel()
	onEngines(t, func(t *testing.T, open func(t *testing.T) (*repository.Repository, *sql.DB)) {
		r, db := open(t)
		s := r.Tokens()
		now := r.Clock().Now()
		first, _, err := access.New(access.Draft{Tenant: "acme", Name: "ci – tests", Permissions: access.Permissions{access.Submit, access.Read}, Expires: time.Hour}, now)
		if err != nil {
			t.Fatal(err)
		}
		second, _, err := access.New(access.Draft{Tenant: "other", Permissions: access.Permissions{access.All}}, now.Add(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		for _, token := range []access.Token{second, first} {
			if err := s.Create(t.Context(), token); err != nil {
				t.Fatal(err)
			}
		}
		taken := second
		taken.ID = first.ID
		if err := s.Create(t.Context(), taken); err == nil {
			t.Error("an id was taken twice")
		}
		found, err := s.Find(t.Context(), first.ID)
		if err != nil || fmt.Sprintf("%+v", found) != fmt.Sprintf("%+v", first) {
			t.Errorf("found\n%+v, %v, want\n%+v", found, err, first)
		}
		list, err := s.List(t.Context())
		if err != nil || len(list) != 2 || list[0].ID != first.ID || list[1].ID != second.ID {
			t.Errorf("list %+v, %v", list, err)
		}
		if _, err := db.ExecContext(t.Context(), `update api_tokens set revoked_at = null`); err != nil {
			t.Fatal(err)
		}
		testRevoke(t, r, second.ID)
	})
}

func testRevoke(t *testing.T, r *repository.Repository, id string) {
	s := r.Tokens()
	if err := s.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	revoked, err := s.Find(t.Context(), id)
	if err != nil || revoked.RevokedAt.Sub(r.Clock().Now()).Abs() > time.Minute {
		t.Errorf("%+v, %v", revoked, err)
	}
	if err := s.Revoke(t.Context(), id); err != nil {
		t.Error(err)
	}
	if again, err := s.Find(t.Context(), id); err != nil || !again.RevokedAt.Equal(revoked.RevokedAt) {
		t.Errorf("revoked twice: %+v, %v", again, err)
	}
	for _, unknown := range []string{"unknown", "", "a\x00b", "\xff"} {
		if err := s.Revoke(t.Context(), unknown); !errors.Is(err, access.ErrNotFound) {
			t.Errorf("revoke %q: %v", unknown, err)
		}
		if _, err := s.Find(t.Context(), unknown); !errors.Is(err, access.ErrNotFound) {
			t.Errorf("find %q: %v", unknown, err)
		}
	}
}

// TestFailure_BR28_TokensUnavailable: a database that is away is no answer.
func TestFailure_BR28_TokensUnavailable(t *testing.T) {
	t.Parallel()
	r := open(t, "postgres://nobody@127.0.0.1:1/none", repository.Options{})
	if _, err := r.Tokens().Find(t.Context(), "id"); !errors.Is(err, job.ErrUnavailable) || errors.Is(err, access.ErrNotFound) {
		t.Errorf("find: %v", err)
	}
	if err := r.Tokens().Revoke(t.Context(), "id"); !errors.Is(err, job.ErrUnavailable) {
		t.Errorf("revoke: %v", err)
	}
}
