package gateway

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// echoType exists unless the configuration has a type of that name: something
// to submit in the first minute.
const echoType = "echo"

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
	}
	if t.Priority != nil {
		s.Priority = *t.Priority
	}
	return s
}

func (t JobType) check(k *check, path, name string, c Config) {
	k.that(typeName.MatchString(name), path, name, "takes letters, digits, dot, dash and underscore, at most 100")
	s := t.settings(c)
	t.checkTiming(k, path, s, c)
	k.oneOf(path+".on_business_key_conflict", string(s.OnConflict), string(job.ConflictReturn), string(job.ConflictReject))
	k.oneOf(path+".executor", t.Executor, "http", "command", "sql", "echo", "func")
	for part, given := range map[string]bool{"http": t.HTTP != nil, "command": t.Command != nil, "sql": t.SQL != nil} {
		k.that(!given || t.Executor == part, path+"."+part, "", fmt.Sprintf("is for executor: %s; this type has executor: %s", part, t.Executor))
		k.that(given || t.Executor != part, path+"."+part, "", fmt.Sprintf("is missing: executor: %s needs it", part))
	}
	_, goes := c.Executors[name]
	_, goesTx := c.TxExecutors[name]
	k.that(t.Executor != "func" || goes || goesTx, path+".executor", "func", "needs a Go function of this name: see the package gateway")
	k.that(t.Executor == "func" || !goes && !goesTx, path+".executor", t.Executor, "must be func: a Go function of this name is given")
	t.checkParts(k, path, c)
}

// checkTiming looks at what the type sets itself; what it takes from the
// defaults is reported there, once.
func (t JobType) checkTiming(k *check, path string, s job.Settings, c Config) {
	if t.Lease != 0 {
		k.between(path+".lease", t.Lease, minLease, maxLease)
		k.that(c.Defaults.Heartbeat <= t.Lease/2, path+".lease", t.Lease,
			fmt.Sprintf("must be at least twice defaults.heartbeat (%s)", c.Defaults.Heartbeat))
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
		u, err := url.Parse(t.HTTP.URL)
		k.that(err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "", path+".http.url", redactURL(t.HTTP.URL), "takes http://host/path or https://…")
	}
	if t.Command != nil {
		k.that(len(t.Command.Argv) > 0 && t.Command.Argv[0] != "", path+".command.argv", "", "takes the program and its arguments, e.g. [./report.sh, --daily]")
	}
	if _, _, err := t.executors(c, noDialect); err != nil && k.clean(path) {
		k.that(false, path, "", err.Error())
	}
}

// clean reports whether nothing below the path was found wrong so far.
func (c *check) clean(path string) bool {
	return !slices.ContainsFunc(c.problems, func(p Problem) bool { return strings.HasPrefix(p.Path, path+".") })
}

// sqlDialect is what the sql executor needs to know of the database.
type sqlDialect struct {
	placeholder       func(int) string
	isUniqueViolation func(error) bool
	isPermanent       func(error) bool
}

// noDialect stands in where executors are made only to see whether they can be.
var noDialect = sqlDialect{
	placeholder:       func(int) string { return "?" },
	isUniqueViolation: func(error) bool { return false },
	isPermanent:       func(error) bool { return false },
}

// executors makes the type's executor; one of the two is nil.
func (t JobType) executors(c Config, d sqlDialect) (executor.Executor, executor.TxExecutor, error) {
	limit := int64(c.Limits.Result)
	switch {
	case t.Executor == "http" && t.HTTP != nil:
		e, err := executor.NewHTTP(executor.HTTPConfig{
			URL: t.HTTP.URL, Headers: t.HTTP.Headers, Secret: t.HTTP.Secret, ResultLimit: limit, ErrorBody: t.ErrorBody,
		})
		return e, nil, err
	case t.Executor == "command" && t.Command != nil:
		e, err := executor.NewCommand(executor.CommandConfig{
			Argv: t.Command.Argv, Env: t.Command.Env, Dir: t.Command.Dir, ResultLimit: limit, ErrorBody: t.ErrorBody,
		})
		return e, nil, err
	case t.Executor == "sql" && t.SQL != nil:
		e, err := executor.NewSQL(executor.SQLConfig{
			Statement: t.SQL.Statement, Existing: t.SQL.Existing, ResultLimit: limit, Placeholder: d.placeholder,
			IsUniqueViolation: d.isUniqueViolation, IsPermanent: d.isPermanent,
		})
		return nil, e, err
	case t.Executor == "echo":
		return executor.Echo{}, nil, nil
	}
	return nil, nil, nil
}

// work makes what the dispatcher runs, for every type.
func (c Config) work(d sqlDialect) (map[job.Type]dispatcher.Work, error) {
	work := map[job.Type]dispatcher.Work{echoType: {Settings: JobType{}.settings(c), Execute: executor.Echo{}}}
	for name, t := range c.JobTypes {
		execute, executeTx, err := t.executors(c, d)
		if err != nil {
			return nil, fmt.Errorf("job type %s: %w", name, err)
		}
		work[job.Type(name)] = dispatcher.Work{Settings: t.settings(c), Execute: execute, ExecuteTx: executeTx}
	}
	for name, e := range c.Executors {
		work[job.Type(name)] = dispatcher.Work{Settings: c.JobTypes[name].settings(c), Execute: e}
	}
	for name, e := range c.TxExecutors {
		work[job.Type(name)] = dispatcher.Work{Settings: c.JobTypes[name].settings(c), ExecuteTx: e}
	}
	return work, nil
}
