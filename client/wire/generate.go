// Package wire is generated from the OpenAPI document of the gateway: its types,
// and a client that speaks them. Package client is the face of it, and what
// programs use; this one is for what has no method there.
package wire

//go:generate go tool -modfile=../../tools/go.mod oapi-codegen -config oapi-codegen.yaml ../../docs/openapi/openapi.yaml
