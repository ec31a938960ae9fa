package load

import (
	"fmt"
	"strconv"
	"strings"
)

// BodyLength is the length of every submission's body.
const BodyLength = 300

// keyDigits is how many hexadecimal digits of a key count.
const keyDigits = 8

// Post makes submissions of jobs of the type, each with a key of its own that
// begins with the prefix; keys of different connections differ. The body names
// the key as well, and has BodyLength bytes.
func Post(jobType, prefix string) func(connection int) Source {
	return func(connection int) Source {
		first := fmt.Sprintf("%s-%04x-", prefix, connection)
		n := 0
		return posts(jobType, len(first)+keyDigits, func(key []byte) ([]byte, bool) {
			key = append(key[:0], first...)
			key = appendNumber(key, n)
			n++
			return key, true
		})
	}
}

// Key returns the key of the numbered submission of a connection of Post.
func Key(prefix string, connection, n int) string {
	return string(appendNumber(fmt.Appendf(nil, "%s-%04x-", prefix, connection), n))
}

// Repost makes submissions that have been made before, with the given keys of
// one length: each connection goes through its own part of them, again and again
// if cycle is true, else once.
func Repost(jobType string, keys []string, connections int, cycle bool) func(connection int) Source {
	return func(connection int) Source {
		at := connection
		return posts(jobType, len(keys[0]), func(key []byte) ([]byte, bool) {
			if at >= len(keys) {
				if !cycle {
					return nil, false
				}
				at = connection % len(keys)
			}
			key = append(key[:0], keys[at]...)
			at += connections
			return key, true
		})
	}
}

// posts makes submissions with keys of one length, in the same memory.
func posts(jobType string, keyLength int, next func(key []byte) ([]byte, bool)) Source {
	blank := strings.Repeat("0", keyLength)
	text := fmt.Appendf(nil, "POST /jobs HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: %d\r\nIdempotency-Key: ", BodyLength)
	inHead := len(text)
	text = append(append(text, blank...), "\r\n\r\n"...)
	body := Body(jobType, blank)
	inBody := len(text) + strings.Index(body, blank)
	text = append(text, body...)
	key := make([]byte, 0, keyLength)
	return func() (Request, bool) {
		var ok bool
		if key, ok = next(key); !ok {
			return nil, false
		}
		copy(text[inHead:inHead+keyLength], key)
		copy(text[inBody:inBody+keyLength], key)
		return text, true
	}
}

// Body returns the body of the submission with the key.
func Body(jobType, key string) string {
	const note = `","total":4200,"note":"`
	start := `{"type":"` + jobType + `","payload":{"order_id":"` + key + note
	return start + strings.Repeat("x", BodyLength-len(start)-len(`"}}`)) + `"}}`
}

// Get makes the same request for the path, again and again, with these lines of
// the header besides.
func Get(path string, header ...string) Source {
	head := "GET " + path + " HTTP/1.1\r\nHost: bench\r\n"
	for _, line := range header {
		head += line + "\r\n"
	}
	request := Request(head + "\r\n")
	return func() (Request, bool) { return request, true }
}

func appendNumber(key []byte, n int) []byte {
	digits := strconv.AppendInt(make([]byte, 0, keyDigits), int64(n), 16)
	for range keyDigits - len(digits) {
		key = append(key, '0')
	}
	return append(key, digits...)
}

// One returns one submission.
func One(jobType, key string) Request {
	request, _ := posts(jobType, len(key), func([]byte) ([]byte, bool) { return []byte(key), true })()
	return request
}
