package middleware

import (
	"bytes"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/idempotency"
)

const keyHeader = "Idempotency-Key"

// KeyPolicy says which keyed requests a route takes.
type KeyPolicy struct {
	// Methods that take keys; none means POST and PATCH. Requests with another
	// method go on as they are, and are told that their key is ignored.
	Methods     []string
	Required    bool
	Rule        idempotency.KeyRule
	BodyLimit   int64         // bytes as they arrive; 0 means 1 MiB
	BodyTimeout time.Duration // for all of the body; 0 means 10 s
	MediaTypes  []string      // without parameters; none means any
	// Bodiless says that the route takes no body, or {}: the two are one request,
	// whatever media type comes with the first.
	Bodiless bool
}

// Key makes a keyed request of what the client sent and puts it into the
// context, with the body read and given on. It checks, in this order, what can
// be told without and then with the body, then the key, then the JSON; nothing
// has been claimed by then, so no refusal uses up the key. Without a key, where
// none is required, the request goes on with an empty one.
func Key(p KeyPolicy) func(http.Handler) http.Handler {
	bodies := BodyPolicy{Limit: p.BodyLimit, Timeout: p.BodyTimeout, MediaTypes: p.MediaTypes}.withDefaults()
	if len(p.Methods) == 0 {
		p.Methods = []string{http.MethodPost, http.MethodPatch}
	}
	return func(next http.Handler) http.Handler {
		ignored := IgnoreKey()(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !slices.Contains(p.Methods, r.Method) {
				req := idempotency.Request{Tenant: idempotency.TenantOf(r.Context())}
				ignored.ServeHTTP(w, r.WithContext(idempotency.NewContext(r.Context(), req)))
				return
			}
			w.Header().Set("Cache-Control", "no-store")
			w.Header().Add("Vary", "Prefer")
			req, body, err := p.read(w, r, bodies)
			ctx := r.Context()
			if req.Key != "" {
				w.Header().Set(keyHeader, req.Key.Header())
				w.Header().Set("Idempotent-Replayed", "false")
				ctx = idempotency.NewContext(ctx, req)
				api.ReportOf(ctx).Request = req
			}
			if err != nil {
				api.WriteError(w, r.WithContext(ctx), err)
				return
			}
			if req.Key == "" {
				w.Header().Set("Idempotency-Status", "none")
				ctx = idempotency.NewContext(ctx, req)
			}
			next.ServeHTTP(w, withBody(ctx, r, body))
		})
	}
}

// read returns the request as far as it got: with an error the key is set if
// it was parsed.
func (p KeyPolicy) read(w http.ResponseWriter, r *http.Request, bodies BodyPolicy) (idempotency.Request, []byte, error) {
	req := idempotency.Request{Tenant: idempotency.TenantOf(r.Context())}
	mediaType, err := bodies.mediaType(r)
	if err != nil {
		return req, nil, err
	}
	body, err := bodies.read(w, r)
	if err != nil {
		return req, nil, err
	}
	req.Key, err = idempotency.ParseKey(r.Header.Values(keyHeader), p.Rule)
	if err != nil && (p.Required || !errors.Is(err, idempotency.ErrKeyMissing)) {
		return req, nil, err
	}
	if p.Bodiless && isNothing(body) {
		mediaType, body = "", nil
	}
	req.Fingerprint, err = fingerprint(r, mediaType, body)
	return req, body, err
}

// isNothing reports whether a body has nothing to say: it is empty, or {}.
func isNothing(body []byte) bool {
	body = bytes.Trim(body, jsonBlank)
	inside, isObject := bytes.CutPrefix(body, []byte("{"))
	return len(body) == 0 || isObject && string(bytes.Trim(inside, jsonBlank)) == "}"
}

// jsonBlank is what JSON allows around its values.
const jsonBlank = " \t\r\n"

func fingerprint(r *http.Request, mediaType string, body []byte) (idempotency.Fingerprint, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return idempotency.Fingerprint{}, &api.ValidationError{Errors: []api.FieldError{api.BadQuery}}
	}
	if api.IsJSON(mediaType) {
		if body, err = idempotency.Canonical(body); err != nil {
			return idempotency.Fingerprint{}, err
		}
	}
	return idempotency.NewFingerprint(r.Method, r.URL.EscapedPath(), query, mediaType, body), nil
}
