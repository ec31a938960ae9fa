package middleware_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/idempotency/memory"
	"github.com/sekali/sekali/middleware"
)

// show prints what a client sees of an answer.
func show(h http.Handler, key, body string) {
	r := httptest.NewRequest(http.MethodPost, "/payments", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	code := ""
	if w.Code >= http.StatusBadRequest {
		_, code, _ = strings.Cut(w.Body.String(), `"code":"`)
		code, _, _ = strings.Cut(code, `"`)
	} else {
		code = w.Body.String()
	}
	fmt.Println(w.Code, w.Header().Get("Idempotent-Replayed"), code)
}

// A handler of any program runs once for each key.
func ExampleOnce() {
	payments := 0
	pay := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		payments++
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "payment %d", payments)
	})
	store := memory.New(time.Now)
	keyed := middleware.Key(middleware.KeyPolicy{Required: true})
	once := middleware.Once(store, middleware.Options{On5xx: middleware.Store5xx})
	protected := middleware.Tenant(keyed(once(pay)))

	show(protected, "a", `{"amount":42}`)
	show(protected, "a", `{ "amount": 42 }`)
	show(protected, "a", `{"amount":43}`)
	show(protected, "b", `{"amount":42}`)
	// Output:
	// 201 false payment 1
	// 201 true payment 1
	// 422 false idempotency-key-reused
	// 201 false payment 2
}

// A handler that finds the request wrong before it does anything gives the key
// back, so that the corrected request may use it.
func ExampleReject() {
	pay := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength < 3 {
			middleware.Reject(w, r, fmt.Errorf("amount is missing"))
			return
		}
		fmt.Fprint(w, "paid")
	})
	keyed := middleware.Key(middleware.KeyPolicy{Required: true})
	protected := middleware.Tenant(keyed(middleware.Once(memory.New(time.Now), middleware.Options{})(pay)))

	show(protected, "a", `{}`)
	show(protected, "a", `{"amount":42}`)
	// Output:
	// 400 false request-rejected
	// 200 false paid
}

// A handler that writes in the store's own database takes the transaction from
// its context: the row and the answer are one commit.
func ExampleOnceTx() {
	pay := func(w http.ResponseWriter, r *http.Request) {
		tx, ok := idempotency.TxOf(r.Context())
		if !ok {
			http.Error(w, "no transaction", http.StatusInternalServerError)
			return
		}
		if _, err := tx.ExecContext(r.Context(), `insert into payments (amount) values ($1)`, 42); err != nil {
			http.Error(w, "the payment was not made", http.StatusInternalServerError) // rolls back
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	protect := func(store idempotency.TxStore) http.Handler {
		keyed := middleware.Key(middleware.KeyPolicy{Required: true})
		return middleware.Tenant(keyed(middleware.OnceTx(store, middleware.Options{})(http.HandlerFunc(pay))))
	}
	_ = protect // with the store of a repository
}
