// Package openapi holds the gateway's OpenAPI document. It is made by make
// generate, and describes this version of the gateway: every route, status,
// header and problem.
package openapi

import _ "embed"

//go:embed openapi.yaml
var inYAML []byte

//go:embed openapi.json
var inJSON []byte

// YAML returns the document as YAML. It is not to be changed.
func YAML() []byte { return inYAML }

// JSON returns the same document as JSON. It is not to be changed.
func JSON() []byte { return inJSON }
