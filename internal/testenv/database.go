package testenv

import (
	"context"
	"crypto/rand"
	"database/sql"
	"fmt"
	"net/url"
	"strings"
	"testing"

	_ "github.com/lib/pq" // the driver "postgres"
)

// Database returns the URL of a new, empty database on this server, dropped when
// the test ends.
func (s *PostgresServer) Database(t testing.TB) string {
	t.Helper()
	return newDatabase(t, s.URL())
}

func newDatabase(t testing.TB, server string) string {
	t.Helper()
	address, err := url.Parse(server)
	if err != nil {
		t.Fatalf("testenv: %s is no URL", PostgresVariable) // the error would show a password
	}
	name := "sekali_test_" + strings.ToLower(rand.Text())
	if err := execute(t.Context(), server, "create database "+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), cleanupTimeout)
		defer cancel()
		if err := execute(ctx, server, "drop database if exists "+name+" with (force)"); err != nil {
			t.Error(err)
		}
	})
	address.Path = "/" + name
	return address.String()
}

// execute runs one statement on a connection of its own.
func execute(ctx context.Context, server, statement string) error {
	db, err := sql.Open("postgres", server)
	if err != nil {
		return fmt.Errorf("testenv: open the server's database: %w", err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, statement); err != nil {
		return fmt.Errorf("testenv: %s: %w", statement, err)
	}
	return nil
}
