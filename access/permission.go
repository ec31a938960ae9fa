package access

import (
	"fmt"
	"slices"
	"strings"
)

// Permission is one sort of thing that a token may be used for.
type Permission string

// The permissions. Each route of the gateway needs one of them.
const (
	Submit  Permission = "submit"  // POST /jobs and /jobs/batch, and cancel jobs
	Read    Permission = "read"    // read jobs, their results and timelines, and how executors stand
	Operate Permission = "operate" // retry and resolve jobs
	Manage  Permission = "manage"  // pause and resume job types, for all tenants
	Proxy   Permission = "proxy"   // call proxied routes
	Work    Permission = "work"    // claim jobs for workers outside of the gateway, and end them
	// WorkAll is Work for the jobs of all tenants. All does not include that: who may
	// do everything may do so for its own tenant.
	WorkAll Permission = "work_all"
	All     Permission = "*" // everything, also what later versions add
)

// known lists what can be given.
var known = []Permission{Submit, Read, Operate, Manage, Proxy, Work, WorkAll, All}

// Permissions are all that a token may be used for. Words that this version
// does not know permit nothing here.
type Permissions []Permission

// SplitPermissions reads the form that String writes.
func SplitPermissions(text string) Permissions {
	var list Permissions
	for word := range strings.SplitSeq(text, ",") {
		if word = strings.TrimSpace(word); word != "" {
			list = append(list, Permission(word))
		}
	}
	return list
}

// String joins the permissions with commas, the form in which they are stored.
func (p Permissions) String() string {
	words := make([]string, len(p))
	for i, one := range p {
		words[i] = string(one)
	}
	return strings.Join(words, ",")
}

// Allow reports whether the needed permission is among them.
func (p Permissions) Allow(needed Permission) bool {
	return slices.Contains(p, needed) || slices.Contains(p, All) || needed == Work && p.WorkForAll()
}

// WorkForAll reports whether they let workers have the jobs of all tenants.
func (p Permissions) WorkForAll() bool { return slices.Contains(p, WorkAll) }

// check reports words that nobody can mean.
func (p Permissions) check() error {
	if len(p) == 0 {
		return fmt.Errorf("access: a token needs permissions: %s", Permissions(known))
	}
	for _, one := range p {
		if !slices.Contains(known, one) {
			return fmt.Errorf("access: %q is no permission; there are: %s", one, Permissions(known))
		}
	}
	return nil
}
