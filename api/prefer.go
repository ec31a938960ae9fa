package api

import (
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Preferences is what the Prefer header of a request asks for (RFC 7240), as
// far as this gateway knows it. Unknown and malformed preferences are ignored;
// of a preference that is given twice the first counts.
type Preferences struct {
	Wait    *time.Duration // wait=N, in whole seconds
	Async   bool           // respond-async
	Minimal bool           // return=minimal
}

// maxWait is what a number of seconds that cannot be meant is taken for. The
// gateway grants far less.
const maxWait = 1_000_000 * time.Second

// ParsePrefer reads all lines of the Prefer header.
func ParsePrefer(lines []string) Preferences {
	var p Preferences
	seen := map[string]bool{}
	for _, line := range lines {
		for element := range splitUnquoted(line, ',') {
			name, value, ok := preference(element)
			if !ok || seen[name] {
				continue
			}
			seen[name] = p.set(name, value)
		}
	}
	return p
}

func (p *Preferences) set(name, value string) bool {
	switch name {
	case "wait":
		wait, ok := ParseSeconds(value)
		if !ok {
			return false
		}
		p.Wait = &wait
	case "respond-async":
		p.Async = value == ""
	case "return":
		p.Minimal = value == "minimal"
	}
	return true
}

// Grant returns how long a request may wait, in whole seconds and at most limit.
// ok is false if it did not ask to.
func (p Preferences) Grant(limit time.Duration) (wait time.Duration, ok bool) {
	if p.Wait == nil {
		return 0, false
	}
	return min(*p.Wait, limit).Truncate(time.Second), true
}

// ParseSeconds reads a number of whole seconds that is not negative. One too
// large for anything comes back as a very long time.
func ParseSeconds(text string) (time.Duration, bool) {
	if text == "" || strings.Trim(text, "0123456789") != "" {
		return 0, false
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil || seconds > int64(maxWait/time.Second) {
		return maxWait, true
	}
	return time.Duration(seconds) * time.Second, true
}

// ParseWait reads the query parameter wait, which does what Prefer: wait does
// for clients that cannot set a header. It is nil if there is none. Errors:
// *ValidationError.
func ParseWait(query url.Values) (*time.Duration, error) {
	values := query["wait"]
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return nil, nil
	}
	wait, ok := ParseSeconds(values[0])
	if !ok || len(values) > 1 {
		return nil, &ValidationError{Errors: []FieldError{{
			Pointer: "?wait", Rule: ruleRange, Detail: "must be one whole number of seconds",
		}}}
	}
	return &wait, nil
}

// WaitApplied is the Preference-Applied value of a granted wait.
func WaitApplied(granted time.Duration) string {
	return "wait=" + strconv.FormatInt(int64(granted/time.Second), 10)
}

// preference reads name[=value] and drops the parameters behind it.
func preference(element string) (name, value string, ok bool) {
	for part := range splitUnquoted(element, ';') {
		element = part
		break // the rest are parameters
	}
	name, value, _ = strings.Cut(element, "=")
	name, value = strings.ToLower(trimOWS(name)), trimOWS(value)
	if strings.HasPrefix(value, `"`) {
		value, ok = unquote(value)
		return name, value, ok && isToken(name)
	}
	return name, value, isToken(name) && (value == "" || isToken(value))
}

// unquote reads an RFC 9110 quoted-string that is all of text.
func unquote(text string) (string, bool) {
	var b strings.Builder
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '"':
			return b.String(), i == len(text)-1
		case '\\':
			if i++; i == len(text) {
				return "", false
			}
		}
		b.WriteByte(text[i])
	}
	return "", false
}

// splitUnquoted yields the parts of text between separators outside quotes.
func splitUnquoted(text string, separator byte) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		start, quoted := 0, false
		for i := 0; i < len(text); i++ {
			switch c := text[i]; {
			case quoted && c == '\\':
				i++
			case c == '"':
				quoted = !quoted
			case c == separator && !quoted:
				if !yield(text[start:i]) {
					return
				}
				start = i + 1
			}
		}
		yield(text[start:])
	}
}

func trimOWS(s string) string { return strings.Trim(s, " \t") }

func isToken(s string) bool {
	const marks = "!#$%&'*+-.^_`|~"
	for i := range len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte(marks, c) == -1 {
			return false
		}
	}
	return s != ""
}
