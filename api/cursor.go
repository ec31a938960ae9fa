package api

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"

	"github.com/sekali/sekali/job"
)

// A cursor is the id of the last job of a page, behind a checksum over that id
// and the filters. It is no secret and guards none, since a page never leaves
// the caller's tenant; it only has to be refused when it was changed or is used
// with other filters, where it would skip jobs in silence.

const checksumSize = 8

var errBadCursor = errors.New("api: cursor is not one of this list")

// Cursor returns where the page after the given last job begins.
func Cursor(last job.ID, f job.Filter) string {
	sum := cursorSum(last, f)
	return base64.RawURLEncoding.EncodeToString(append(sum, last...))
}

// parseCursor reads a cursor that Cursor made for the same filters.
func parseCursor(text string, f job.Filter) (job.ID, error) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil || len(b) <= checksumSize {
		return "", errBadCursor
	}
	last, err := job.ParseID(string(b[checksumSize:]))
	if err != nil || string(cursorSum(last, f)) != string(b[:checksumSize]) {
		return "", errBadCursor
	}
	return last, nil
}

// cursorSum leaves out the page itself: its place and its size.
func cursorSum(last job.ID, f job.Filter) []byte {
	f.Before, f.Limit = last, 0
	text, err := json.Marshal(f)
	if err != nil {
		panic("api: filter cannot be encoded: " + err.Error()) // strings and times of years 0 to 9999
	}
	sum := sha256.Sum256(text)
	return sum[:checksumSize]
}
