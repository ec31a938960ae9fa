// Command go is a receiver that does each job once, however often it is asked:
// the effect, a receipt, is a file that is named after the job.
package main

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
)

var folder = cmp.Or(os.Getenv("RECEIPTS"), "receipts")

func receive(w http.ResponseWriter, r *http.Request) {
	key := r.Header.Get("Idempotency-Key") // names the job, the same on every attempt
	if _, err := io.Copy(io.Discard, r.Body); err != nil || key == "" {
		http.Error(w, "send a body with an Idempotency-Key", http.StatusBadRequest)
		return
	}
	name := filepath.Join(folder, fmt.Sprintf("%x.json", sha256.Sum256([]byte(key))))
	err := fs.ErrExist
	if r.Method != http.MethodGet { // a GET asks what became of the job (reconcile_url)
		err = write(name, fmt.Sprintf(`{"receipt":%q}`, rand.Text()))
	}
	repeated := errors.Is(err, fs.ErrExist)
	answer, readErr := os.ReadFile(name)
	switch {
	case err != nil && !repeated, readErr != nil && !errors.Is(readErr, fs.ErrNotExist):
		http.Error(w, "try again", http.StatusServiceUnavailable)
		return
	case readErr != nil:
		http.Error(w, "not done", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Idempotent-Replayed", fmt.Sprint(repeated))
	w.Write(answer) //nolint:errcheck // a client that has gone asks again
}

// write makes the whole file or nothing, and only if there is none: of two
// attempts at the same time, one gets fs.ErrExist.
func write(name, text string) error {
	draft, err := os.CreateTemp(folder, "draft-")
	if err != nil {
		return err
	}
	defer os.Remove(draft.Name())
	defer draft.Close()
	if _, err := draft.WriteString(text); err != nil {
		return err
	}
	if err := draft.Sync(); err != nil {
		return err
	}
	if err := os.Link(draft.Name(), name); err != nil {
		return err
	}
	opened, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer opened.Close()
	return opened.Sync() // on the disk before the answer: afterwards nobody asks again
}

func main() {
	listener, err := net.Listen("tcp", cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:9090")) //nolint:noctx // until the process ends
	if err = cmp.Or(err, os.MkdirAll(folder, 0o700)); err != nil {
		panic(err)
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	panic(http.Serve(listener, http.HandlerFunc(receive)))
}
