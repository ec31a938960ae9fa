package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sekali/sekali/idempotency/memory"
)

type answer struct {
	status         int
	body, replayed string
}

func order(t *testing.T, s *httptest.Server, key, body string) answer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/payments", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {key}, "Prefer": {"wait=10"}}
	response, err := s.Client().Do(r)
	if err != nil {
		t.Error(err)
		return answer{}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		t.Error(err)
	}
	return answer{response.StatusCode, string(text), response.Header.Get("Idempotent-Replayed")}
}

func TestExample_PaysOnce(t *testing.T) {
	s := httptest.NewServer(protected(memory.New(time.Now)))
	defer s.Close()
	first := make(chan answer, 50)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			got := order(t, s, "payment-1", `{"amount":42}`)
			if got.status != 201 || got.body != `{"payment":1}` {
				t.Errorf("got %+v", got)
			}
			if got.replayed == "false" {
				first <- got
			}
		})
	}
	group.Wait()
	if len(first) != 1 || payments.Load() != 1 {
		t.Errorf("%d first answers, %d payments", len(first), payments.Load())
	}
	if got := order(t, s, "payment-1", `{"amount":43}`); got.status != 422 || !strings.Contains(got.body, "idempotency-key-reused") {
		t.Errorf("another request with the key gets %+v", got)
	}
	if got := order(t, s, "payment-2", `{"amount":42}`); got.body != `{"payment":2}` {
		t.Errorf("another key gets %+v", got)
	}
}
