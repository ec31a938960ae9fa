package gateway

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/api"
	"github.com/sekali/sekali/job"
)

// echoType exists unless the configuration has a type of that name: something
// to submit in the first minute.
const echoType = "echo"

// The kinds of executors: the values of job_types.*.executor.
const (
	kindHTTP    = "http"
	kindCommand = "command"
	kindSQL     = "sql"
	kindEcho    = "echo"
	kindFunc    = "func"
	kindRemote  = api.KindRemote
)

var typeName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$`)

// settings are the type's own values where it has any, else the defaults.
func (t JobType) settings(c Config) job.Settings {
	s := job.Settings{
		Lease:       cmp.Or(t.Lease, c.Defaults.Lease),
		Timeout:     cmp.Or(t.Timeout, c.Defaults.Timeout),
		MaxAttempts: cmp.Or(t.MaxAttempts, c.Defaults.MaxAttempts),
		Priority:    c.Defaults.Priority,
		Backoff: job.Backoff{
			Base: cmp.Or(t.Backoff.Base, c.Defaults.Backoff.Base),
			Cap:  cmp.Or(t.Backoff.Cap, c.Defaults.Backoff.Cap),
		},
		Retention:  cmp.Or(t.Retention, c.Idempotency.Retention),
		OnConflict: job.ConflictPolicy(cmp.Or(t.OnBusinessKeyConflict, string(job.ConflictReturn))),
		OnUnknown:  job.UnknownPolicy(cmp.Or(t.OnUnknownOutcome, string(t.unknownDefault()))),
		Lock:       job.LockScope(cmp.Or(t.Lock, string(job.LockNone))),
		Compensate: job.Type(t.Compensate), CallbackURL: t.CallbackURL,
	}
	s.Limit = t.limit()
	if t.Priority != nil {
		s.Priority = *t.Priority
	}
	return s
}

// unknownDefault asks where somebody can be asked.
func (t JobType) unknownDefault() job.UnknownPolicy {
	if t.HTTP != nil && t.HTTP.ReconcileURL != "" {
		return job.UnknownReconcile
	}
	return job.UnknownRetry
}

// heartbeat is how often the leases and locks of the type's jobs are prolonged: a type
// that has a shorter lease than others, and does not say, has a third of that.
func (t JobType) heartbeat(c Config) time.Duration {
	if t.Heartbeat == 0 && t.Lease > 0 {
		return min(c.Defaults.Heartbeat, t.Lease/3)
	}
	return cmp.Or(t.Heartbeat, c.Defaults.Heartbeat)
}

// heartbeat is the shortest of all types': one beat prolongs everything.
func (c Config) heartbeat() time.Duration {
	shortest := c.Defaults.Heartbeat
	for _, t := range c.JobTypes {
		if t.Executor != kindRemote { // workers prolong their leases themselves
			shortest = min(shortest, t.heartbeat(c))
		}
	}
	return shortest
}

func (t JobType) check(k *check, path, name string, c Config) {
	k.that(typeName.MatchString(name), path, name, "takes letters, digits, dot, dash and underscore, at most 100")
	k.that(name != string(job.CallbackType), path, name, "is the name of a built-in type; take another one")
	s := t.settings(c)
	t.checkTiming(k, path, s, c)
	t.checkRules(k, path, name, s, c)
	t.checkLimit(k, path)
	k.oneOf(path+".executor", t.Executor, kindHTTP, kindCommand, kindSQL, kindEcho, kindFunc, kindRemote)
	for part, given := range map[string]bool{kindHTTP: t.HTTP != nil, kindCommand: t.Command != nil, kindSQL: t.SQL != nil} {
		k.that(!given || t.Executor == part, path+"."+part, "", fmt.Sprintf("is for executor: %s; this type has executor: %s", part, t.Executor))
		k.that(given || t.Executor != part, path+"."+part, "", fmt.Sprintf("is missing: executor: %s needs it", part))
	}
	_, goes := c.Executors[name]
	_, goesTx := c.TxExecutors[name]
	k.that(t.Executor != kindFunc || goes || goesTx, path+".executor", kindFunc, "needs a Go function of this name: see the package gateway")
	k.that(t.Executor == kindFunc || !goes && !goesTx, path+".executor", t.Executor, "must be func: a Go function of this name is given")
	t.checkParts(k, path, c)
	t.checkSchema(k, path)
}

// checkTiming looks at what the type sets itself; what it takes from the
// defaults is reported there, once.
func (t JobType) checkTiming(k *check, path string, s job.Settings, c Config) {
	if t.Lease != 0 {
		k.between(path+".lease", t.Lease, minLease, maxLease)
	}
	if beat := t.heartbeat(c); t.Lease != 0 || t.Heartbeat != 0 {
		k.that(beat > 0 && beat <= s.Lease/2, path+".heartbeat", beat,
			fmt.Sprintf("takes up to half of the lease (%s), so that one lost heartbeat loses no lease", s.Lease/2))
	}
	if t.Backoff != (Backoff{}) {
		checkBackoff(k, path, Backoff(s.Backoff))
	}
	if t.Timeout != 0 {
		k.between(path+".timeout", t.Timeout, minTimeout, maxTimeout)
	}
	if t.MaxAttempts != 0 {
		checkAttempts(k, path, t.MaxAttempts)
	}
	if t.Priority != nil {
		checkPriority(k, path, *t.Priority)
	}
	if t.Retention != 0 {
		k.between(path+".retention", t.Retention, time.Second, maxRetention)
	}
}

func (t JobType) checkParts(k *check, path string, c Config) {
	if t.HTTP != nil {
		checkURL(k, path+".http.url", t.HTTP.URL)
	}
	if t.HTTP != nil && t.HTTP.ReconcileURL != "" {
		checkURL(k, path+".http.reconcile_url", t.HTTP.ReconcileURL)
	}
	if t.CallbackURL != "" {
		checkURL(k, path+".callback_url", t.CallbackURL)
	}
	if t.Command != nil {
		k.that(len(t.Command.Argv) > 0 && t.Command.Argv[0] != "", path+".command.argv", "", "takes the program and its arguments, e.g. [./report.sh, --daily]")
	}
	if _, _, err := t.executors(c, noDialect); err != nil && k.clean(path) {
		k.that(false, path, "", err.Error())
	}
}

func checkURL(k *check, path, text string) {
	u, err := url.Parse(text)
	k.that(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", path, redactURL(text), "takes http://host/path or https://…")
}

// clean reports whether nothing below the path was found wrong so far.
func (c *check) clean(path string) bool {
	return !slices.ContainsFunc(c.problems, func(p Problem) bool { return strings.HasPrefix(p.Path, path+".") })
}
