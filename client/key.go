package client

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// maxKey is how many bytes a gateway takes in a key.
const maxKey = 255

// keyPrefix is how much of a hashed key stays readable: enough to know the
// operation by.
const keyPrefix = 128

// Key returns the idempotency key of a business operation: the same operation and
// parts always give the same key, and others another one.
//
//	client.Key("invoice", "order-42", "2026-03") == "invoice:order-42:2026-03"
//
// Name the operation, not only the object that it is about: the invoice and the
// refund of one order are two operations. Any text may be a part: what would be
// ambiguous or not printable in a key is percent-encoded, and a key that would be
// longer than 255 bytes ends in a hash.
func Key(operation string, parts ...string) string {
	var b strings.Builder
	escapeKeyPart(&b, operation)
	for _, part := range parts {
		b.WriteByte(':')
		escapeKeyPart(&b, part)
	}
	key := b.String()
	if len(key) <= maxKey && key != "" && key != "." && key != ".." {
		return key
	}
	// No part has a # of its own: it would be %23.
	sum := sha256.Sum256([]byte(key))
	return key[:min(len(key), keyPrefix)] + "#" + hex.EncodeToString(sum[:])
}

// escapeKeyPart percent-encodes what is not plain text in logs, shells and paths.
func escapeKeyPart(b *strings.Builder, part string) {
	const plain = "-._~/@+="
	for i := range len(part) {
		c := part[i]
		alphanumeric := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if alphanumeric || strings.IndexByte(plain, c) >= 0 {
			b.WriteByte(c)
			continue
		}
		fmt.Fprintf(b, "%%%02X", c)
	}
}

// NewKey returns a random key, for an operation that has no name of its own. It
// protects as long as the program remembers it; a key made by Key from what the
// operation is about survives a crash of the program as well.
func NewKey() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]) // a random UUID
}

var keyEscapes = strings.NewReplacer(`\`, `\\`, `"`, `\"`)

// quoteKey is the form of a key in its header that holds any key.
func quoteKey(key string) string { return `"` + keyEscapes.Replace(key) + `"` }

// unquoteKey is the key that quoteKey has written.
func unquoteKey(header string) string {
	text, ok := strings.CutPrefix(header, `"`)
	if !ok {
		return header
	}
	var b strings.Builder
	for i := 0; i < len(text) && text[i] != '"'; i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
