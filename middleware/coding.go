package middleware

import (
	"bytes"
	"compress/gzip"
	"compress/zlib"
	"io"
	"net/http"
	"strings"

	"github.com/klauspost/compress/zstd"

	"github.com/sekali/sekali/idempotency"
)

// maxDecoded keeps a small stored body from becoming an endless one.
const maxDecoded = 32 << 20

// acceptable returns the response in a form that the client takes: one that was
// stored in a coding is decoded for who does not accept it (contract row 55). A
// coding that is not known here goes out as it came.
func acceptable(response idempotency.Response, asked http.Header) idempotency.Response {
	coding := strings.ToLower(strings.TrimSpace(response.Header.Get("Content-Encoding")))
	if coding == "" || accepts(asked, coding) {
		return response
	}
	body, ok := decode(coding, response.Body)
	if !ok {
		return response
	}
	response.Body = body
	response.Header = response.Header.Clone()
	response.Header.Del("Content-Encoding")
	if etag := response.Header.Get("ETag"); strings.HasPrefix(etag, `"`) {
		response.Header.Set("ETag", "W/"+etag) // other bytes, the same meaning
	}
	return response
}

// accepts reads Accept-Encoding as far as it matters here: a coding is taken if
// it is named, or *, with a weight that is not zero.
func accepts(asked http.Header, coding string) bool {
	others := false
	for element := range strings.SplitSeq(strings.Join(asked.Values("Accept-Encoding"), ","), ",") {
		name, parameters, _ := strings.Cut(strings.ToLower(element), ";")
		weight, _ := strings.CutPrefix(strings.TrimSpace(parameters), "q=")
		taken := weight == "" || strings.Trim(weight, "0.") != ""
		switch strings.TrimSpace(name) {
		case coding:
			return taken
		case "*":
			others = taken
		}
	}
	return others
}

func decode(coding string, body []byte) ([]byte, bool) {
	decoder, err := decoderOf(coding, bytes.NewReader(body))
	if err != nil || decoder == nil {
		return nil, false
	}
	defer decoder.Close()
	decoded, err := io.ReadAll(io.LimitReader(decoder, maxDecoded+1))
	return decoded, err == nil && len(decoded) <= maxDecoded
}

func decoderOf(coding string, body io.Reader) (io.ReadCloser, error) {
	switch coding {
	case "gzip", "x-gzip":
		return gzip.NewReader(body)
	case "deflate":
		return zlib.NewReader(body)
	case "zstd":
		decoder, err := zstd.NewReader(body, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxDecoded))
		if err != nil {
			return nil, err
		}
		return decoder.IOReadCloser(), nil
	}
	return nil, nil
}
