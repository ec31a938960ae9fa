package openapi

import (
	"embed"
	"io/fs"
)

// The page is Swagger UI as its makers deliver it (Apache-2.0, see the notices
// beside it), with our own start and look: make swagger-ui takes a newer one.
//
//go:embed page
var page embed.FS

// Page returns the files of the page that shows the document: index.html, which
// is to be served at /docs, and what it loads from /docs/.
func Page() fs.FS {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // the folder is embedded above
	}
	return files
}
