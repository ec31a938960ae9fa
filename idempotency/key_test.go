package idempotency_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/sekali/sekali/idempotency"
)

func TestParseKey_Accepted(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, line, want string }{
		{"Contract_Row4 bare", `abc`, `abc`},
		{"Contract_Row4 semicolon in a bare key", `a;b=1`, `a;b=1`},
		{"Contract_Row5 quoted", `"abc"`, `abc`},
		{"Contract_Row5 escapes", `"a\"b\\c"`, `a"b\c`},
		{"Contract_Row6 parameter", `"abc";v=1`, `abc`},
		{"Contract_Row6 parameters of every kind", `"abc"; v ;w="a,\"b";x=?1;*y=:YQ==:`, `abc`},
		{"Contract_Row9 comma in quotes", `"a,b"`, `a,b`},
		{"Contract_Row10 of 255 bytes", strings.Repeat("k", 255), strings.Repeat("k", 255)},
		{"Contract_Row12 space in quotes", `"a b"`, `a b`},
		{"Contract_Row14 case", `AbC`, `AbC`},
		{"blanks around", "\t abc ", `abc`},
		{"slash and percent", `a/b%2F`, `a/b%2F`},
		{"three dots", `...`, `...`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := idempotency.ParseKey([]string{tt.line}, idempotency.KeyRule{})
			if err != nil || string(got) != tt.want {
				t.Errorf("ParseKey(%q) = %q, %v; want %q", tt.line, got, err, tt.want)
			}
			if !got.Valid() {
				t.Errorf("key %q is not Valid", got)
			}
		})
	}
}

