package api

import (
	"fmt"
	"regexp"
	"time"
)

// timeForm is RFC 3339 to the letter: package time also takes a comma before
// fractions, hours of one digit and offsets such as +14:60.
var timeForm = regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d)$`)

func parseTime(text string) (time.Time, error) {
	if !timeForm.MatchString(text) {
		return time.Time{}, fmt.Errorf("api: %q is not an RFC 3339 time", text)
	}
	t, err := time.Parse(time.RFC3339, text)
	return t.UTC(), err
}
