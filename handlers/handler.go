package handlers

import (
	"net/http"

	"github.com/sekali/sekali/api"
)

// Handler answers a request or returns an error, never both.
type Handler func(w http.ResponseWriter, r *http.Request) error

// ServeHTTP answers an error with its problem.
func (h Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := h(w, r); err != nil {
		api.WriteError(w, r, err)
	}
}
