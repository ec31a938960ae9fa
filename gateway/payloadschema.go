package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sekali/sekali/job"
)

// payloadSchema checks payloads of one job type. A validation has a meter of its
// own, which is compiled into the schema, so each takes a compiled schema for
// itself while it lasts.
type payloadSchema struct {
	documents *schemaDocuments
	compiled  sync.Pool // of *meteredSchema
}

type meteredSchema struct {
	*jsonschema.Schema
	meter *meter
}

// newPayloadSchema reads and compiles a JSON Schema, of draft 2020-12 unless it
// names another one.
func newPayloadSchema(file string) (*payloadSchema, error) {
	documents, err := openSchema(file)
	if err != nil {
		return nil, err
	}
	first, err := documents.compile()
	if err != nil {
		return nil, err
	}
	s := &payloadSchema{documents: documents}
	s.compiled.Put(first)
	s.compiled.New = func() any {
		again, err := documents.compile()
		if err != nil {
			panic(fmt.Sprintf("gateway: what compiled once does not compile: %v", err))
		}
		return again
	}
	return s, nil
}

// check returns a *job.PayloadError with everything that is wrong, or nil.
func (s *payloadSchema) check(payload []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(payload))
	if err != nil {
		return violation("json", "must be JSON")
	}
	effort, err := weigh(value)
	if err != nil {
		return err
	}
	schema := s.compiled.Get().(*meteredSchema)
	defer s.compiled.Put(schema)
	schema.meter.left = baseEffort + effortPerByte*len(payload) - effort
	return schema.violations(value)
}

func (s *meteredSchema) violations(value any) (err error) {
	defer s.meter.stop(&err)
	s.meter.spend(0)
	var invalid *jsonschema.ValidationError
	if errors.As(s.Validate(value), &invalid) {
		return &job.PayloadError{Violations: violationsOf(invalid, value)}
	}
	return nil
}

func violation(rule, detail string) error {
	return &job.PayloadError{Violations: []job.Violation{{Rule: rule, Detail: detail}}}
}

// schemaDocuments are the file of a schema and those that it refers to, which
// lie in its folder or below. They are read once: what is compiled later is what
// was checked at the start.
type schemaDocuments struct {
	folder string
	first  string         // URL of the schema itself
	byURL  map[string]any // read so far
}

// schemaBase is what the folder of a schema is called within it. It has a parent
// so that a reference that leaves the folder can be told.
const schemaBase = "file:///folder/"

func openSchema(file string) (*schemaDocuments, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	document, err := parseSchema(text)
	if err != nil {
		return nil, err
	}
	first := schemaBase + url.PathEscape(filepath.Base(file))
	return &schemaDocuments{folder: filepath.Dir(file), first: first, byURL: map[string]any{first: document}}, nil
}

// parseSchema is strict: of a member that stands twice, one would not be obeyed.
func parseSchema(text []byte) (any, error) {
	if err := readStrictly(text); err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("is no JSON: %w", err)
	}
	if _, err := weigh(document); err != nil {
		return nil, errors.New("has a number beyond what is compared here (1000 digits, exponents to 1000)")
	}
	return document, nil
}

// maxSchemaDepth is enough for payloads of the depth that is accepted. The time
// that it takes to compile a schema grows with a power of its depth.
const maxSchemaDepth = 256

func readStrictly(text []byte) error {
	decoder := jsontext.NewDecoder(bytes.NewReader(text))
	for {
		_, err := decoder.ReadToken()
		switch {
		case err != nil:
			return fmt.Errorf("is no JSON: %w", err)
		case decoder.StackDepth() > maxSchemaDepth:
			return fmt.Errorf("is nested deeper than %d", maxSchemaDepth)
		case decoder.StackDepth() > 0:
			continue
		}
		if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
			return errors.New("is no JSON: something follows the value")
		}
		return nil
	}
}

// Load reads a document that the schema refers to.
func (d *schemaDocuments) Load(location string) (any, error) {
	if document, known := d.byURL[location]; known {
		return document, nil
	}
	path, inside := strings.CutPrefix(location, schemaBase)
	name, err := url.PathUnescape(path)
	if !inside || err != nil {
		return nil, errors.New("a schema refers only to files in its folder; nothing is fetched")
	}
	file, err := os.OpenInRoot(d.folder, filepath.FromSlash(name))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	document, err := parseSchema(text)
	if err != nil {
		return nil, err
	}
	d.byURL[location] = document
	return document, nil
}

// compile makes a schema with a meter of its own.
func (d *schemaDocuments) compile() (*meteredSchema, error) {
	m := &meter{}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.AssertFormat() // by the letter of the draft it is a comment; who writes it means it
	c.UseLoader(d)
	c.RegisterVocabulary(m.vocabulary())
	c.AssertVocabs()
	schema, err := c.Compile(d.first)
	if err != nil {
		return nil, d.problem(err)
	}
	return &meteredSchema{Schema: schema, meter: m}, nil
}

// problem says in one line why a schema does not compile.
func (d *schemaDocuments) problem(err error) error {
	var against *jsonschema.SchemaValidationError
	var invalid *jsonschema.ValidationError
	if !errors.As(err, &against) || !errors.As(against.Err, &invalid) {
		return errors.New(strings.ReplaceAll("does not compile: "+err.Error(), schemaBase, ""))
	}
	location, start, _ := strings.Cut(against.URL, "#")
	var all []string
	for _, v := range violationsOf(invalid, at(d.byURL[location], strings.Split(start, "/")[1:])) {
		all = append(all, fmt.Sprintf("%s%s %s", start, v.Pointer, v.Detail))
	}
	if len(all) > maxSchemaProblems {
		all = append(all[:maxSchemaProblems], fmt.Sprintf("and %d more", len(all)-maxSchemaProblems))
	}
	return fmt.Errorf("is no JSON Schema: %s: %s", strings.TrimPrefix(location, schemaBase), strings.Join(all, "; "))
}

// maxSchemaProblems is how much of what is wrong with a schema one line tells.
const maxSchemaProblems = 5

// checkSchema reports a schema that cannot be used.
func (t JobType) checkSchema(k *check, path string) {
	if t.Schema == "" {
		return
	}
	if _, err := newPayloadSchema(t.Schema); err != nil {
		k.that(false, path+".schema", t.Schema, err.Error())
	}
}
