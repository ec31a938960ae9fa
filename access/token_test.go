package access_test

import (
	"bytes"
	"crypto/sha256"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sekali/sekali/access"
)

func TestNew(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	seen := map[string]bool{}
	for range 200 {
		token, text, err := access.New(access.Draft{Tenant: "acme", Name: "ci", Permissions: access.Permissions{access.All}, Expires: time.Hour}, now)
		if err != nil {
			t.Fatal(err)
		}
		parts := regexp.MustCompile(`^sk_([a-z2-7]{12})_([A-Z2-7]{26})$`).FindStringSubmatch(text)
		if parts == nil || parts[1] != token.ID || seen[token.ID] || seen[parts[2]] {
			t.Fatalf("token %s of id %s", text, token.ID)
		}
		seen[token.ID], seen[parts[2]] = true, true
		if sum := sha256.Sum256([]byte(parts[2])); !bytes.Equal(token.Hash, sum[:]) {
			t.Fatal("what is kept is not the hash of the secret")
		}
		if !token.ExpiresAt.Equal(now.Add(time.Hour)) || !token.CreatedAt.Equal(now) {
			t.Fatalf("%+v", token)
		}
	}
}

func TestNew_Refuses(t *testing.T) {
	t.Parallel()
	good := access.Draft{Tenant: "acme", Permissions: access.Permissions{access.Read}}
	tests := map[string]func(*access.Draft){
		"no tenant":           func(d *access.Draft) { d.Tenant = "" },
		"a tenant with blank": func(d *access.Draft) { d.Tenant = "a b" },
		"a tenant of lines":   func(d *access.Draft) { d.Tenant = "a\nb" },
		"a long tenant":       func(d *access.Draft) { d.Tenant = strings.Repeat("a", 101) },
		"a name of lines":     func(d *access.Draft) { d.Name = "a\nb" },
		"a name of no text":   func(d *access.Draft) { d.Name = "\xff" },
		"no permissions":      func(d *access.Draft) { d.Permissions = nil },
		"unknown permission":  func(d *access.Draft) { d.Permissions = access.SplitPermissions("read,wrte") },
		"expired at once":     func(d *access.Draft) { d.Expires = -time.Second },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := good
			spoil(&d)
			if _, _, err := access.New(d, time.Now()); err == nil {
				t.Errorf("%+v is taken", d)
			}
		})
	}
	if _, _, err := access.New(good, time.Now()); err != nil {
		t.Error(err)
	}
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	p := access.SplitPermissions(" submit, read,,future")
	if p.String() != "submit,read,future" || !p.Allow(access.Submit) || p.Allow(access.Proxy) || p.Allow(access.All) {
		t.Errorf("%v", p)
	}
	if p.Allow(access.Operate) || p.Allow(access.Manage) || p.Allow(access.Work) {
		t.Errorf("%v retries, pauses or works", p)
	}
	if work := access.SplitPermissions("work"); !work.Allow(access.Work) || work.WorkForAll() {
		t.Errorf("%v", work)
	}
	if all := access.SplitPermissions("work_all"); !all.Allow(access.Work) || !all.WorkForAll() || all.Allow(access.Submit) {
		t.Errorf("%v", all)
	}
	// Who may do everything may do so for its own tenant.
	if all := access.SplitPermissions("*"); !all.Allow(access.Work) || all.WorkForAll() {
		t.Errorf("%v works for all tenants", all)
	}
	if all := access.SplitPermissions("*"); !all.Allow(access.Proxy) || !all.Allow("future") {
		t.Errorf("%v", all)
	}
	if none := access.SplitPermissions(""); none.Allow(access.Read) {
		t.Error("no permissions allow something")
	}
}
