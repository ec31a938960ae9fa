package executor

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// span is a piece of a statement that is read in one way.
type span struct {
	kind spanKind
	text string
}

type spanKind int

const (
	plainSpan       spanKind = iota
	quotedSpan               // a literal or a quoted name
	commentSpan              //
	placeholderSpan          // {{ … }}
)

// splitSQL cuts a statement into spans, by the rules of Postgres and SQLite. A
// placeholder inside of quotes is an error; one inside of a comment is comment.
func splitSQL(text string) ([]span, error) {
	var spans []span
	start := 0
	for at := 0; at < len(text); {
		kind, size, err := spanAt(text, at)
		if err != nil {
			return nil, err
		}
		if size == 0 {
			at++
			continue
		}
		if start < at {
			spans = append(spans, span{plainSpan, text[start:at]})
		}
		spans = append(spans, span{kind, text[at : at+size]})
		at += size
		start = at
	}
	if start < len(text) {
		spans = append(spans, span{plainSpan, text[start:]})
	}
	return spans, nil
}

// spanAt returns the kind and size of the span that starts at the position,
// zero if none but a plain one does.
func spanAt(text string, at int) (spanKind, int, error) {
	rest := text[at:]
	switch {
	case strings.HasPrefix(rest, "{{"):
		size, err := sizeUntil(rest, "{{", "}}")
		return placeholderSpan, size, err
	case strings.HasPrefix(rest, "--"):
		line, _, _ := strings.Cut(rest, "\n")
		return commentSpan, len(line), nil
	case strings.HasPrefix(rest, "/*"):
		size, err := commentSize(rest)
		return commentSpan, size, err
	case rest[0] == '\'' || rest[0] == '"' || rest[0] == '`':
		size, err := quotedSize(rest, escapesBefore(text[:at]))
		return quotedSpan, size, err
	case rest[0] == '$' && !endsInWord(text[:at]):
		tag := dollarTag.FindString(rest)
		if tag == "" {
			return plainSpan, 0, nil
		}
		size, err := sizeUntil(rest, tag, tag)
		if err != nil {
			return quotedSpan, 0, err
		}
		return quotedSpan, size, checkQuoted(rest[:size])
	}
	return plainSpan, 0, nil
}

// dollarTag opens and closes a literal of Postgres: $$…$$, $body$…$body$.
var dollarTag = regexp.MustCompile(`^\$(?:[\p{L}_][\p{L}\p{N}_]*)?\$`)

func sizeUntil(rest, open, end string) (int, error) {
	size := strings.Index(rest[len(open):], end)
	if size < 0 {
		return 0, fmt.Errorf("%s has no closing %s", excerpt(rest), end)
	}
	return len(open) + size + len(end), nil
}

// commentSize reads a comment as Postgres does, where comments nest.
func commentSize(rest string) (int, error) {
	depth := 0
	for at := 0; at < len(rest); at++ {
		switch {
		case strings.HasPrefix(rest[at:], "/*"):
			depth++
			at++
		case strings.HasPrefix(rest[at:], "*/"):
			depth--
			at++
		}
		if depth == 0 {
			return at + 1, nil
		}
	}
	return 0, fmt.Errorf("%s has no closing */", excerpt(rest))
}

// quotedSize reads a literal or a quoted name. A doubled quote needs no care:
// it reads as two literals side by side. escapes: a backslash keeps the next
// character from closing it.
func quotedSize(rest string, escapes bool) (int, error) {
	for at := 1; at < len(rest); at++ {
		switch {
		case rest[at] == '\\' && escapes:
			at++
		case rest[at] == rest[0]:
			return at + 1, checkQuoted(rest[:at+1])
		}
	}
	return 0, fmt.Errorf("%s has no closing %c", excerpt(rest), rest[0])
}

// escapesBefore reports whether a literal that follows is one of Postgres with
// backslash escapes: E'it\'s'.
func escapesBefore(before string) bool {
	return strings.HasSuffix(strings.ToLower(before), "e") && !endsInWord(before[:len(before)-1])
}

func endsInWord(before string) bool {
	r, _ := utf8.DecodeLastRuneInString(before)
	return r == '_' || r == '$' || unicode.IsLetter(r) || unicode.IsDigit(r)
}

// meant recognises what is meant as a placeholder. Braces alone are not: an
// array of arrays is written '{{1,2},{3,4}}'.
var meant = regexp.MustCompile(`\{\{\s*\.|\{\{[^{}]*\b(?:payload|key|tenant|id)\b[^{},]*\}\}`)

func checkQuoted(quoted string) error {
	if placeholder := meant.FindString(quoted); placeholder != "" {
		return fmt.Errorf("placeholder in %s: remove the quotes; a value is bound, never pasted into a text or a name", excerpt(quoted))
	}
	return nil
}

// excerpt shows the start of a text in a message.
func excerpt(text string) string {
	const most = 60 // runes: enough to find the place
	if short := []rune(text); len(short) > most {
		return string(short[:most]) + "…"
	}
	return text
}
