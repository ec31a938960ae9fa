package idempotency

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Key is the client's value for one operation: 1 to 255 printable ASCII
// characters, case-sensitive, kept as given.
type Key string

// MaxKeyLength is the longest key in bytes. Most public APIs stop at 255, and a
// key of that length still fits one URL path segment in escaped form.
const MaxKeyLength = 255

// Reasons why a key is refused.
const (
	ReasonEmpty    = "empty"    // no character, or blanks alone
	ReasonSyntax   = "syntax"   // a malformed quoted string
	ReasonMultiple = "multiple" // more than one value
	ReasonLength   = "length"   // longer than the limit
	ReasonCharset  = "charset"  // a byte that is not printable ASCII
	ReasonFormat   = "format"   // against the configured pattern, or no URL can name it
)

// ErrKeyMissing reports a request without a key where one is required.
var ErrKeyMissing = errors.New("idempotency: key is missing")

// KeyError reports a key that is there but cannot be used.
type KeyError struct {
	Reason string
	// Limit is the longest allowed key in bytes, for ReasonLength; else 0.
	Limit int
}

func (e *KeyError) Error() string { return "idempotency: key is invalid: " + e.Reason }

// KeyRule is what a key must look like beyond its syntax. The zero value allows
// every key of up to MaxKeyLength bytes.
type KeyRule struct {
	MaxLength int            // 0 means MaxKeyLength
	Pattern   *regexp.Regexp // nil means any; see KeyPattern
}

// KeyPattern compiles a regular expression that must match the whole key.
func KeyPattern(expression string) (*regexp.Regexp, error) {
	pattern, err := regexp.Compile(`^(?:` + expression + `)$`)
	if err != nil {
		return nil, fmt.Errorf("idempotency: key pattern: %w", err)
	}
	return pattern, nil
}

// ParseKey reads the key from the lines of the Idempotency-Key header. A key is
// written as a structured-field string ("abc", RFC 8941; parameters after it are
// ignored) or bare (abc); both spellings are the same key. Errors:
// ErrKeyMissing without a line, else *KeyError.
func ParseKey(lines []string, rule KeyRule) (Key, error) {
	switch len(lines) {
	case 0:
		return "", ErrKeyMissing
	case 1:
	default:
		return "", &KeyError{Reason: ReasonMultiple}
	}
	read := readBare
	line := strings.Trim(lines[0], " \t")
	if strings.HasPrefix(line, `"`) {
		read = readQuoted
	}
	text, reason := read(line)
	if reason != "" {
		return "", &KeyError{Reason: reason}
	}
	return rule.check(text)
}

func (rule KeyRule) check(text string) (Key, error) {
	limit := cmp.Or(rule.MaxLength, MaxKeyLength)
	switch {
	case strings.Trim(text, " ") == "":
		return "", &KeyError{Reason: ReasonEmpty}
	case len(text) > limit:
		return "", &KeyError{Reason: ReasonLength, Limit: limit}
	// Clients and proxies resolve these two as path segments, however they are
	// escaped, so that the Location of such a job could not be asked for.
	case text == ".", text == "..":
		return "", &KeyError{Reason: ReasonFormat}
	case rule.Pattern != nil && !rule.Pattern.MatchString(text):
		return "", &KeyError{Reason: ReasonFormat}
	}
	return Key(text), nil
}

// readBare reads a key without quotes. A comma is looked for first: it is what
// proxies put between the header lines that they join.
func readBare(line string) (text, reason string) {
	if strings.Contains(line, ",") {
		return "", ReasonMultiple
	}
	for i := range len(line) {
		if line[i] <= ' ' || line[i] > '~' {
			return "", ReasonCharset
		}
	}
	if strings.ContainsAny(line, `"\`) {
		return "", ReasonSyntax
	}
	return line, ""
}

// readQuoted reads an RFC 8941 string and the parameters after it.
func readQuoted(line string) (text, reason string) {
	text, rest, reason := cutString(line)
	if reason != "" {
		return "", reason
	}
	for {
		rest = strings.TrimLeft(rest, " \t")
		switch {
		case rest == "":
			return text, ""
		case rest[0] == ',':
			return "", ReasonMultiple
		case rest[0] != ';':
			return "", ReasonSyntax
		}
		if rest, reason = cutParameter(rest[1:]); reason != "" {
			return "", reason
		}
	}
}

// cutString splits a line that begins with a quote after its closing one.
func cutString(line string) (text, rest, reason string) {
	var b strings.Builder
	for i := 1; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			return b.String(), line[i+1:], ""
		case c < ' ' || c > '~':
			return "", "", ReasonCharset
		case c == '\\':
			i++
			if i == len(line) || line[i] != '"' && line[i] != '\\' {
				return "", "", ReasonSyntax
			}
			b.WriteByte(line[i])
		default:
			b.WriteByte(c)
		}
	}
	return "", "", ReasonSyntax
}

// cutParameter skips one parameter, name or name=value, of an RFC 8941 item.
func cutParameter(text string) (rest, reason string) {
	text = strings.TrimLeft(text, " ")
	end := strings.IndexFunc(text, func(r rune) bool { return !isParameterName(r) })
	if end == -1 {
		end = len(text)
	}
	if end == 0 || text[0] >= '0' && text[0] <= '9' {
		return "", ReasonSyntax
	}
	value, found := strings.CutPrefix(text[end:], "=")
	if !found {
		return text[end:], ""
	}
	if strings.HasPrefix(value, `"`) {
		_, rest, reason = cutString(value)
		return rest, reason
	}
	end = strings.IndexAny(value, " \t;,")
	if end == -1 {
		end = len(value)
	}
	if end == 0 || strings.ContainsFunc(value[:end], isNoBareItem) {
		return "", ReasonSyntax
	}
	return value[end:], ""
}

func isParameterName(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || strings.ContainsRune("_-.*", r)
}

func isNoBareItem(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }

// Valid reports whether a key of this text can exist under any rule: whoever
// reads a key from a path asks here before asking a database.
func (k Key) Valid() bool {
	for i := range len(k) {
		if k[i] < ' ' || k[i] > '~' {
			return false
		}
	}
	_, err := KeyRule{}.check(string(k))
	return err == nil
}

// Header returns the quoted form, as it stands in the Idempotency-Key header.
func (k Key) Header() string { return `"` + inQuotes.Replace(string(k)) + `"` }

// inQuotes escapes what a quoted string of RFC 9651 cannot hold as it is.
var inQuotes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)
