package idempotency_test

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sekali/sekali/idempotency"
)

// value is a JSON value that can be written in many ways.
type value struct {
	kind    string // null, true, number, string, array, object
	text    string
	items   []value
	members []string // names of an object, beside items
}

// values draws JSON values of a small depth.
func values(depth int) *rapid.Generator[value] {
	return rapid.Custom(func(t *rapid.T) value {
		kinds := []string{"null", "true", "number", "string"}
		if depth > 0 {
			kinds = append(kinds, "array", "object", "object")
		}
		v := value{kind: rapid.SampledFrom(kinds).Draw(t, "kind")}
		switch v.kind {
		case "number":
			v.text = rapid.StringMatching(`-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,4})?([eE][+-]?[0-9]{1,3})?`).Draw(t, "number")
		case "string":
			v.text = rapid.StringOf(rapid.Rune()).Filter(validText).Draw(t, "string")
		case "array":
			v.items = rapid.SliceOfN(values(depth-1), 0, 3).Draw(t, "items")
		case "object":
			v.members = rapid.SliceOfNDistinct(rapid.StringMatching(`[a-zé€]{0,3}`), 0, 3, rapid.ID[string]).Draw(t, "members")
			v.items = rapid.SliceOfN(values(depth-1), len(v.members), len(v.members)).Draw(t, "values")
		}
		return v
	})
}

func validText(s string) bool { return strings.ToValidUTF8(s, "") == s }

// write renders the value with random order, space and escapes.
func (v value) write(random *rand.Rand) string {
	space := func() string { return strings.Repeat(" \n\t"[:random.IntN(4)], random.IntN(2)) }
	switch v.kind {
	case "null", "true":
		return v.kind
	case "number":
		return v.text
	case "string":
		return quote(v.text, random)
	case "array":
		var items []string
		for _, item := range v.items {
			items = append(items, space()+item.write(random)+space())
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	members := make([]string, len(v.members))
	for to, from := range random.Perm(len(v.members)) {
		members[to] = space() + quote(v.members[from], random) + space() + ":" + space() + v.items[from].write(random) + space()
	}
	return "{" + strings.Join(members, ",") + "}"
}

// quote writes a string with some characters escaped that need not be.
func quote(s string, random *rand.Rand) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		if r < 0x10000 && (r < 0x20 || r == '"' || r == '\\' || random.IntN(3) == 0) {
			fmt.Fprintf(&b, `\u%04x`, r)
			continue
		}
		b.WriteRune(r)
	}
	return b.String() + `"`
}

func fingerprintOf(t *rapid.T, json string) idempotency.Fingerprint {
	canonical, err := idempotency.Canonical([]byte(json))
	if err != nil {
		t.Fatalf("%q: %v", json, err)
	}
	return idempotency.NewFingerprint("POST", "/jobs", url.Values{}, "application/json", canonical)
}

// Equal meaning, equal fingerprint: however the same value is written (C15).
func TestFingerprint_EqualMeaningIsEqual(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		v := values(3).Draw(t, "value")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		one, other := v.write(random), v.write(random)
		if fingerprintOf(t, one) != fingerprintOf(t, other) {
			t.Fatalf("differ:\n%s\n%s", one, other)
		}
	})
}

// Different meaning, different fingerprint: numbers digit by digit, order in
// arrays, kinds, names (C13-C15, BR-13).
func TestFingerprint_DifferentMeaningDiffers(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		a, b := values(3).Draw(t, "a"), values(3).Draw(t, "b")
		same := rand.New(rand.NewPCG(1, 1))
		ordered := func(v value) string { return sorted(v).write(rand.New(rand.NewPCG(1, 1))) }
		if ordered(a) == ordered(b) {
			return // they mean the same
		}
		if one, other := a.write(same), b.write(same); fingerprintOf(t, one) == fingerprintOf(t, other) {
			t.Fatalf("equal:\n%s\n%s", one, other)
		}
	})
}

// sorted orders all members by name, so that equal values are written equally
// under one seed.
func sorted(v value) value {
	out := v
	out.items = make([]value, len(v.items))
	for i, item := range v.items {
		out.items[i] = sorted(item)
	}
	out.members = append([]string(nil), v.members...)
	for i := range out.members {
		for j := i + 1; j < len(out.members); j++ {
			if out.members[j] < out.members[i] {
				out.members[i], out.members[j] = out.members[j], out.members[i]
				out.items[i], out.items[j] = out.items[j], out.items[i]
			}
		}
	}
	return out
}

// Different targets and bodies never share a fingerprint by where one value
// ends and the next begins (C14).
func TestFingerprint_FramesItsParts(t *testing.T) {
	t.Parallel()
	text := rapid.StringMatching(`[ab|&=]{0,4}`)
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) [5]string {
			var parts [5]string
			for i := range parts {
				parts[i] = text.Draw(t, name)
			}
			return parts
		}
		a, b := draw("a"), draw("b")
		of := func(p [5]string) idempotency.Fingerprint {
			return idempotency.NewFingerprint(p[0], p[1], url.Values{p[2]: {p[3]}}, "text/plain", []byte(p[4]))
		}
		if (of(a) == of(b)) != (a == b) {
			t.Fatalf("%q and %q", a, b)
		}
	})
}

// FuzzFingerprint: two requests share a fingerprint exactly if they are the same.
func FuzzFingerprint(f *testing.F) {
	f.Add("POST", "/jobs", "a=1", "application/json", "{}", "POST", "/jobs", "a=1", "application/json", "{}")
	f.Add("POST", "/a", "", "b", "c", "POST", "/", "a", "b", "c")
	f.Add("PO", "ST/", "", "", "", "POST", "/", "", "", "")
	f.Fuzz(func(t *testing.T, m1, p1, q1, t1, b1, m2, p2, q2, t2, b2 string) {
		one := idempotency.NewFingerprint(m1, p1, url.Values{"q": {q1}}, t1, []byte(b1))
		other := idempotency.NewFingerprint(m2, p2, url.Values{"q": {q2}}, t2, []byte(b2))
		target := m1 == m2 && p1 == p2 && q1 == q2
		body := t1 == t2 && b1 == b2
		want := ""
		switch {
		case !target:
			want = idempotency.PartTarget
		case !body:
			want = idempotency.PartBody
		}
		if got := one.Differs(other); got != want {
			t.Errorf("differs in %q, want %q", got, want)
		}
		if stored, err := idempotency.ParseFingerprint(one.Bytes()); err != nil || stored != one {
			t.Errorf("stored and read: %v", err)
		}
	})
}
