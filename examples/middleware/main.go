// Command middleware is a program of one's own whose handler runs once for each
// Idempotency-Key, without a gateway in front of it.
//
//	go run ./examples/middleware
//	curl -i --json '{"amount":42}' -H 'Idempotency-Key: payment-1' http://127.0.0.1:8080/payments
package main

import (
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/idempotency/memory"
	"github.com/sekali/sekali/middleware"
)

var payments atomic.Int64

func pay(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintf(w, `{"payment":%d}`, payments.Add(1))
}

// protected runs pay once for each key. A program of several processes, or one
// whose payments must survive a restart, takes a store in a database instead.
func protected(store idempotency.Store) http.Handler {
	keyed := middleware.Key(middleware.KeyPolicy{Required: true})
	once := middleware.Once(store, middleware.Options{On5xx: middleware.Store5xx})
	return middleware.Tenant(keyed(once(http.HandlerFunc(pay))))
}

func main() {
	http.Handle("POST /payments", protected(memory.New(time.Now)))
	server := &http.Server{Addr: "127.0.0.1:8080", ReadHeaderTimeout: 10 * time.Second}
	if err := server.ListenAndServe(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
