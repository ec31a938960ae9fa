package job

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"time"

	"github.com/sekali/sekali/idempotency"
)

// Slots is how many slots the key space has. It is fixed for ever: the number
// stands in every stored row and in every id.
const Slots = 256

// Slot routes a row to a shard of a distributed database. It is computed here
// and stored, first column of every key (docs/adr/0002).
type Slot int16

// KeySlot is the slot of the idempotency record of (tenant, key).
func KeySlot(tenant idempotency.Tenant, key idempotency.Key) Slot {
	return slotOf(string(tenant), string(key))
}

// slotFor is the slot of a job: of its business key where it has one, so that
// "one unfinished job of a business key" is a constraint within one shard,
// else of its idempotency key.
func slotFor(tenant idempotency.Tenant, key idempotency.Key, t Type, businessKey string) Slot {
	if businessKey == "" {
		return KeySlot(tenant, key)
	}
	return slotOf(string(tenant), string(t), businessKey)
}

func slotOf(parts ...string) Slot {
	text := make([]byte, 0, 256) // most names fit, and stay on the stack
	for i, part := range parts {
		if i > 0 {
			text = append(text, 0)
		}
		text = append(text, part...)
	}
	sum := sha256.Sum256(text)
	return Slot(binary.BigEndian.Uint32(sum[:]) % Slots)
}

// ID names a job over all tenants and for ever: a UUIDv7 (RFC 9562) in its
// text form, whose last byte is the job's slot, so that an id alone can be
// routed.
type ID string

// NewID makes an id from the time, the slot and fresh randomness.
func NewID(now time.Time, slot Slot) ID {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(now.UnixMilli())<<16)
	rand.Read(b[6:15]) // never fails: crypto/rand ends the program instead
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	b[15] = byte(slot)
	text := hex.EncodeToString(b[:])
	return ID(text[:8] + "-" + text[8:12] + "-" + text[12:16] + "-" + text[16:20] + "-" + text[20:])
}

// ParseID reads the text form of a UUID in lower case.
func ParseID(text string) (ID, error) {
	const form = "00000000-0000-0000-0000-000000000000"
	if len(text) != len(form) {
		return "", errBadID
	}
	for i := range text {
		switch c := text[i]; {
		case form[i] == '-':
			if c != '-' {
				return "", errBadID
			}
		case (c < '0' || c > '9') && (c < 'a' || c > 'f'):
			return "", errBadID
		}
	}
	return ID(text), nil
}

var errBadID = errors.New("job: id is not a lower-case UUID")

// Slot returns the slot that the id carries.
func (id ID) Slot() Slot {
	b, err := hex.DecodeString(string(id[max(0, len(id)-2):]))
	if err != nil || len(b) == 0 {
		return 0
	}
	return Slot(b[0])
}
