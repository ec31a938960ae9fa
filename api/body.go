package api

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
)

// body is a request's body that was read whole.
type body struct {
	bytes.Reader
	whole []byte
}

func (*body) Close() error { return nil }

// SetBody puts a body that was read back into its request, for whoever reads it next.
func SetBody(r *http.Request, whole []byte) {
	b := &body{whole: whole}
	b.Reset(whole)
	r.Body, r.ContentLength = b, int64(len(whole))
}

// ReadBody returns the body of a request, of which nothing was read since SetBody. The
// bytes are not the caller's to change. Its error is ErrBodyUnreadable.
func ReadBody(r *http.Request) ([]byte, error) {
	if known, ok := r.Body.(*body); ok {
		return known.whole, nil
	}
	read, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBodyUnreadable, err)
	}
	return read, nil
}
