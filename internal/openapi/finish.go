package openapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pb33f/libopenapi"
	"go.yaml.in/yaml/v3"
)

// node is an object of the document.
type node = map[string]any

// Document is the finished document in its two forms.
type Document struct {
	YAML []byte
	JSON []byte
}

// Finish makes the document out of what swag wrote and the overlay.
func Finish(swag, overlay []byte) (Document, error) {
	var doc node
	if err := yaml.Unmarshal(rename(swag), &doc); err != nil {
		return Document{}, fmt.Errorf("openapi: what swag wrote is no YAML: %w", err)
	}
	if err := describe(at(doc, "components", "schemas")); err != nil {
		return Document{}, err
	}
	tidy(doc)
	doc, err := lay(doc, overlay)
	if err != nil {
		return Document{}, err
	}
	if err := illustrate(doc); err != nil {
		return Document{}, err
	}
	return render(doc)
}

// rename takes the Go packages out of the names of schemas.
func rename(swag []byte) []byte {
	for _, pkg := range []string{"api.", "handlers."} {
		swag = bytes.ReplaceAll(swag, []byte("schemas/"+pkg), []byte("schemas/"))
		swag = bytes.ReplaceAll(swag, []byte("\n    "+pkg), []byte("\n    "))
	}
	return swag
}

// at returns the object below doc; every step of the path is there.
func at(doc node, path ...string) node {
	for _, step := range path {
		doc = doc[step].(node)
	}
	return doc
}

// lay applies the overlay. What it does not find is an error: it was written for
// something that is no longer there.
func lay(doc node, overlay []byte) (node, error) {
	under, err := encode(doc)
	if err != nil {
		return nil, err
	}
	if overlay, err = withoutAliases(overlay); err != nil {
		return nil, err
	}
	result, err := libopenapi.ApplyOverlayFromBytesToSpecBytes(under, overlay)
	if err != nil {
		return nil, fmt.Errorf("openapi: apply the overlay: %w", err)
	}
	var missed []error
	for _, warning := range result.Warnings {
		missed = append(missed, fmt.Errorf("openapi: overlay: %s: %s", warning.Target, warning.Message))
	}
	var laid node
	return laid, errors.Join(append(missed, yaml.Unmarshal(result.Bytes, &laid))...)
}

// withoutAliases writes out what YAML aliases stand for: the library does not
// follow them.
func withoutAliases(overlay []byte) ([]byte, error) {
	var plain node
	if err := yaml.Unmarshal(overlay, &plain); err != nil {
		return nil, fmt.Errorf("openapi: the overlay is no YAML: %w", err)
	}
	return encode(plain)
}

// tidy takes out what swag leaves behind and nobody reads.
func tidy(doc node) {
	delete(doc, "externalDocs")
	walk(doc, func(n node) {
		if n["uniqueItems"] == false {
			delete(n, "uniqueItems")
		}
		if _, isReference := n["$ref"]; isReference {
			// A reference stands alone: readers differ about what is beside it.
			maps.DeleteFunc(n, func(name string, _ any) bool { return name != "$ref" })
		}
	})
}

// walk visits all objects below v.
func walk(v any, visit func(node)) {
	switch v := v.(type) {
	case node:
		visit(v)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			walk(v[name], visit)
		}
	case []any:
		for _, one := range v {
			walk(one, visit)
		}
	}
}

// illustrate gives each answer that is a problem an example for each code that
// its description lists, and says where they are explained.
func illustrate(doc node) error {
	examples, err := problemExamples()
	if err != nil {
		return err
	}
	used := node{}
	var unknown []error
	walk(doc, func(n node) {
		content, _ := n["content"].(node)
		problem, isProblem := content["application/problem+json"].(node)
		description, isAnswer := n["description"].(string)
		if !isProblem || !isAnswer {
			return
		}
		shown, marked := node{}, []string{}
		for code := range strings.SplitSeq(description, ", ") {
			if examples[code] == nil {
				unknown = append(unknown, fmt.Errorf("openapi: there is no sample of the problem %q in samples.go", code))
			}
			used[code] = examples[code]
			shown[code] = node{"$ref": "#/components/examples/" + code}
			marked = append(marked, "`"+code+"`")
		}
		problem["examples"] = shown
		n["description"] = strings.Join(marked, ", ")
	})
	at(doc, "components")["examples"] = used
	return errors.Join(unknown...)
}

func render(doc node) (Document, error) {
	text, err := encode(doc)
	if err != nil {
		return Document{}, err
	}
	text = append([]byte("# Made by make generate from the code and overlay.yaml: change those.\n"), text...)
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(doc); err != nil {
		return Document{}, fmt.Errorf("openapi: write JSON: %w", err)
	}
	return Document{YAML: text, JSON: b.Bytes()}, nil
}

func encode(doc node) ([]byte, error) {
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(doc); err != nil {
		return nil, fmt.Errorf("openapi: write YAML: %w", err)
	}
	return b.Bytes(), nil
}
