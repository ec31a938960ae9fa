package api

import (
	"errors"
	"fmt"
	"net/http"
)

// ErrUnauthenticated reports a request that does not tell who it comes from, or
// says so in a way that nobody can believe. Why, the client is not told.
var ErrUnauthenticated = errors.New("api: unauthenticated")

// ForbiddenError reports a caller who may not do this.
type ForbiddenError struct {
	Permission string // what it would need
}

func (e *ForbiddenError) Error() string { return "api: forbidden without permission " + e.Permission }

var unauthenticated = Problem{
	Code: "unauthenticated", Status: http.StatusUnauthorized, Title: "Who is calling is not known",
	Detail: "Send the header Authorization: Bearer with a token that is valid.", ofKey: notUsedUp,
}

func forbidden(e *ForbiddenError) Problem {
	return Problem{
		Code: "forbidden", Status: http.StatusForbidden, Title: "The token does not permit this",
		Detail: fmt.Sprintf("This needs a token with the permission %s.", e.Permission), ofKey: notUsedUp,
	}
}
