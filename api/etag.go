package api

import (
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"

	"github.com/sekali/sekali/job"
)

// JobETag is the validator of a job's document: its version.
func JobETag(j job.Job) string { return `"` + strconv.FormatInt(j.Version, 10) + `"` }

// ResultETag is the validator of a result: the hash of its bytes.
func ResultETag(r job.Result) string { return `"` + hex.EncodeToString(r.Hash()) + `"` }

// NoneMatch reports whether the request's If-None-Match names the entity tag,
// so that the answer is 304. The comparison is the weak one of RFC 9110; a list
// that is malformed ends where it is.
func NoneMatch(r *http.Request, etag string) bool {
	rest := strings.Join(r.Header.Values("If-None-Match"), ",")
	if strings.TrimSpace(rest) == "*" {
		return true
	}
	for {
		rest = strings.TrimLeft(rest, " \t,")
		rest = strings.TrimPrefix(rest, "W/")
		if !strings.HasPrefix(rest, `"`) {
			return false
		}
		end := strings.IndexByte(rest[1:], '"')
		if end == -1 {
			return false
		}
		if rest[:end+2] == etag {
			return true
		}
		rest = rest[end+2:]
	}
}
