package middleware

import (
	"net/http"

	"github.com/sekali/sekali/api"
)

// Reject answers a request that the handler finds wrong before it has done
// anything, and gives its key back: the corrected request may have the same one
// (contract row 41). An error of package api is answered with its own problem;
// the text of any other one is shown to the client.
func Reject(w http.ResponseWriter, r *http.Request, err error) {
	w.Header().Set(storeHeader, "no")
	api.WriteError(w, r, &api.RejectedError{Err: err})
}
