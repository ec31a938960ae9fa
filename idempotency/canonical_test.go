package idempotency_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sekali/sekali/idempotency"
)

func TestContract_Row25_CanonicalJSONEqual(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, a, b string }{
		{"blanks", `{"a":1,"b":[1,2]}`, " { \"a\" : 1 ,\n\t\"b\" : [ 1 , 2 ] }\n"},
		{"order of members", `{"a":1,"b":{"c":2,"d":3}}`, `{"b":{"d":3,"c":2},"a":1}`},
		{"escapes of strings", `{"a":"\u0041\u00e9/"}`, `{"a":"Aé\/"}`},
		{"escapes of names", `{"\u0061":1}`, `{"a":1}`},
		{"surrogate pair", `"\ud83d\ude00"`, `"😀"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if a, b := canonical(t, tt.a), canonical(t, tt.b); a != b {
				t.Errorf("canonical forms differ: %s and %s", a, b)
			}
		})
	}
}

func TestContract_Row25_CanonicalJSONDifferent(t *testing.T) {
	t.Parallel()
	tests := []struct{ name, a, b string }{
		{"fraction", `1`, `1.0`},
		{"exponent", `1`, `1e0`},
		{"case of exponent", `1e5`, `1E5`},
		{"negative zero", `0`, `-0`},
		{"integers above 2^53", `9007199254740992`, `9007199254740993`},
		{"numbers beyond float64", `1e400`, `1e401`},
		{"number and text", `1`, `"1"`},
		{"null and absent", `{"a":null}`, `{}`},
		{"order of elements", `[1,2]`, `[2,1]`},
		{"case of names", `{"a":1}`, `{"A":1}`},
		{"escaped backslash", `"\\u0000"`, `"\u0000"`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if a, b := canonical(t, tt.a), canonical(t, tt.b); a == b {
				t.Errorf("%s and %s have the one canonical form %s", tt.a, tt.b, a)
			}
		})
	}
}

func TestCanonical_Refused(t *testing.T) {
	t.Parallel()
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	tests := []struct{ name, json, reason, pointer string }{
		{"duplicate member", `{"a":1,"a":2}`, idempotency.ReasonDuplicate, "/a"},
		{"duplicate after unescaping", `{"b":{"a":1,"\u0061":2}}`, idempotency.ReasonDuplicate, "/b/a"},
		{"lone high surrogate", `{"s":"\ud800"}`, idempotency.ReasonUTF8, "/s"},
		{"lone low surrogate", `{"s":"\udc00x"}`, idempotency.ReasonUTF8, "/s"},
		{"surrogate in a name", `{"\ud800":1}`, idempotency.ReasonUTF8, ""},
		{"invalid UTF-8", "{\"s\":\"\xff\"}", idempotency.ReasonUTF8, "/s"},
		{"UTF-16", "\xff\xfe{\x00}\x00", idempotency.ReasonJSON, ""},
		{"byte order mark", "\xef\xbb\xbf{}", idempotency.ReasonJSON, ""},
		{"second document", `{} {}`, idempotency.ReasonJSON, ""},
		{"garbage behind", `{}garbage`, idempotency.ReasonJSON, ""},
		{"truncated", `{"a":`, idempotency.ReasonJSON, "/a"},
		{"single quotes", `{'a':1}`, idempotency.ReasonJSON, ""},
		{"empty", ``, idempotency.ReasonJSON, ""},
		{"blank", " \n", idempotency.ReasonJSON, ""},
		{"depth 65", deep(65), idempotency.ReasonDepth, strings.Repeat("/0", 64)},
		{"depth 10001 unclosed", strings.Repeat(`{"a":`, 10001), idempotency.ReasonDepth, strings.Repeat("/a", 64)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := idempotency.Canonical([]byte(tt.json))
			var e *idempotency.JSONError
			if !errors.As(err, &e) {
				t.Fatalf("error is %v, want a *JSONError", err)
			}
			if e.Reason != tt.reason || e.Pointer != tt.pointer {
				t.Errorf("got %s at %q, want %s at %q", e.Reason, e.Pointer, tt.reason, tt.pointer)
			}
		})
	}
	t.Run("depth 64 is allowed, brackets in strings do not count", func(t *testing.T) {
		t.Parallel()
		canonical(t, deep(64))
		canonical(t, `["`+strings.Repeat(`[{\"`, 100)+`"]`)
	})
}

func TestCanonical_DoesNotTouchItsInput(t *testing.T) {
	t.Parallel()
	const text = `{ "b": 1, "a": "\u0041" }`
	input := []byte(text)
	if _, err := idempotency.Canonical(input); err != nil {
		t.Fatal(err)
	}
	if string(input) != text {
		t.Errorf("input became %s", input)
	}
}

// Any order of members, at any level, gives one canonical form.
func TestCanonical_PermutedMembersAreEqual(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	members := []string{`"a":1`, `"b":"x"`, `"\u00e9":[1,{"z":1,"y":2}]`, `"":null`, `"A":{"k":1e3}`, `"😀":true`, `"\uffff":0`}
	object := func() string { return "{" + strings.Join(members, ",") + "}" }
	want := canonical(t, object())
	for range 200 {
		random.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		if got := canonical(t, object()); got != want {
			t.Fatalf("%s became %s, want %s", object(), got, want)
		}
	}
}

// Canonical never panics, and is stable on its own output.
func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{`{"a":[1,2.50,"x"]}`, `{"a":1,"a":1}`, "\"\\", `[[`, `"\ud800"`, `]`, `-`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, json []byte) {
		once, err := idempotency.Canonical(json)
		if err != nil {
			return
		}
		twice, err := idempotency.Canonical(once)
		if err != nil || string(once) != string(twice) {
			t.Errorf("%q became %q, and that %q (%v)", json, once, twice, err)
		}
	})
}

func canonical(t *testing.T, json string) string {
	t.Helper()
	form, err := idempotency.Canonical([]byte(json))
	if err != nil {
		t.Fatalf("canonical form of %s: %v", json, err)
	}
	return string(form)
}
