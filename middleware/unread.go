package middleware

import (
	"io"
	"net/http"
	"time"
)

const (
	// unreadTimeout is how long a client may still send what nobody reads; nginx
	// waits five times as long.
	unreadTimeout = 1 * time.Second
	// unreadLimit lets the largest bodies through that clients send in good
	// faith, and lets go of one that never ends.
	unreadLimit = 16 << 20
)

// Unread sends the answer and then reads on for a moment where a handler has
// left some of the request's body. The server would do either too little or too
// much: it resets a connection that it closes with bytes unread, so that the
// client loses the answer (413 above all), and it waits without end for the rest
// of a body before it sends an answer on a connection that it keeps.
func Unread(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Who asks before sending has not sent anything once it is refused.
		if r.ContentLength == 0 || r.Header.Get("Expect") != "" {
			next.ServeHTTP(w, r)
			return
		}
		body := &watchedBody{ReadCloser: r.Body}
		r.Body = body
		next.ServeHTTP(w, r)
		if body.ended {
			return
		}
		stop := limitReading(w, unreadTimeout)
		defer stop()
		if http.NewResponseController(w).Flush() == nil {
			_, _ = io.CopyN(io.Discard, body, unreadLimit)
		}
	})
}

// watchedBody tells whether it has been read to its end.
type watchedBody struct {
	io.ReadCloser
	ended bool
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err != nil
	return n, err
}
