package executor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sekali/sekali/job"
)

// template is a statement whose placeholders are bound, never pasted:
//
//	insert into invoices (order_id) values ({{ .payload.order_id }})
//
// A placeholder is a path and nothing else: .key, .tenant, .id, or .payload
// followed by members and array indexes (.payload.lines[0].sku).
type template struct {
	query  string // with the dialect's parameters
	values []path // one for each parameter, in order
	shape  shape
}

// parseTemplate reads a statement. Each placeholder becomes a parameter of its
// own, also where two are alike: Postgres infers one type for each parameter,
// and a value may stand in places of different types.
func parseTemplate(text string, parameter func(int) string) (template, error) {
	spans, err := splitSQL(text)
	if err != nil {
		return template{}, err
	}
	var t template
	var query strings.Builder
	for _, s := range spans {
		if s.kind != placeholderSpan {
			query.WriteString(s.text)
			continue
		}
		p, err := parsePath(s.text)
		if err != nil {
			return template{}, err
		}
		t.values = append(t.values, p)
		query.WriteString(parameter(len(t.values)))
	}
	t.query = query.String()
	t.shape, err = shapeOf(spans, strings.HasPrefix(parameter(1), "?"))
	return t, err
}

// bind returns the arguments for one job.
func (t template) bind(c job.Claimed) ([]any, error) {
	args := make([]any, len(t.values))
	for i, p := range t.values {
		value, err := p.value(c)
		if err != nil {
			return nil, fmt.Errorf("executor: bind {{ %s }}: %w", p.text, err)
		}
		args[i] = value
	}
	return args, nil
}

// path says where a value comes from.
type path struct {
	text  string
	root  string   // key, tenant, id or payload
	steps []string // members and indexes within the payload
}

var (
	pathForm = regexp.MustCompile(`^\.(?:(key|tenant|id)|(payload)((?:\.[\p{L}\p{N}_-]+|\[\d+\])*))$`)
	stepForm = regexp.MustCompile(`[\p{L}\p{N}_-]+`)
)

func parsePath(placeholder string) (path, error) {
	text := strings.TrimSpace(strings.TrimSuffix(strings.TrimPrefix(placeholder, "{{"), "}}"))
	m := pathForm.FindStringSubmatch(text)
	if m == nil {
		return path{}, fmt.Errorf("placeholder %s: want .key, .tenant, .id or a path such as .payload.order_id or .payload.lines[0].sku; there are no functions",
			excerpt(placeholder))
	}
	return path{text: text, root: m[1] + m[2], steps: stepForm.FindAllString(m[3], -1)}, nil
}

// value returns what the path leads to in the job, in the form that is bound.
func (p path) value(c job.Claimed) (any, error) {
	switch p.root {
	case "key":
		return string(c.Key), nil
	case "tenant":
		return string(c.Tenant), nil
	case "id":
		return string(c.ID), nil
	}
	raw, err := p.raw(payloadOf(c))
	if err != nil {
		return nil, err
	}
	return bindable(raw)
}

// raw returns what the path leads to in the payload, nothing where it leads
// nowhere.
func (p path) raw(payload json.RawMessage) (json.RawMessage, error) {
	raw := payload
	for _, step := range p.steps {
		var err error
		if raw, err = child(raw, step); err != nil {
			return nil, err
		}
	}
	return bytes.TrimSpace(raw), nil
}

// child returns the member or the element, nothing where there is none.
func child(raw json.RawMessage, step string) (json.RawMessage, error) {
	raw = bytes.TrimSpace(raw)
	switch {
	case bytes.HasPrefix(raw, []byte("{")):
		var members map[string]json.RawMessage
		err := json.Unmarshal(raw, &members)
		return members[step], err
	case bytes.HasPrefix(raw, []byte("[")):
		var elements []json.RawMessage
		err := json.Unmarshal(raw, &elements)
		index, notIndex := strconv.Atoi(step)
		if err != nil || notIndex != nil || index < 0 || index >= len(elements) {
			return nil, err
		}
		return elements[index], nil
	}
	return nil, nil
}

