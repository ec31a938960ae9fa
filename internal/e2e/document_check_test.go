package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/sekali/sekali/docs/openapi"
)

// The OpenAPI document, ready to be compared with what the gateway does. A
// validator of the document's family was tried: it takes keys with a slash for
// ambiguous paths, lets headers pass that nothing names, and knows no HEAD.

type object = map[string]any

// contract is the document.
type contract struct {
	operations []*apiOperation
	problem    *jsonschema.Schema // what errors outside all operations look like
}

// apiOperation is one method of one path.
type apiOperation struct {
	id, method string
	summary    string
	path       []string // its segments; {name} stands for any
	parameters []parameter
	bodies     map[string]*jsonschema.Schema // by media type
	answers    map[int]response
}

type parameter struct {
	name, in string
	required bool
	schema   *jsonschema.Schema
}

type response struct {
	codes   []string                      // of problems
	bodies  map[string]*jsonschema.Schema // by media type; none: no body
	headers map[string]*jsonschema.Schema
}

// reader takes the document apart.
type reader struct {
	document object
	compiler *jsonschema.Compiler
	made     int
}

// readContract reads the document that the program has in it.
func readContract() (*contract, error) {
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(openapi.JSON()))
	if err != nil {
		return nil, err
	}
	r, err := newReader(parsed)
	if err != nil {
		return nil, err
	}
	c := &contract{}
	for path, item := range r.document["paths"].(object) {
		for method, o := range item.(object) {
			c.operations = append(c.operations, r.operation(strings.ToUpper(method), path, o.(object)))
		}
	}
	c.problem = r.schema(object{"$ref": "#/components/schemas/Problem"})
	// A path that is written out goes before one with parameters.
	slices.SortFunc(c.operations, func(a, b *apiOperation) int {
		return strings.Count(strings.Join(a.path, "/"), "{") - strings.Count(strings.Join(b.path, "/"), "{")
	})
	return c, nil
}

func newReader(parsed any) (*reader, error) {
	r := &reader{document: parsed.(object), compiler: jsonschema.NewCompiler()}
	r.compiler.AssertFormat()
	strict(parsed)
	return r, r.compiler.AddResource("document.json", parsed)
}

// strict closes what is open to readers alone: the gateway sends no member and
// no word that the document does not list. References are made absolute, so that
// schemas can be compiled by themselves.
func strict(v any) {
	switch v := v.(type) {
	case []any:
		for _, one := range v {
			strict(one)
		}
	case object:
		if reference, ok := v["$ref"].(string); ok {
			v["$ref"] = "document.json" + strings.TrimPrefix(reference, "document.json")
		}
		if _, named := v["properties"].(object); named && v["additionalProperties"] == nil && v["type"] == "object" {
			v["additionalProperties"] = false
		}
		if words, listed := v["x-extensible-enum"].([]any); listed {
			v["enum"] = append(slices.Clone(words), nil) // what may be null is said by the type
		}
		for _, one := range v {
			strict(one)
		}
	}
}

func (r *reader) operation(method, path string, o object) *apiOperation {
	op := &apiOperation{id: o["operationId"].(string), method: method, path: strings.Split(path, "/"), answers: map[int]response{}}
	op.summary, _ = o["summary"].(string)
	parameters, _ := o["parameters"].([]any)
	for _, p := range parameters {
		p := r.resolve(p)
		required, _ := p["required"].(bool)
		op.parameters = append(op.parameters, parameter{p["name"].(string), p["in"].(string), required, r.schema(p["schema"])})
	}
	if body, takes := o["requestBody"]; takes {
		op.bodies = r.content(r.resolve(body))
	}
	for status, answer := range o["responses"].(object) {
		code, err := strconv.Atoi(status)
		if err != nil {
			panic("the status " + status + " of " + op.id + " is no number")
		}
		op.answers[code] = r.response(r.resolve(answer))
	}
	return op
}

var codeOfDescription = regexp.MustCompile("`([a-z-]+)`")

