package executor

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// maxCallbackURL is what every server and proxy takes.
const maxCallbackURL = 2048

// urlBytes are those that a callback URL may hold, besides letters and digits: what
// RFC 3986 allows, without the number sign, since a fragment is never sent. No
// backslash is among them, which some take for a slash.
const urlBytes = "-._~:/?[]@!$&'()*+,;=%"

// parseCallbackURL reads a URL of which no two readers can differ: what is compared
// with a list is what is called. The error says what would be right.
func parseCallbackURL(text string) (*url.URL, error) {
	if len(text) > maxCallbackURL {
		return nil, fmt.Errorf("must have at most %d bytes", maxCallbackURL)
	}
	if strings.ContainsFunc(text, func(r rune) bool { return !urlRune(r) }) {
		return nil, fmt.Errorf("must be an http:// or https:// URL of ASCII letters, digits and %s, without a fragment", urlBytes)
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Opaque != "" {
		return nil, fmt.Errorf("must be an http:// or https:// URL")
	}
	u.Host = strings.ToLower(u.Host)
	switch {
	case u.User != nil:
		return nil, fmt.Errorf("must not hold a user or a password")
	case !plainHost(u):
		return nil, fmt.Errorf("must name a host, and after it a port or none")
	case !plainPath(u.EscapedPath()):
		return nil, fmt.Errorf("must have a path without the segments . and .., and without encoded dots, slashes, backslashes, semicolons, control characters and overlong bytes")
	case !strings.EqualFold(u.String(), text):
		return nil, fmt.Errorf("must be a URL in its usual form: %s", u)
	}
	return u, nil
}

func urlRune(r rune) bool {
	return 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || r < 0x80 && strings.ContainsRune(urlBytes, r)
}

// plainHost takes names, IPv4 and bracketed IPv6 without a zone; and no colon
// without a port.
func plainHost(u *url.URL) bool {
	host := u.Hostname()
	if host == "" || strings.HasSuffix(u.Host, ":") {
		return false
	}
	if n, err := strconv.ParseUint(u.Port(), 10, 16); u.Port() != "" && (err != nil || n == 0) {
		return false
	}
	if strings.HasPrefix(u.Host, "[") {
		address, err := netip.ParseAddr(host)
		return err == nil && address.Is6() && address.Zone() == ""
	}
	return !strings.ContainsFunc(host, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("-._", r)
	})
}

// hiddenBytes are those that must not stand encoded in a path: whoever decodes it,
// or decodes it twice, would see another path.
var hiddenBytes = []string{"%2e", "%2f", "%3b", "%5c", "%25", "%0", "%1", "%7f", "%c0", "%c1"}

// plainPath reports whether nobody can read a path as one that leaves its folder.
// Some servers take what follows a semicolon for no part of the segment.
func plainPath(path string) bool {
	for segment := range strings.SplitSeq(path, "/") {
		name, _, _ := strings.Cut(segment, ";")
		if name == "." || name == ".." {
			return false
		}
	}
	lower := strings.ToLower(path)
	return !slices.ContainsFunc(hiddenBytes, func(hidden string) bool { return strings.Contains(lower, hidden) })
}

// allowedURLs is one entry of a list of URLs that requests may name.
type allowedURLs struct {
	scheme     string // "": both
	host, port string // port "": the scheme's
	path       string // itself and what is below; "": all
}

// parseAllowed reads an entry: a URL prefix, a host, or a host with a port. The
// error says what would be right.
func parseAllowed(entry string) (allowedURLs, error) {
	text, whole := entry, strings.Contains(entry, "://")
	if !whole {
		text = "http://" + entry
	}
	u, err := parseCallbackURL(text)
	if err != nil {
		return allowedURLs{}, fmt.Errorf("takes URL prefixes such as https://shop.example/hooks/, or host, or host:port: this one %w", err)
	}
	if u.RawQuery != "" || u.ForceQuery || !whole && u.Path != "" {
		return allowedURLs{}, fmt.Errorf("takes URL prefixes without a query, such as https://shop.example/hooks/, or host, or host:port")
	}
	a := allowedURLs{host: u.Hostname(), port: u.Port(), path: strings.TrimSuffix(u.EscapedPath(), "/")}
	if strings.HasSuffix(u.EscapedPath(), "/") && a.path != "" {
		a.path = u.EscapedPath() // what is below, and not the folder itself
	}
	if whole {
		a.scheme, a.port = u.Scheme, portOf(u)
	}
	return a, nil
}

// has reports whether the entry allows the URL.
func (a allowedURLs) has(u *url.URL) bool {
	port := a.port
	if port == "" {
		port = defaultPorts[u.Scheme]
	}
	if a.scheme != "" && a.scheme != u.Scheme || a.host != u.Hostname() || port != portOf(u) {
		return false
	}
	path := u.EscapedPath()
	return a.path == "" || path == a.path || strings.HasPrefix(path, strings.TrimSuffix(a.path, "/")+"/")
}

var defaultPorts = map[string]string{"http": "80", "https": "443"}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" {
		return port
	}
	return defaultPorts[u.Scheme]
}

// hostOf is the host of an address to dial.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