// bindable turns a JSON value into a statement's argument (contract section
// I). Numbers are never read as floating point: what is no 64-bit integer is
// bound as its text, digit by digit.
func bindable(raw json.RawMessage) (any, error) {
	raw = bytes.TrimSpace(raw)
	if len(raw) == 0 {
		return nil, nil
	}
	switch raw[0] {
	case '{', '[':
		return string(raw), nil
	case '"':
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err
	case 't', 'f':
		return raw[0] == 't', nil
	case 'n':
		return nil, nil
	}
	if integer, err := strconv.ParseInt(string(raw), 10, 64); err == nil {
		return integer, nil
	}
	return string(raw), nil
}

// shape is what can be told of a statement from its text.
type shape struct {
	verb    string // its main word: select, insert, …
	returns bool   // it returns rows
}

// reads reports whether the statement is a query that changes nothing by
// itself.
func (s shape) reads() bool { return slices.Contains(queries, s.verb) }

var (
	queries = []string{"select", "values", "table"}
	changes = []string{"insert", "update", "delete", "merge", "replace"}
	// answers return rows too, but are no queries.
	answers = []string{"show", "call", "explain", "pragma"}
	// endings would end or nest the transaction in which the job ends.
	endings = []string{"begin", "start", "commit", "end", "rollback", "abort", "savepoint", "release", "prepare"}

	wordOrSign  = regexp.MustCompile(`[\p{L}_][\p{L}\p{N}_$]*|[();]|\S`)
	numbered    = regexp.MustCompile(`\$\d`)
	errNoText   = errors.New("the statement is empty")
	errOnlyOne  = errors.New("one statement only: text follows the semicolon")
	errEndsWork = errors.New("the statement runs in the transaction in which the job ends, and cannot begin or end one")
)

// shapeOf reads the statement's words outside of literals, comments and
// parentheses. questionMarks: the dialect's parameters are question marks.
func shapeOf(spans []span, questionMarks bool) (shape, error) {
	code := skeleton(spans)
	if numbered.MatchString(code) || questionMarks && strings.Contains(code, "?") {
		return shape{}, errors.New("values are bound by placeholders such as {{ .payload.order_id }}, not by $1 or ?")
	}
	tokens := wordOrSign.FindAllString(strings.ToLower(code), -1)
	if end := slices.Index(tokens, ";"); end >= 0 {
		if strings.Trim(strings.Join(tokens[end:], ""), ";") != "" {
			return shape{}, errOnlyOne
		}
		tokens = tokens[:end]
	}
	if len(tokens) == 0 {
		return shape{}, errNoText
	}
	s := shape{verb: mainVerb(tokens)}
	if slices.Contains(endings, s.verb) {
		return shape{}, errEndsWork
	}
	s.returns = s.reads() || slices.Contains(answers, s.verb) || slices.Contains(outermost(tokens), "returning")
	return s, nil
}

// skeleton is the statement's code: a literal is reduced to two quotes, a
// placeholder too, a comment to a space.
func skeleton(spans []span) string {
	var code strings.Builder
	for _, s := range spans {
		switch s.kind {
		case plainSpan:
			code.WriteString(s.text)
		case commentSpan:
			code.WriteString(" ")
		default:
			code.WriteString(" '' ")
		}
	}
	return code.String()
}

func mainVerb(tokens []string) string {
	for len(tokens) > 1 && tokens[0] == "(" { // (select …) union (select …)
		tokens = tokens[1:]
	}
	if tokens[0] != "with" {
		return tokens[0]
	}
	isVerb := func(word string) bool { return slices.Contains(queries, word) || slices.Contains(changes, word) }
	words := outermost(tokens)
	return words[max(0, slices.IndexFunc(words, isVerb))]
}

// outermost returns the tokens that stand in no parentheses.
func outermost(tokens []string) []string {
	var outer []string
	depth := 0
	for _, token := range tokens {
		switch {
		case token == "(":
			depth++
		case token == ")":
			depth--
		case depth == 0:
			outer = append(outer, token)
		}
	}
	return outer
}
