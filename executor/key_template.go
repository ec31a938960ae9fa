package executor

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/sekali/sekali/job"
)

// KeyTemplate makes a key of a job from what the job was submitted with:
//
//	payment_capture:{{ .payload.provider_event_id }}
//
// A placeholder is a path as in the statements of SQL, without .id, which a job
// has only once its keys are known. The key holds a string as it is, a number by
// its text, a boolean as true or false.
//
// Different values never make the same key by running into one another: between
// two placeholders there must be text that begins with a sign, and where a value
// holds that sign it is written as % and two hexadecimal digits, as is % itself.
// A template with one placeholder changes nothing of its value.
type KeyTemplate struct {
	kind    keyKind
	parts   []keyPart
	ending  string // text after the last placeholder
	escaped string // characters that values hold only escaped
}

// keyPart is a placeholder with the text in front of it.
type keyPart struct {
	text string
	path path
}

// keyKind is which key a template makes, and what that may hold.
type keyKind struct {
	name  string
	most  int // bytes
	legal func(rune) bool
	holds string // legal, in words
}

var (
	// The same as a client may name (contract section G).
	businessKey = keyKind{
		name: "business_key", most: 255, holds: "printable ASCII",
		legal: func(r rune) bool { return ' ' <= r && r <= '~' },
	}
	operationKey = keyKind{
		name: "operation_key", most: 512, holds: "text without control characters",
		legal: func(r rune) bool { return r != utf8.RuneError && !unicode.IsControl(r) },
	}
)

// NewBusinessKey returns the template of a type's business keys: 1 to 255
// printable ASCII characters.
func NewBusinessKey(text string) (*KeyTemplate, error) { return newKeyTemplate(businessKey, text) }

// NewOperationKey returns the template of a type's operation keys: 1 to 512
// bytes without control characters.
func NewOperationKey(text string) (*KeyTemplate, error) { return newKeyTemplate(operationKey, text) }

func newKeyTemplate(kind keyKind, text string) (*KeyTemplate, error) {
	t, err := parseKeyTemplate(text)
	if err == nil {
		t.kind = kind
		err = t.check()
	}
	if err != nil {
		return nil, fmt.Errorf("executor: %s: %w", kind.name, err)
	}
	return t, nil
}

func parseKeyTemplate(text string) (*KeyTemplate, error) {
	var t KeyTemplate
	for {
		before, _, found := strings.Cut(text, "{{")
		if strings.Contains(before, "}}") {
			return nil, errors.New("}} closes nothing")
		}
		if !found {
			t.ending = text
			return &t, nil
		}
		text = text[len(before):]
		size, err := sizeUntil(text, "{{", "}}")
		if err != nil {
			return nil, err
		}
		p, err := parsePath(text[:size])
		if err != nil {
			return nil, err
		}
		if p.root == "id" {
			return nil, errors.New("placeholder {{ .id }}: a job has no id before its keys are known; want .key, .tenant or a path such as .payload.order_id")
		}
		t.parts = append(t.parts, keyPart{text: before, path: p})
		text = text[size:]
	}
}

// check looks at the template's own text, and finds out what to escape.
func (t *KeyTemplate) check() error {
	length := len(t.ending)
	for i, part := range t.parts {
		length += len(part.text)
		if strings.ContainsFunc(part.text, t.kind.illegal) {
			return fmt.Errorf("%q: want %s", excerpt(part.text), t.kind.holds)
		}
		if i == 0 {
			continue
		}
		first, _ := utf8.DecodeRuneInString(part.text)
		if part.text == "" || first == '%' || unicode.IsLetter(first) || unicode.IsDigit(first) {
			return fmt.Errorf("{{ %s }}: between two placeholders there must be text that begins with a sign such as : or /, but not %%", part.path.text)
		}
		t.escaped += "%" + string(first)
	}
	switch {
	case strings.ContainsFunc(t.ending, t.kind.illegal):
		return fmt.Errorf("%q: want %s", excerpt(t.ending), t.kind.holds)
	case length == 0 && len(t.parts) == 0:
		return errors.New("it is empty")
	case length > t.kind.most:
		return fmt.Errorf("it has more than the %d bytes that a key may have", t.kind.most)
	}
	return nil
}

func (k keyKind) illegal(r rune) bool { return !k.legal(r) }

// Key makes the job's key. Its error is a *job.KeyPartError.
func (t *KeyTemplate) Key(j job.Job) (string, error) {
	var key strings.Builder
	longest, length := "", -1 // the value to blame for a key that is too long
	for _, part := range t.parts {
		value, reason := part.value(j)
		if reason == "" && strings.ContainsFunc(value, t.kind.illegal) {
			reason = "must be " + t.kind.holds
		}
		if reason != "" {
			return "", t.failed(part.place(), reason)
		}
		key.WriteString(part.text)
		key.WriteString(escape(value, t.escaped))
		if len(value) > length {
			longest, length = part.place(), len(value)
		}
	}
	key.WriteString(t.ending)
	if key.Len() > t.kind.most {
		return "", t.failed(longest, fmt.Sprintf("makes the key longer than %d bytes", t.kind.most))
	}
	return key.String(), nil
}

func (t *KeyTemplate) failed(place, reason string) error {
	return &job.KeyPartError{Key: t.kind.name, Path: place, Reason: reason}
}

// value returns what the placeholder stands for, or why it stands for nothing.
func (p keyPart) value(j job.Job) (value, reason string) {
	switch p.path.root {
	case "key":
		return string(j.Key), ""
	case "tenant":
		return string(j.Tenant), ""
	}
	raw, err := p.path.raw(j.Payload)
	switch {
	case err != nil:
		return "", "is not JSON"
	case len(raw) == 0:
		return "", "is missing"
	}
	switch raw[0] {
	case 'n':
		return "", "is null"
	case '{', '[':
		return "", "must be a string, a number or a boolean"
	case '"':
		if json.Unmarshal(raw, &value) != nil {
			return "", "is not JSON"
		}
	default:
		value = string(raw)
	}
	// One key for all who leave it empty would make their jobs one.
	if value == "" {
		return "", "is empty"
	}
	return value, ""
}

// place is where the value stands in the payload: lines[0].sku. It is empty for
// what is no part of it.
func (p keyPart) place() string {
	if p.path.root != "payload" {
		return ""
	}
	return strings.TrimPrefix(strings.TrimPrefix(p.path.text, ".payload"), ".")
}

// escape writes the bytes of those characters as % and their hexadecimal digits.
func escape(value, characters string) string {
	if !strings.ContainsAny(value, characters) {
		return value
	}
	var b strings.Builder
	for _, r := range value {
		if !strings.ContainsRune(characters, r) {
			b.WriteRune(r)
			continue
		}
		for _, c := range []byte(string(r)) {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
