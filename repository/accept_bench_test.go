package repository_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/sekali/sekali/internal/testenv"
	"github.com/sekali/sekali/repository"
)

// BenchmarkAccept accepts new jobs from one caller and from 64. The private
// Postgres does without fsync, so compare two versions of the code with each
// other (benchstat), and leave rates to make bench.
func BenchmarkAccept(b *testing.B) {
	for engine, database := range map[string]func(testing.TB) string{"Postgres": testenv.Postgres, "SQLite": testenv.SQLite} {
		for _, callers := range []int{1, 64} {
			b.Run(fmt.Sprintf("engine=%s/callers=%d", engine, callers), func(b *testing.B) {
				benchmarkAccept(b, database(b), callers)
			})
		}
	}
}

func benchmarkAccept(b *testing.B, database string, callers int) {
	r, err := repository.Open(b.Context(), database, options(repository.Options{}))
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	if err := r.Migrate(b.Context()); err != nil {
		b.Fatal(err)
	}
	var keys, begun atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	done := make(chan error, callers)
	for range callers {
		go func() {
			for begun.Add(1) <= int64(b.N) {
				if _, err := r.Accept(b.Context(), submission(r, fmt.Sprint("bench-", keys.Add(1)))); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range callers {
		if err := <-done; err != nil {
			b.Error(err)
		}
	}
}
