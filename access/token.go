package access

import (
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// A token's text is sk_ID_SECRET: the prefix lets people and scanners of
// repositories recognise it, the id finds it in the database.
const (
	prefix     = "sk_"
	idSize     = 12 // 60 random bits: two tokens never share one
	secretSize = 26 // 130 random bits
	maxName    = 200
)

var tokenForm = regexp.MustCompile(fmt.Sprintf(`^%s([a-z2-7]{%d})_([A-Z2-7]{%d})$`, prefix, idSize, secretSize))

// tenantForm keeps tenants short and plain: they stand in log lines.
var tenantForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._:@-]{0,99}$`)

// IsTenant reports whether a tenant may have the name.
func IsTenant(name string) bool { return tenantForm.MatchString(name) }

// Draft is what a new token is to be.
type Draft struct {
	Tenant      string
	Name        string
	Permissions Permissions
	Expires     time.Duration // from now; 0: never
}

// New makes a token and its text, which cannot be made again from what is kept.
// The error names what is wrong with the draft.
func New(d Draft, now time.Time) (Token, string, error) {
	if err := d.check(); err != nil {
		return Token{}, "", err
	}
	t := Token{
		ID: strings.ToLower(rand.Text()[:idSize]), Tenant: d.Tenant, Name: d.Name,
		Permissions: d.Permissions, CreatedAt: now,
	}
	if d.Expires > 0 {
		t.ExpiresAt = now.Add(d.Expires)
	}
	secret := rand.Text()[:secretSize]
	t.Hash = hash(secret)
	return t, prefix + t.ID + "_" + secret, nil
}

func (d Draft) check() error {
	if !IsTenant(d.Tenant) {
		return fmt.Errorf("access: tenant %q: takes 1 to 100 letters, digits and . _ : @ -, the first a letter or digit", d.Tenant)
	}
	if !utf8.ValidString(d.Name) || len(d.Name) > maxName || strings.ContainsFunc(d.Name, isControl) {
		return fmt.Errorf("access: name: takes up to %d bytes of text on one line", maxName)
	}
	if d.Expires < 0 {
		return errors.New("access: a token cannot have expired before it is made")
	}
	return d.Permissions.check()
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// split takes the text of a token apart.
func split(text string) (id, secret string, ok bool) {
	parts := tokenForm.FindStringSubmatch(text)
	if parts == nil {
		return "", "", false
	}
	return parts[1], parts[2], true
}

// hash needs no salt and no slowness: nobody can try 2^130 secrets.
func hash(secret string) []byte {
	sum := sha256.Sum256([]byte(secret))
	return sum[:]
}
