package main

import "github.com/sekali/sekali/docs/openapi"

type openapiCommand struct {
	Output string `short:"o" enum:"yaml,json" default:"yaml" help:"yaml or json."`
}

// Help has the examples.
func (openapiCommand) Help() string {
	return `Prints the OpenAPI document of this version, the one that a gateway serves at /openapi.yaml and /openapi.json:
for generators of clients, without a running gateway.

  sekali openapi > openapi.yaml
  sekali openapi -o json > openapi.json`
}

// Run prints the document.
func (o openapiCommand) Run(t terminal) error {
	text := openapi.YAML()
	if o.Output == "json" {
		text = openapi.JSON()
	}
	_, err := t.out.Write(text)
	return err
}