func TestParseKey_Refused(t *testing.T) {
	t.Parallel()
	uuid := idempotency.KeyRule{Pattern: regexp.MustCompile(`^[0-9a-f]{8}$`)}
	short := idempotency.KeyRule{MaxLength: 5}
	tests := []struct {
		name   string
		lines  []string
		rule   idempotency.KeyRule
		reason string
		limit  int
	}{
		{"Contract_Row3 empty", []string{""}, idempotency.KeyRule{}, idempotency.ReasonEmpty, 0},
		{"Contract_Row3 blanks", []string{" \t "}, idempotency.KeyRule{}, idempotency.ReasonEmpty, 0},
		{"Contract_Row3 empty string", []string{`""`}, idempotency.KeyRule{}, idempotency.ReasonEmpty, 0},
		{"Contract_Row3 blank string", []string{`"  "`}, idempotency.KeyRule{}, idempotency.ReasonEmpty, 0},
		{"Contract_Row4 quote in a bare key", []string{`ab"c`}, idempotency.KeyRule{}, idempotency.ReasonSyntax, 0},
		{"Contract_Row4 backslash in a bare key", []string{`ab\c`}, idempotency.KeyRule{}, idempotency.ReasonSyntax, 0},
		{"Contract_Row7 unclosed", []string{`"abc`}, idempotency.KeyRule{}, idempotency.ReasonSyntax, 0},
		{"Contract_Row7 bad escape", []string{`"a\n"`}, idempotency.KeyRule{}, idempotency.ReasonSyntax, 0},
		{"Contract_Row7 escape at the end", []string{`"a\`}, idempotency.KeyRule{}, idempotency.ReasonSyntax, 0},
		{"Contract_Row7 trailing bytes", []string{`"abc"d`}, idempotency.KeyRule{}, idempotency.ReasonSyntax, 0},
		{"Contract_Row7 broken parameter", []string{`"abc";=1`}, idempotency.KeyRule{}, idempotency.ReasonSyntax, 0},
		{"Contract_Row7 parameter without value", []string{`"abc";v=`}, idempotency.KeyRule{}, idempotency.ReasonSyntax, 0},
		{"Contract_Row8 two lines", []string{"a", "b"}, idempotency.KeyRule{}, idempotency.ReasonMultiple, 0},
		{"Contract_Row8 two equal lines", []string{"a", "a"}, idempotency.KeyRule{}, idempotency.ReasonMultiple, 0},
		{"Contract_Row9 comma", []string{"a, b"}, idempotency.KeyRule{}, idempotency.ReasonMultiple, 0},
		{"Contract_Row9 two strings", []string{`"a", "b"`}, idempotency.KeyRule{}, idempotency.ReasonMultiple, 0},
		{"Contract_Row9 two strings with parameters", []string{`"a";v=1,"b"`}, idempotency.KeyRule{}, idempotency.ReasonMultiple, 0},
		{"Contract_Row10 of 256 bytes", []string{strings.Repeat("k", 256)}, idempotency.KeyRule{}, idempotency.ReasonLength, 255},
		{"Contract_Row10 of 256 bytes, quoted", []string{`"` + strings.Repeat(`\"`, 256) + `"`}, idempotency.KeyRule{}, idempotency.ReasonLength, 255},
		{"Contract_Row10 configured limit", []string{"123456"}, short, idempotency.ReasonLength, 5},
		{"Contract_Row12 space in a bare key", []string{"a b"}, idempotency.KeyRule{}, idempotency.ReasonCharset, 0},
		{"Contract_Row12 tab", []string{"a\tb"}, idempotency.KeyRule{}, idempotency.ReasonCharset, 0},
		{"Contract_Row12 byte 0xff", []string{"a\xff"}, idempotency.KeyRule{}, idempotency.ReasonCharset, 0},
		{"Contract_Row12 tab in quotes", []string{"\"a\tb\""}, idempotency.KeyRule{}, idempotency.ReasonCharset, 0},
		{"Contract_Row12 umlaut in quotes", []string{`"ü"`}, idempotency.KeyRule{}, idempotency.ReasonCharset, 0},
		{"Contract_Row13 pattern", []string{"ABCDEF01"}, uuid, idempotency.ReasonFormat, 0},
		{"Contract_Row94 one dot", []string{"."}, idempotency.KeyRule{}, idempotency.ReasonFormat, 0},
		{"Contract_Row94 two dots", []string{`".."`}, idempotency.KeyRule{}, idempotency.ReasonFormat, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			key, err := idempotency.ParseKey(tt.lines, tt.rule)
			var e *idempotency.KeyError
			if !errors.As(err, &e) {
				t.Fatalf("ParseKey(%q) = %q, %v; want a *KeyError", tt.lines, key, err)
			}
			if e.Reason != tt.reason || e.Limit != tt.limit {
				t.Errorf("got reason %s, limit %d; want %s, %d", e.Reason, e.Limit, tt.reason, tt.limit)
			}
		})
	}
}

func TestContract_Row1_MissingKey(t *testing.T) {
	t.Parallel()
	if _, err := idempotency.ParseKey(nil, idempotency.KeyRule{}); !errors.Is(err, idempotency.ErrKeyMissing) {
		t.Errorf("error is %v, want ErrKeyMissing", err)
	}
}

func TestKeyPattern_MatchesTheWholeKey(t *testing.T) {
	t.Parallel()
	pattern, err := idempotency.KeyPattern(`a|ab`)
	if err != nil {
		t.Fatal(err)
	}
	rule := idempotency.KeyRule{Pattern: pattern}
	if _, err := idempotency.ParseKey([]string{"ab"}, rule); err != nil {
		t.Errorf("ab: %v", err)
	}
	if _, err := idempotency.ParseKey([]string{"xa"}, rule); err == nil {
		t.Error("xa is accepted")
	}
	if _, err := idempotency.KeyPattern(`(`); err == nil {
		t.Error("broken expression is accepted")
	}
}

func TestContract_Row91_KeysThatCannotExist(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", " ", "\x00", "a\xff", "ü", ".", "..", strings.Repeat("k", 256)} {
		if idempotency.Key(text).Valid() {
			t.Errorf("%q is Valid", text)
		}
	}
}

// ParseKey never panics, and every key that it gives comes back from its header.
func FuzzParseKey(f *testing.F) {
	for _, seed := range []string{`abc`, `"abc"`, `"a\"b\\"`, `"a";v=1`, `"a`, `"a\`, `a,b`, ``, `"";`, `"x";a="`, "\xff", `"x";;`} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		key, err := idempotency.ParseKey([]string{line}, idempotency.KeyRule{})
		if err != nil {
			return
		}
		again, err := idempotency.ParseKey([]string{key.Header()}, idempotency.KeyRule{})
		if err != nil || again != key || !key.Valid() {
			t.Errorf("%q gave %q, whose header gave %q, %v", line, key, again, err)
		}
	})
}
