package contestant_test

import (
	"bufio"
	"context"
	"database/sql"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sekali/sekali/bench/internal/contestant"
	"github.com/sekali/sekali/internal/testenv"
)

// start runs the contestant until the test ends and returns its address.
func start(t *testing.T, name string, o contestant.Options) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	read, write := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := contestant.Serve(ctx, name, o, write)
		write.CloseWithError(err)
		ended <- err
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	line, err := bufio.NewReader(read).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + strings.TrimSpace(line)
}

func submit(t *testing.T, url, key, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/jobs", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Idempotency-Key", key)
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(text)
}

// A contestant that loses jobs, or keeps one key twice, is no yardstick.
func TestContestants_KeepEachKeyOnce(t *testing.T) {
	t.Parallel()
	for name, table := range map[string]string{"naive": "jobs", "naive-prepared": "jobs", "river": "river_job"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database := testenv.Postgres(t)
			url := start(t, name, contestant.Options{Database: database})
			var first string
			for i, key := range []string{"a", "a", "b"} {
				status, text := submit(t, url, key, `{"n":1}`)
				if status != http.StatusAccepted {
					t.Fatalf("status %d: %s", status, text)
				}
				if i == 0 {
					first = text
				}
				if key == "a" && text != first {
					t.Errorf("the replay says %s, not %s", text, first)
				}
			}
			db, err := sql.Open("postgres", database)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			var rows int
			if err := db.QueryRowContext(t.Context(), "select count(*) from "+table).Scan(&rows); err != nil || rows != 2 {
				t.Errorf("%d rows, error %v", rows, err)
			}
		})
	}
}

func TestNaive_AnotherRequestWithTheKeyIsRefused(t *testing.T) {
	t.Parallel()
	url := start(t, "naive", contestant.Options{Database: testenv.Postgres(t)})
	submit(t, url, "a", `{"n":1}`)
	if status, text := submit(t, url, "a", `{"n":2}`); status != http.StatusUnprocessableEntity {
		t.Errorf("status %d: %s", status, text)
	}
}
