package middleware_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/job"
	"github.com/sekali/sekali/middleware"
)

var longText = strings.Repeat("the same over and over ", 250)

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := io.WriteString(z, text); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// plain decodes an answer as its Content-Encoding says.
func plain(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	var reader io.Reader = w.Body
	var err error
	switch w.Header().Get("Content-Encoding") {
	case "gzip":
		reader, err = gzip.NewReader(w.Body)
	case "zstd":
		var decoder *zstd.Decoder
		decoder, err = zstd.NewReader(w.Body, zstd.WithDecoderConcurrency(1))
		if err == nil {
			defer decoder.Close()
		}
		reader = decoder
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(reader)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func accepting(r *http.Request, coding string) *http.Request {
	if coding != "" {
		r.Header.Set("Accept-Encoding", coding)
	}
	return r
}

// What is stored is not coded: each client gets the replay as it can read it.
func TestContract_Row55_CompressedOutside(t *testing.T) {
	t.Parallel()
	var runs atomic.Int64
	h := middleware.Compress(protect(newStore(), middleware.Options{}, counted(&runs, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("ETag", `"v1"`)
		fmt.Fprint(w, longText)
	})))
	for _, tt := range []struct{ accept, coding, etag string }{
		{"gzip", "gzip", `"v1-gzip"`},
		{"", "", `"v1"`},
		{"zstd", "zstd", `"v1-zstd"`},
		{"gzip;q=0", "", `"v1"`},
	} {
		w := send(h, accepting(keyedAs("k", "{}"), tt.accept))
		answers(t, w, 200, "Content-Encoding", tt.coding, "ETag", tt.etag)
		if vary := strings.Join(w.Header().Values("Vary"), ","); vary != "Prefer,Accept-Encoding" {
			t.Errorf("Vary is %s", vary)
		}
		if plain(t, w) != longText {
			t.Errorf("%q gets another text", tt.accept)
		}
	}
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// An answer that came coded is stored as it came.
func TestContract_Row55_CodedByTheHandler(t *testing.T) {
	t.Parallel()
	var coded bytes.Buffer
	encoder, err := zstd.NewWriter(&coded, zstd.WithEncoderConcurrency(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(encoder, longText); err != nil || encoder.Close() != nil {
		t.Fatal(err)
	}
	for coding, body := range map[string][]byte{"gzip": zipped(t, longText), "zstd": coded.Bytes()} {
		h := middleware.Compress(protect(newStore(), middleware.Options{}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", coding)
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("ETag", `"v1"`)
			_, _ = w.Write(body)
		}))
		for _, tt := range []struct{ accept, coding, etag string }{
			{coding, coding, `"v1"`}, // first
			{coding, coding, `"v1"`},
			{"*", coding, `"v1"`},
			{"br, " + coding + ";q=0.5", coding, `"v1"`},
			{"", "", `W/"v1"`},
			{"identity", "", `W/"v1"`},
			{"*, " + coding + ";q=0", "", `W/"v1"`},
		} {
			w := send(h, accepting(keyedAs("k", "{}"), tt.accept))
			answers(t, w, 200, "Content-Encoding", tt.coding, "ETag", tt.etag)
			if plain(t, w) != longText {
				t.Errorf("%q gets another text", tt.accept)
			}
		}
	}
	t.Run("what cannot be decoded goes out as it came", func(t *testing.T) {
		t.Parallel()
		for _, coding := range []string{"br", "gzip"} {
			h := protect(newStore(), middleware.Options{}, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Encoding", coding)
				fmt.Fprint(w, "not really coded")
			})
			send(h, keyedAs("k", "{}"))
			w := send(h, keyedAs("k", "{}"))
			answers(t, w, 200, "Content-Encoding", coding)
			if w.Body.String() != "not really coded" {
				t.Errorf("body is %q", w.Body)
			}
		}
	})
}

// BR-44: a client that keeps the entity tag of what it got is told 304 exactly
// while that has not changed, coded or not.
func TestFailure_BR44_ConditionalAndCoded(t *testing.T) {
	t.Parallel()
	version := int64(5)
	h := middleware.Compress(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		etag := api.JobETag(job.Job{Version: version})
		w.Header().Set("ETag", etag)
		if api.NoneMatch(r, etag) {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, longText)
	}))
	get := func(coding, etag string) *httptest.ResponseRecorder {
		r := accepting(httptest.NewRequest(http.MethodGet, "/jobs/k", nil), coding)
		if etag != "" {
			r.Header.Set("If-None-Match", etag)
		}
		return send(h, r)
	}
	for coding, etag := range map[string]string{"gzip": `"5-gzip"`, "zstd": `"5-zstd"`, "": `"5"`} {
		answers(t, get(coding, ""), 200, "ETag", etag)
		answers(t, get(coding, etag), 304, "ETag", etag)
		answers(t, get(coding, `"4", `+etag), 304, "ETag", etag)
		answers(t, get(coding, strings.Replace(etag, "5", "4", 1)), 200)
	}
	version = 6
	answers(t, get("gzip", `"5-gzip"`), 200, "ETag", `"6-gzip"`)
}

// HEAD is GET without the body: small answers say nothing of codings, large ones
// the same to everybody.
func TestContract_Row99_CompressAndHead(t *testing.T) {
	t.Parallel()
	for size, vary := range map[int]string{4095: "", 4096: "Accept-Encoding"} {
		h := middleware.Compress(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(size))
			w.WriteHeader(http.StatusOK)
			if r.Method == http.MethodGet {
				fmt.Fprint(w, longText[:size])
			}
		}))
		for _, method := range []string{"GET", "HEAD"} {
			for _, coding := range []string{"", "gzip"} {
				w := send(h, accepting(httptest.NewRequest(method, "/", nil), coding))
				answers(t, w, 200, "Vary", vary)
				if coded := w.Header().Get("Content-Encoding") != ""; coded != (method == "GET" && coding != "" && vary != "") {
					t.Errorf("%d bytes to %s are coded: %t", size, method, coded)
				}
			}
		}
	}
}

// An answer below Compress can be flushed, and its connection taken over.
func TestCompress_KeepsTheConnectionsAbilities(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(middleware.Compress(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hijack" {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err != nil {
				t.Errorf("hijack: %v", err)
				return
			}
			fmt.Fprint(conn, "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
			conn.Close()
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: 1\n\n")
		w.(http.Flusher).Flush()
		<-r.Context().Done() // the client has seen it, and leaves
	})))
	defer s.Close()
	defer s.Client().CloseIdleConnections()
	for path, status := range map[string]int{"/hijack": 204, "/events": 200} {
		response, err := s.Client().Get(s.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		if response.StatusCode != status {
			t.Errorf("%s: status %d", path, response.StatusCode)
		}
		if path == "/events" {
			event := make([]byte, len("data: 1\n\n"))
			if _, err := io.ReadFull(response.Body, event); err != nil {
				t.Errorf("got %q, %v", event, err)
			}
		}
		response.Body.Close()
	}
}

func TestCompress_LeavesEventsAlone(t *testing.T) {
	t.Parallel()
	h := middleware.Compress(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, longText)
	}))
	w := send(h, accepting(keyedAs("k", "{}"), "gzip"))
	answers(t, w, 200, "Content-Encoding", "")
}
