package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// What an error says of the value that was sent: its kind, and a short number
// itself. Strings, and what stands in objects and arrays, may be secret and are
// never shown.

// maxNumber is the length up to which a number is shown: all of 64 bits are.
const maxNumber = 20

// notThatString is said of a string whose text is at fault, not its kind.
const notThatString = ", not another string"

// not says what stands where something else must be; nothing of an absent value.
func not(value json.RawMessage) string {
	value = bytes.TrimSpace(value)
	if len(value) == 0 {
		return ""
	}
	return ", not " + kindOf(value)
}

func kindOf(value json.RawMessage) string {
	switch value[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	if len(value) > maxNumber {
		return "a longer number"
	}
	return string(value)
}

func notOfLength(text string) string {
	if text == "" {
		return ", not an empty one"
	}
	return fmt.Sprintf(", not one of %d", utf8.RuneCountInString(text))
}

// valueOf is the text of the member's value; nil if it is absent.
func valueOf(members []member, name string) json.RawMessage {
	for _, m := range members {
		if m.name == name {
			return m.value
		}
	}
	return nil
}
