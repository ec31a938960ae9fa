package client_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sekali/sekali/client"
	"github.com/sekali/sekali/idempotency"
)

func TestKey_ReadsLikeTheOperation(t *testing.T) {
	t.Parallel()
	for want, parts := range map[string][]string{
		"invoice:order-42:2026-03":          {"invoice", "order-42", "2026-03"},
		"invoice":                           {"invoice"},
		"invoice:":                          {"invoice", ""},
		"a%3Ab:c%25d":                       {"a:b", "c%d"},
		"mail:ann@x.org:%C3%A9%20%00%22%5C": {"mail", "ann@x.org", "é \x00\"\\"},
	} {
		if got := client.Key(parts[0], parts[1:]...); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	long := client.Key("invoice", strings.Repeat("x", 300))
	if len(long) > 255 || !strings.HasPrefix(long, "invoice:xxx") || long == client.Key("invoice", strings.Repeat("x", 301)) {
		t.Errorf("%s", long)
	}
}

// Whatever it is made of, a key is one that the gateway takes, and another operation
// has another one.
func TestKey_IsValidAndUnambiguous(t *testing.T) {
	t.Parallel()
	text := rapid.OneOf(rapid.String(), rapid.StringOf(rapid.RuneFrom([]rune(":%#./\"\\ a\x00\n"))), rapid.StringN(200, 300, -1), rapid.SampledFrom([]string{"", ".", "..", ":", "%", "#"}))
	parts := rapid.SliceOfN(text, 1, 4)
	rapid.Check(t, func(t *rapid.T) {
		a, b := parts.Draw(t, "a"), parts.Draw(t, "b")
		first, second := client.Key(a[0], a[1:]...), client.Key(b[0], b[1:]...)
		if (first == second) != (fmt.Sprintf("%q", a) == fmt.Sprintf("%q", b)) {
			t.Fatalf("%q and %q have the keys %q and %q", a, b, first, second)
		}
		if !idempotency.Key(first).Valid() || client.Key(a[0], a[1:]...) != first {
			t.Fatalf("%q is no key", first)
		}
	})
}

func TestNewKey(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	a, b := client.NewKey(), client.NewKey()
	if !form.MatchString(a) || !form.MatchString(b) || a == b {
		t.Errorf("%s %s", a, b)
	}
}
