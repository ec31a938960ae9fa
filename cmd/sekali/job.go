package main

import (
	"fmt"

	"github.com/sekali/sekali/api"
)

// showJob prints the job that a gateway answered with.
func (f clientFlags) showJob(t terminal, got answer) (api.Job, error) {
	var j api.Job
	if err := got.decode(&j); err != nil {
		return j, err
	}
	if f.json() {
		return j, t.document(got.body)
	}
	return j, t.table([]string{"KEY", "TYPE", "STATUS", "ATTEMPTS", "OUTCOME", "ERROR"}, [][]string{jobRow(j)})
}

func jobRow(j api.Job) []string {
	trouble := "-"
	if j.Error != nil {
		trouble = j.Error.Code
	}
	return []string{j.Key, j.Type, j.Status, fmt.Sprintf("%d of %d", j.Attempts, j.MaxAttempts), orNone(j.Outcome), trouble}
}
