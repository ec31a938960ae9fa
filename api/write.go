package api

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/sekali/sekali/job"
)

const (
	jsonType    = "application/json"
	problemType = "application/problem+json"
)

// encode returns v as JSON with a newline at the end, which terminals like.
// Characters of HTML stay as they are: nothing here is put into a page.
func encode(v any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(v); err != nil {
		// Every document of this package is made of strings, numbers and times.
		panic("api: document cannot be encoded: " + err.Error())
	}
	return b.Bytes()
}

// WriteJSON writes a document. Whether the client was still there to read it
// makes no difference to anybody, so there is no error to return.
func WriteJSON(w http.ResponseWriter, status int, document any) {
	w.Header().Set("Content-Type", jsonType)
	writeBody(w, status, encode(document))
}

// WriteJob writes the job as it is now.
func WriteJob(w http.ResponseWriter, status int, j job.Job) {
	w.Header().Set("Content-Type", jsonType)
	writeBody(w, status, FromJob(j, true).document())
}

// WriteResult writes 200 with what an executor returned, as it returned it.
// The policy keeps a browser from running it as a page of ours.
func WriteResult(w http.ResponseWriter, r job.Result) {
	h := w.Header()
	h.Set("Content-Type", r.MediaType)
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	writeBody(w, http.StatusOK, r.Body)
}

// WriteBytes writes a body as it is; its media type has been set.
func WriteBytes(w http.ResponseWriter, status int, body []byte) { writeBody(w, status, body) }

func writeBody(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
