package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash"
	"net/url"
	"slices"
)

// fingerprintVersion names the algorithm below. A stored fingerprint of an
// older version is compared by recomputing with that version (contract row 61).
const fingerprintVersion = 1

// The parts of a request that a fingerprint tells apart.
const (
	PartTarget = "target" // method, path and query
	PartBody   = "body"   // media type and body
)

const (
	targetSize = 16
	bodySize   = sha256.Size
	// FingerprintSize is the length of a stored fingerprint in bytes.
	FingerprintSize = 1 + targetSize + bodySize
)

// Fingerprint identifies what a request asks for. It has two parts, so that a
// mismatch can name which one differs without keeping the request itself.
type Fingerprint struct {
	Version byte
	Target  [targetSize]byte
	Body    [bodySize]byte
}

// NewFingerprint hashes a request. path is the escaped path, mediaType is
// without parameters, body is in canonical form where it is JSON (see
// [Canonical]) and raw otherwise. The order of query parameters with distinct
// names does not matter; the order of equal names does.
func NewFingerprint(method, path string, query url.Values, mediaType string, body []byte) Fingerprint {
	target := framed{sha256.New()}
	target.add([]byte(method))
	target.add([]byte(path))
	names := make([]string, 0, len(query))
	for name := range query {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range query[name] {
			target.add([]byte(name))
			target.add([]byte(value))
		}
	}
	content := framed{sha256.New()}
	content.add([]byte(mediaType))
	content.add(body)

	fp := Fingerprint{Version: fingerprintVersion}
	copy(fp.Target[:], target.Sum(nil))
	copy(fp.Body[:], content.Sum(nil))
	return fp
}

// framed hashes values with their lengths in front, so that no two different
// lists of values feed the hash the same bytes (BR-13, C14).
type framed struct{ hash.Hash }

func (f framed) add(value []byte) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(value)))
	f.Write(length[:])
	f.Write(value)
}

// Differs names the part in which the two fingerprints differ, or "" if they
// are equal.
func (f Fingerprint) Differs(other Fingerprint) string {
	switch {
	case f.Target != other.Target:
		return PartTarget
	case f != other:
		return PartBody
	}
	return ""
}

// Bytes returns the stored form.
func (f Fingerprint) Bytes() []byte {
	b := make([]byte, 0, FingerprintSize)
	b = append(b, f.Version)
	b = append(b, f.Target[:]...)
	return append(b, f.Body[:]...)
}

// ParseFingerprint reads the stored form. Bytes of another length or version
// are an ErrCorrupt: a record that cannot be compared is never served.
func ParseFingerprint(b []byte) (Fingerprint, error) {
	if len(b) != FingerprintSize || b[0] != fingerprintVersion {
		return Fingerprint{}, fmt.Errorf("%w: stored fingerprint of %d bytes is damaged or of an unknown version", ErrCorrupt, len(b))
	}
	f := Fingerprint{Version: b[0]}
	copy(f.Target[:], b[1:])
	copy(f.Body[:], b[1+targetSize:])
	return f, nil
}
