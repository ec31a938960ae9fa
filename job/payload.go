package job

import "fmt"

// PayloadError reports a payload that does not fit what its type asks of
// payloads.
type PayloadError struct {
	Violations []Violation // at least one; in the order of their pointers
}

// Violation is one thing that is wrong with a payload. All of it is public: it
// names members, and shows no text that stands in the payload.
type Violation struct {
	Pointer string // RFC 6901, into the payload; "" is the payload itself
	Rule    string // the keyword of the schema, in snake_case
	Detail  string // what must be there, and what is there instead
}

func (e *PayloadError) Error() string {
	first := e.Violations[0]
	return fmt.Sprintf("job: payload has %d violation(s), at first at %q: %s", len(e.Violations), first.Pointer, first.Rule)
}

// payload is the draft's payload as it is stored: an absent one is null.
func (d Draft) payload() []byte {
	if len(d.Payload) == 0 {
		return []byte("null")
	}
	return d.Payload
}

// settings are those of the draft's type. Errors say why no job of that type is
// made of the draft: ErrUnknownType, *CallbackError, *PayloadError.
func (s *Jobs) settings(d Draft) (Settings, error) {
	settings, known := s.Types[d.Type]
	if !known || d.Type == CallbackType {
		return Settings{}, ErrUnknownType
	}
	if err := s.checkCallback(d.CallbackURL); err != nil {
		return Settings{}, err
	}
	if settings.CheckPayload == nil {
		return settings, nil
	}
	return settings, settings.CheckPayload(d.payload())
}
