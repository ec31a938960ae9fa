package executor

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"
)

// ownHeaders are set by the executor or by HTTP itself; so is every name that
// starts with one of ownPrefixes.
var (
	ownHeaders = []string{
		"Accept-Encoding", "Connection", "Content-Encoding", "Content-Length", "Content-Type", "Expect",
		"Host", "Idempotency-Key", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	}
	ownPrefixes = []string{"Sekali-", "Webhook-"}
)

// parseTarget reads a URL of the receiver; name is what messages call it. Errors
// never show it whole: it may hold a password.
func parseTarget(name, text string) (*url.URL, error) {
	u, err := url.Parse(text)
	if urlErr := (*url.Error)(nil); errors.As(err, &urlErr) {
		return nil, fmt.Errorf("executor: %s: %w", name, urlErr.Err)
	}
	if err != nil {
		return nil, fmt.Errorf("executor: %s: %w", name, err)
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" {
		return nil, fmt.Errorf("executor: %s %q: want http://host/path or https://host/path", name, u.Redacted())
	}
	return u, nil
}

func parseHeaders(configured map[string]string) (http.Header, error) {
	header := http.Header{"User-Agent": {"sekali"}}
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(configured)) {
		if err := checkHeader(name, configured[name]); err != nil {
			problems = append(problems, err)
			continue
		}
		header.Set(name, configured[name])
	}
	return header, errors.Join(problems...)
}

// checkHeader does not show the value: it may be a credential.
func checkHeader(name, value string) error {
	canonical := http.CanonicalHeaderKey(name)
	hasOwnPrefix := func(prefix string) bool { return strings.HasPrefix(canonical, prefix) }
	switch {
	case !legalName(name):
		return fmt.Errorf("executor: http header %q: not a header name", name)
	case slices.Contains(ownHeaders, canonical) || slices.ContainsFunc(ownPrefixes, hasOwnPrefix):
		return fmt.Errorf("executor: http header %q: set by the executor itself", name)
	case !legalValue(value):
		return fmt.Errorf("executor: http header %q: its value may hold printable ASCII only", name)
	}
	return nil
}

// legalName reports whether name is a token (RFC 9110, section 5.6.2).
func legalName(name string) bool {
	illegal := func(r rune) bool {
		return r <= ' ' || r >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	}
	return name != "" && !strings.ContainsFunc(name, illegal)
}

func legalValue(value string) bool {
	return !strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r >= 0x7f })
}

// parseSecret returns nil for no secret. Its errors do not show the secret.
func parseSecret(secret string) (*standardwebhooks.Webhook, error) {
	if secret == "" {
		return nil, nil
	}
	if strings.TrimPrefix(secret, "whsec_") == "" {
		return nil, errors.New("executor: http secret: nothing follows whsec_")
	}
	webhook, err := standardwebhooks.NewWebhook(secret)
	if err != nil {
		return nil, fmt.Errorf("executor: http secret: want whsec_ and base64: %w", err)
	}
	return webhook, nil
}
