package executor

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// errPrivate reports an address that nobody may be called at because a request
// names it, or a name that stands for it.
var errPrivate = errors.New("executor: the address is not one of the public internet")

// public are the IPv6 addresses of the public internet; all of IPv4 is, but for
// what is notPublic.
var publicIPv6 = netip.MustParsePrefix("2000::/3")

// notPublic are the addresses within them that stand for something else, by the
// registries of special-purpose addresses (RFC 6890), with the one by which
// machines in Azure ask about themselves. The metadata of other clouds lies in these
// ranges too.
var notPublic = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
	"192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"168.63.129.16/32",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

// translated are the IPv6 addresses by which a network without IPv4 reaches it: the
// last four bytes are the address that is meant.
var translated = netip.MustParsePrefix("64:ff9b::/96")

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		list[i] = netip.MustParsePrefix(text)
	}
	return list
}

// public reports whether an address is one of the public internet.
func public(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	if translated.Contains(a) {
		bytes := a.As16()
		a = netip.AddrFrom4([4]byte(bytes[12:]))
	}
	if a.Is6() && !publicIPv6.Contains(a) {
		return false
	}
	for _, p := range notPublic {
		if p.Contains(a) {
			return false
		}
	}
	return a.IsValid()
}

// dialer connects to public addresses, and to those that the configuration names.
// It looks at the address that a name turned out to stand for, at the moment of
// connecting: there is no time in between in which it could turn into another.
type dialer struct {
	resolver *net.Resolver
	anywhere bool // private addresses too
}

func (d dialer) dial(ctx context.Context, network, address string) (net.Conn, error) {
	named := hostOf(address)
	return dialBy(ctx, &net.Dialer{
		Timeout: dialTimeout, Resolver: d.resolver,
		Control: func(_, address string, _ syscall.RawConn) error {
			if d.anywhere {
				return nil
			}
			return permit(named, address)
		},
	}, network, address)
}

// permit reports errPrivate unless the address may be connected to for the sake of
// a URL with the named host, which is one that the list of allowed ones names: an
// address that stands there itself is meant, and so is this machine by localhost.
func permit(named, address string) error {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return errPrivate
	}
	ip := to.Addr().Unmap()
	literal, err := netip.ParseAddr(named)
	switch {
	case public(ip):
		return nil
	case err == nil && literal.Unmap() == ip:
		return nil
	case named == "localhost" && ip.IsLoopback():
		return nil
	}
	return errPrivate
}
