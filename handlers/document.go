package handlers

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"

	"github.com/go-chi/chi/v5"

	"github.com/sekali/sekali/api"
)

// pagePolicy lets the page run what it came with, and call the gateway that it
// came from: nothing else.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Document answers the requests for the OpenAPI document, and for the page that
// shows it.
type Document struct {
	yaml, json []byte
	page       fs.FS
}

// NewDocument makes the handlers of the document. page holds index.html and the
// files that it names.
func NewDocument(yaml, json []byte, page fs.FS) *Document {
	return &Document{yaml: yaml, json: json, page: page}
}

// JSON answers GET /openapi.json.
//
//	@ID			getOpenAPIJSON
//	@Summary	Read this document as JSON
//	@Description	The document of the version that answers.
//	@Tags		document
//	@Param		If-None-Match header string false "An ETag that the client knows; 304 if it still holds."
//	@Produce	json
//	@Success	200 {object} object "The document."
//	@Success	304 "The document that the client knows."
//	@Router		/openapi.json [get]
func (d *Document) JSON(w http.ResponseWriter, r *http.Request) error {
	return serve(w, r, "application/json", d.json)
}

// YAML answers GET /openapi.yaml.
//
//	@ID			getOpenAPIYAML
//	@Summary	Read this document as YAML
//	@Description	The document of the version that answers.
//	@Tags		document
//	@Param		If-None-Match header string false "An ETag that the client knows; 304 if it still holds."
//	@Produce	application/yaml
//	@Success	200 {string} string "The document."
//	@Success	304 "The document that the client knows."
//	@Router		/openapi.yaml [get]
func (d *Document) YAML(w http.ResponseWriter, r *http.Request) error {
	return serve(w, r, "application/yaml", d.yaml)
}

// Page answers GET /docs: the page that shows the document. It loads nothing
// from elsewhere.
//
//	@ID			getDocs
//	@Summary	Read this document as a page
//	@Description	The page loads nothing from elsewhere, and can send requests to this gateway.
//	@Tags		document
//	@Param		If-None-Match header string false "An ETag that the client knows; 304 if it still holds."
//	@Produce	html
//	@Success	200 {string} string "The page."
//	@Success	304 "The page that the client knows."
//	@Router		/docs [get]
func (d *Document) Page(w http.ResponseWriter, r *http.Request) error {
	return d.file(w, r, "index.html")
}

// File answers GET /docs/{file}: what the page is made of.
func (d *Document) File(w http.ResponseWriter, r *http.Request) error {
	return d.file(w, r, chi.URLParam(r, "file"))
}

func (d *Document) file(w http.ResponseWriter, r *http.Request, name string) error {
	text, err := fs.ReadFile(d.page, name)
	if err != nil || mediaTypes[path.Ext(name)] == "" {
		return api.ErrRouteNotFound
	}
	w.Header().Set("Content-Security-Policy", pagePolicy)
	w.Header().Set("Referrer-Policy", "no-referrer")
	return serve(w, r, mediaTypes[path.Ext(name)], text)
}

// serve writes bytes that change with the program alone: a client asks whether
// it still has them.
func serve(w http.ResponseWriter, r *http.Request, mediaType string, text []byte) error {
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:16]) + `"`
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("ETag", tag)
	if api.NoneMatch(r, tag) {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	w.Header().Set("Content-Type", mediaType)
	api.WriteBytes(w, http.StatusOK, text)
	return nil
}

// mediaTypes of the page's files. The system's own table may lack some.
var mediaTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8",
}
