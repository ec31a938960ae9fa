package gateway

import (
	"fmt"
	"maps"

	"github.com/sekali/sekali/dispatcher"
	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/job"
)

// kindCallback is the executor of the built-in type of callbacks; no configured type
// can have it.
const kindCallback = "callback"

// callsBack reports whether a job can have a callback URL.
func (c Config) callsBack() bool { return len(c.Callbacks.Allow)+len(c.callbackURLs()) > 0 }

// callbackURLs are those that the configuration names itself.
func (c Config) callbackURLs() []string {
	var urls []string
	for _, t := range c.JobTypes {
		if t.CallbackURL != "" {
			urls = append(urls, t.CallbackURL)
		}
	}
	return urls
}

// allTypes are also those that no client can submit.
func (c Config) allTypes() map[string]JobType {
	types := maps.Clone(c.types())
	if c.callsBack() {
		types[string(job.CallbackType)] = c.callbackType()
	}
	return types
}

func (c Config) callbackType() JobType {
	return JobType{
		Executor: kindCallback, MaxAttempts: c.Callbacks.MaxAttempts, Timeout: c.Callbacks.Timeout, Backoff: c.Callbacks.Backoff,
	}
}

// slotsOf bounds what callbacks take of this process: receivers that do not answer
// hold half of its slots at most.
func (c Config) slotsOf(t JobType) int {
	if t.Executor != kindCallback {
		return 0
	}
	return max(1, c.Dispatcher.Slots/2)
}

func (c Config) callbackExecutor() (*executor.Callback, error) {
	return executor.NewCallback(executor.CallbackConfig{
		Allow: c.Callbacks.Allow, Trusted: c.callbackURLs(), AllowPrivate: c.Callbacks.AllowPrivate, Secret: c.Callbacks.Secret,
	})
}

// callbackCheck says which callback URLs requests may name; nil: none.
func callbackCheck(work map[job.Type]dispatcher.Work) func(string) error {
	if callback, ok := work[job.CallbackType].Execute.(*executor.Callback); ok {
		return callback.Check
	}
	return nil
}

func (c Config) checkCallbacks(k *check) {
	for i, entry := range c.Callbacks.Allow {
		if err := executor.CheckAllowed(entry); err != nil {
			k.that(false, fmt.Sprintf("callbacks.allow[%d]", i), redactURL(entry), err.Error())
		}
	}
	_, err := executor.NewCallback(executor.CallbackConfig{Secret: c.Callbacks.Secret})
	k.that(err == nil, "callbacks.secret", "", "takes whsec_ and the secret in base64, as Standard Webhooks writes it")
	checkAttempts(k, "callbacks", c.Callbacks.MaxAttempts)
	k.between("callbacks.timeout", c.Callbacks.Timeout, minTimeout, maxTimeout)
	checkBackoff(k, "callbacks", c.Callbacks.Backoff)
	for name := range c.Executors {
		k.that(name != string(job.CallbackType), "job_types."+name, "func", "is the name of a built-in type; take another one")
	}
	for name := range c.TxExecutors {
		k.that(name != string(job.CallbackType), "job_types."+name, "func", "is the name of a built-in type; take another one")
	}
}
