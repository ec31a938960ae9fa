package gateway

import "strings"

// laterKeys are keys that the documentation of the whole product names and
// this version does not support. They are refused with that word, not as
// spelling mistakes: a setting that is accepted and not obeyed is worse.
var laterKeys = map[string]bool{
	"schedules": true, "callbacks": true,
	"job_types.*.concurrency": true, "job_types.*.rate": true, "job_types.*.schema": true, "job_types.*.callback_url": true,
}

// trimType replaces the name of a job type in a path by a star.
func trimType(path string) string {
	rest, ok := strings.CutPrefix(path, "job_types.")
	if !ok {
		return path
	}
	_, key, _ := strings.Cut(rest, ".")
	return "job_types.*." + key
}
