// Command proxy is an API that has no idempotency: each POST charges anew.
// sekali.yaml puts the gateway in front of it.
package main

import (
	"flag"
	"fmt"
	"net/http"
	"sync/atomic"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:9000", "address to serve on")
	flag.Parse()
	var charges atomic.Int64
	http.HandleFunc("POST /v1/charges", func(w http.ResponseWriter, r *http.Request) {
		id := charges.Add(1)
		w.Header().Set("Location", fmt.Sprintf("/v1/charges/%d", id))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "{\"id\":%d}\n", id)
	})
	http.HandleFunc("GET /v1/charges", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "{\"charges\":%d}\n", charges.Load())
	})
	fmt.Println(http.ListenAndServe(*listen, nil))
}