func (r *reader) response(o object) response {
	answer := response{bodies: r.content(o), headers: map[string]*jsonschema.Schema{}}
	if answer.bodies["application/problem+json"] != nil {
		for _, code := range codeOfDescription.FindAllStringSubmatch(o["description"].(string), -1) {
			answer.codes = append(answer.codes, code[1])
		}
	}
	headers, _ := o["headers"].(object)
	for name, header := range headers {
		answer.headers[http.CanonicalHeaderKey(name)] = r.schema(r.resolve(header)["schema"])
	}
	return answer
}

func (r *reader) content(o object) map[string]*jsonschema.Schema {
	bodies := map[string]*jsonschema.Schema{}
	content, _ := o["content"].(object)
	for mediaType, of := range content {
		bodies[mediaType] = r.schema(of.(object)["schema"])
	}
	return bodies
}

// resolve follows a reference to a component.
func (r *reader) resolve(v any) object {
	o := v.(object)
	reference, is := o["$ref"].(string)
	if !is {
		return o
	}
	for i, step := range strings.Split(reference, "/") {
		if i == 0 {
			o = r.document
			continue
		}
		o = o[step].(object)
	}
	return o
}

func (r *reader) schema(v any) *jsonschema.Schema {
	name := fmt.Sprintf("schema-%d.json", r.made)
	r.made++
	strict(v)
	if err := r.compiler.AddResource(name, v); err != nil {
		panic(err)
	}
	return r.compiler.MustCompile(name)
}

// exchange is one request with its answer.
type exchange struct {
	method, target string
	header         http.Header // of the request; nil: not known
	sent           []byte
	answer         answer
}

// find returns the operation of a request, nil where there is none: a path that
// a rule of the configuration has, or that nothing has.
func (c *contract) find(method, target string) *apiOperation {
	if method == http.MethodHead {
		method = http.MethodGet // without a body
	}
	path, _, _ := strings.Cut(target, "?")
	segments := strings.Split(path, "/")
	for _, op := range c.operations {
		if op.method == method && slices.EqualFunc(op.path, segments, fits) {
			return op
		}
	}
	return nil
}

func fits(pattern, segment string) bool {
	return pattern == segment || strings.HasPrefix(pattern, "{") && segment != ""
}

// check returns everything in which the exchange is not what the document says.
func (c *contract) check(x exchange) []string {
	op := c.find(x.method, x.target)
	switch {
	case x.answer.notOurs():
		return nil
	case op == nil && x.answer.Header.Get("Error-Source") == "gateway":
		return checkBody(map[string]*jsonschema.Schema{"application/problem+json": c.problem}, x)
	case op == nil:
		return nil // the upstream's, or a browser's question whether it may ask
	}
	documented, found := op.answers[x.answer.StatusCode]
	if !found {
		return []string{fmt.Sprintf("the status %d is not documented for %s", x.answer.StatusCode, op.id)}
	}
	bodies := documented.bodies
	if op.id == "getResult" && x.answer.StatusCode == http.StatusOK {
		// The bytes are the executor's, who may have called them what they are not.
		bodies = map[string]*jsonschema.Schema{"*/*": bodies["*/*"]}
	}
	wrong := append(checkBody(bodies, x), checkHeaders(documented.headers, x.answer.Header)...)
	if code := x.answer.code(); code != "" && !slices.Contains(documented.codes, code) {
		wrong = append(wrong, fmt.Sprintf("the code %s is not documented for %s with %d", code, op.id, x.answer.StatusCode))
	}
	if x.answer.StatusCode < http.StatusBadRequest && x.header != nil {
		wrong = append(wrong, op.checkRequest(x)...)
	}
	return wrong
}

// notOurs reports whether the answer is that of net/http to what is no HTTP.
func (a answer) notOurs() bool {
	refusals := []int{http.StatusBadRequest, http.StatusRequestHeaderFieldsTooLarge}
	return a.Header.Get("X-Request-Id") == "" && slices.Contains(refusals, a.StatusCode)
}

// code is that of a problem.
func (a answer) code() string {
	var problem struct{ Code string }
	if a.Header.Get("Content-Type") != "application/problem+json" || json.Unmarshal(a.body, &problem) != nil {
		return ""
	}
	return problem.Code
}

