package executor_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// TestFailure_BR72_URLs: what a request may name.
func TestFailure_BR72_URLs(t *testing.T) {
	t.Parallel()
	e := newCallback(t, executor.CallbackConfig{Allow: []string{
		"https://shop.example/hooks/", "https://shop.example/exact", "http://shop.example:8080", "pay.example", "pay.example:8443", "10.0.0.1", "[fd00::1]:81",
		"https://Case.example/A",
	}})
	for _, allowed := range []string{
		"https://shop.example/hooks/", "https://shop.example/hooks/a", "https://shop.example/hooks/a/b?x=1&y=%20", "https://shop.example:443/hooks/a",
		"https://shop.example/exact", "https://shop.example/exact/more", "https://shop.example/exact?x", "http://shop.example:8080", "http://shop.example:8080/any",
		"https://pay.example/any", "http://pay.example", "http://pay.example:80/", "https://pay.example:8443/x", "http://pay.example:8443/x",
		"http://10.0.0.1/x", "http://[fd00::1]:81/x", "HTTPS://shop.EXAMPLE/hooks/a", "https://case.example/A/b", "https://shop.example/hooks/..a/...",
	} {
		if err := e.Check(allowed); err != nil {
			t.Errorf("%s: %v", allowed, err)
		}
	}
	for _, refused := range []string{
		// of another scheme, host, port or path
		"http://shop.example/hooks/a", "https://shop.example/hooks", "https://shop.example/hooksx", "https://shop.example/exactly", "https://shop.example/",
		"https://shop.example:444/hooks/a", "https://shop.example.evil.example/hooks/a", "https://evil.example/hooks/a", "https://evilshop.example/hooks/",
		"https://pay.example:443x/", "https://pay.example:8080/", "https://shop.example./hooks/a", "https://case.example/a", "ftp://pay.example/",
		"http://10.0.0.2/", "http://0x0a000001/", "http://167772161/", "http://[fd00::1]/", "http://[fd00::1%25eth0]:81/", "http://[::ffff:10.0.0.1]/",
		// read in two ways
		"https://pay.example@evil.example/", "https://evil.example@pay.example/", "http://ok@10.0.0.1/", "https://pay.example:pw@evil.example/",
		`https://pay.example\@evil.example/`, `https://evil.example\.pay.example/`, "https://pay.example#@evil.example/", "https://pay.example/#x",
		"https://shop.example/hooks/../admin", "https://shop.example/hooks/%2e%2e/admin", "https://shop.example/hooks/.%2E/admin", "https://shop.example/hooks/./a",
		"https://shop.example/hooks/..;/admin", "https://shop.example/hooks/..;x=1/admin", "https://shop.example/hooks/..%2fadmin", "https://shop.example/hooks/..%5cadmin",
		"https://shop.example/hooks/%252e%252e/admin", `https://shop.example/hooks\..\admin`, "https://shop.example/hooks/..", "https://shop.example/hooks%2fa",
		"https://shop.example/hooks/%00", "https://shop.example/hooks/%0d%0aHost:x", "https://shop.example/hooks/\r\nX: y", "https://shop.example/hooks/a b",
		"https://shop.example/hooks/é", "https://shop.example/hooks/\u2044", "//pay.example/", "https:pay.example", "https:///pay.example/", "https://", "pay.example", "",
		"https://pay.example:/", "https://pay.example:0x50/", "javascript:alert(1)", "https://ｐay.example/", "https://pay.example%2eevil.example/",
		"https://pay.example/" + strings.Repeat("a", 2048),
	} {
		err := e.Check(refused)
		var why *job.CallbackError
		if !errors.As(err, &why) || !strings.HasPrefix(why.Detail, "must ") || strings.Contains(why.Detail, "shop.example/exact") {
			t.Errorf("%.80q: %v", refused, err)
		}
	}
	none := newCallback(t, executor.CallbackConfig{Trusted: []string{"http://shop.example/"}})
	if err := none.Check("http://shop.example/"); err == nil || !strings.Contains(err.Error(), "callbacks.allow") {
		t.Errorf("without a list: %v", err)
	}
}

func TestNewCallback_NamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for _, entry := range []string{"", "*", "https://", "https://shop.example/hooks/?x=1", "shop.example/hooks", "ftp://x", "http://u:p@x/", "https://x/a/../b", "x y", "http://x/#f", "https://x/%2e"} {
		if err := executor.CheckAllowed(entry); err == nil || !strings.Contains(err.Error(), "takes URL prefixes") {
			t.Errorf("%q: %v", entry, err)
		}
	}
	_, err := executor.NewCallback(executor.CallbackConfig{Allow: []string{"*", "fine.example", "a b"}, Secret: "whsec_%"})
	if err == nil || !strings.Contains(err.Error(), `"*"`) || !strings.Contains(err.Error(), `"a b"`) || !strings.Contains(err.Error(), "whsec_") || strings.Contains(err.Error(), "fine") {
		t.Errorf("%v", err)
	}
}

// newResolver knows every name by one address.
func newResolver(t *testing.T, address string) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	ip := netip.MustParseAddr(address).As4()
	go func() {
		query := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(query)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(dnsAnswer(query[:n], ip), from)
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// dnsAnswer answers a query for an IPv4 address (RFC 1035); there are no others.
func dnsAnswer(query []byte, ip [4]byte) []byte {
	end := 12
	for query[end] != 0 {
		end += int(query[end]) + 1
	}
	end += 5 // the end of the name, type and class
	a := append([]byte(nil), query[:end]...)
	a[2], a[3] = 0x84, 0 // an answer, without an error
	copy(a[6:12], []byte{0, 0, 0, 0, 0, 0})
	if binary.BigEndian.Uint16(query[end-4:]) != 1 {
		return a
	}
	a[7] = 1
	a = append(a, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4)
	return append(a, ip[:]...)
}
