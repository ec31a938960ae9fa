// Command openapi writes docs/openapi/openapi.yaml and openapi.json: it reads
// what swag wrote and the overlay beside the documents.
//
//	openapi SWAG.yaml docs/openapi
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sekali/sekali/internal/openapi"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: openapi SWAG.yaml FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(from, folder string) error {
	swag, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	overlay, err := os.ReadFile(filepath.Join(folder, "overlay.yaml"))
	if err != nil {
		return err
	}
	doc, err := openapi.Finish(swag, overlay)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "openapi.yaml"), doc.YAML, 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, "openapi.json"), doc.JSON, 0o644)
}