func checkBody(bodies map[string]*jsonschema.Schema, x exchange) []string {
	a := x.answer
	switch {
	case len(a.body) == 0 && (x.method == http.MethodHead || len(bodies) == 0):
		return nil
	case len(a.body) == 0 && strings.Contains(a.Header.Get("Preference-Applied"), "return=minimal"):
		return nil
	case len(bodies) == 0:
		return []string{fmt.Sprintf("a body that is not documented: %.200q", a.body)}
	}
	mediaType, _, err := mime.ParseMediaType(a.Header.Get("Content-Type"))
	schema := bodies[mediaType]
	switch {
	case err != nil || schema == nil && bodies["*/*"] == nil:
		return []string{fmt.Sprintf("the media type %q is not documented", a.Header.Get("Content-Type"))}
	case schema == nil || !isJSON(mediaType) || a.Header.Get("Content-Encoding") != "": // other tests look into codings
		return nil
	}
	return checkJSON(schema, a.body)
}

func isJSON(mediaType string) bool {
	return mediaType == "application/json" || strings.HasSuffix(mediaType, "+json")
}

func checkJSON(schema *jsonschema.Schema, text []byte) []string {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return []string{fmt.Sprintf("no JSON: %v in %.200q", err, text)}
	}
	if err := schema.Validate(value); err != nil {
		return []string{fmt.Sprintf("%v\nin %.1000s", err, text)}
	}
	return nil
}

// general lists headers of which OpenAPI need not speak: they belong to HTTP and
// to CORS, not to the operation.
var general = []string{
	"Date", "Content-Length", "Content-Type", "Content-Encoding", "Vary", "Connection", "Transfer-Encoding",
	"X-Content-Type-Options", "Access-Control-Allow-Origin", "Access-Control-Expose-Headers",
}

func checkHeaders(documented map[string]*jsonschema.Schema, header http.Header) []string {
	var wrong []string
	for name, values := range header {
		schema := documented[name]
		switch {
		case slices.Contains(general, name):
			continue
		case schema == nil:
			wrong = append(wrong, fmt.Sprintf("the header %s: %q is not documented", name, values))
			continue
		}
		for _, value := range values {
			if err := schema.Validate(readAs(schema, value)); err != nil {
				wrong = append(wrong, fmt.Sprintf("the header %s: %q: %v", name, value, err))
			}
		}
	}
	return wrong
}

// readAs is the value of a header or a parameter as its schema means it.
func readAs(schema *jsonschema.Schema, text string) any {
	if number, err := strconv.Atoi(text); err == nil && schema.Types != nil && slices.Contains(schema.Types.ToStrings(), "integer") {
		return number
	}
	return text
}

// checkRequest says where the program has taken what the document does not allow.
func (op *apiOperation) checkRequest(x exchange) []string {
	query, err := url.ParseQuery(x.query())
	if err != nil {
		return []string{err.Error()}
	}
	var wrong []string
	for _, p := range op.parameters {
		values := x.header.Values(p.name)
		if p.in == "query" {
			values = slices.DeleteFunc(query[p.name], func(v string) bool { return v == "" }) // as absent
		}
		if p.required && p.in == "header" && len(values) == 0 && !x.keyIsOptional(p.name) {
			wrong = append(wrong, "taken without the "+p.in+" parameter "+p.name)
		}
		for _, value := range values {
			if err := p.schema.Validate(readAs(p.schema, value)); err != nil {
				wrong = append(wrong, fmt.Sprintf("taken with %s: %q: %v", p.name, value, err))
			}
		}
	}
	return append(wrong, op.checkSent(x)...)
}

func (op *apiOperation) checkSent(x exchange) []string {
	mediaType, _, _ := mime.ParseMediaType(x.header.Get("Content-Type"))
	schema := op.bodies[mediaType]
	switch {
	case len(op.bodies) == 0, op.id == "submitBatch": // whose items are judged one by one
		return nil
	case schema == nil:
		return []string{fmt.Sprintf("taken with a body of %q", mediaType)}
	}
	return checkJSON(schema, x.sent)
}

func (x exchange) query() string {
	_, query, _ := strings.Cut(x.target, "?")
	return query
}

// keyIsOptional: the document speaks of gateways as they are delivered, which ask
// for a key. One that does not says that there was none.
func (x exchange) keyIsOptional(name string) bool {
	return name == "Idempotency-Key" && x.answer.Header.Get("Idempotency-Status") == "none"
}
