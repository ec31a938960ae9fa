// Package openapi makes the OpenAPI document of the gateway out of what swag
// reads from the annotations of the handlers, the Go types of the documents on
// the wire, and an overlay for what neither can say. The result is a pure
// function of the three: made again, it has the same bytes.
//
// It refuses what swag degrades in silence: a struct whose members are not all
// in its schema, a schema that says nothing, a problem code without a page.
package openapi
