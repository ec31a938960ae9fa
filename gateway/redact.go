package gateway

import (
	"maps"
	"net/url"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// hidden stands where a secret would.
const hidden = "(hidden)"

// Redacted returns the configuration without its secrets, for printing.
func (c Config) Redacted() Config {
	c.DatabaseURL = redactURL(c.DatabaseURL)
	c.RedisURL = redactURL(c.RedisURL)
	c.JobTypes = maps.Clone(c.JobTypes)
	if c.Callbacks.Secret != "" {
		c.Callbacks.Secret = hidden
	}
	for name, t := range c.JobTypes {
		t.CallbackURL = redactURL(t.CallbackURL)
		if t.HTTP != nil {
			h := *t.HTTP
			h.URL, h.ReconcileURL = redactURL(h.URL), redactURL(h.ReconcileURL)
			if h.Secret != "" {
				h.Secret = hidden
			}
			h.Headers = redactAll(h.Headers)
			t.HTTP = &h
		}
		if t.Command != nil {
			command := *t.Command
			command.Env = redactAll(command.Env)
			t.Command = &command
		}
		c.JobTypes[name] = t
	}
	c.Proxy = slices.Clone(c.Proxy)
	for i := range c.Proxy {
		c.Proxy[i].Upstream = redactURL(c.Proxy[i].Upstream)
	}
	return c
}

// YAML writes the configuration in force as a file: with the defaults of job
// types filled in, and secrets hidden.
func (c Config) YAML() ([]byte, error) { return yaml.Marshal(c.effective().Redacted()) }

// effective returns the configuration in which every job type says for itself
// what it would take from the defaults.
func (c Config) effective() Config {
	types := make(map[string]JobType, len(c.JobTypes))
	for name, t := range c.JobTypes {
		s := t.settings(c)
		t.Lease, t.Heartbeat, t.Timeout, t.MaxAttempts, t.Priority = s.Lease, t.heartbeat(c), s.Timeout, s.MaxAttempts, &s.Priority
		t.Backoff, t.Retention, t.OnBusinessKeyConflict = Backoff(s.Backoff), s.Retention, string(s.OnConflict)
		t.OnUnknownOutcome, t.Lock = string(s.OnUnknown), string(s.Lock)
		types[name] = t
	}
	c.JobTypes = types
	c.Schedules = maps.Clone(c.Schedules)
	for name, s := range c.Schedules {
		c.Schedules[name] = s.withDefaults()
	}
	return c
}

// redactAll hides values that often carry credentials; their names may be shown.
func redactAll(values map[string]string) map[string]string {
	values = maps.Clone(values)
	for name := range values {
		values[name] = hidden
	}
	return values
}

// secretName are parameters of URLs that hold secrets: sslpassword of Postgres,
// the token that many receivers take.
var secretName = regexp.MustCompile(`(?i)pass|secret|token|key|signature`)

func redactURL(text string) string {
	if text == "" {
		return ""
	}
	u, err := url.Parse(text)
	if err != nil {
		return hidden
	}
	query, secrets := u.Query(), false
	for name := range query {
		if secretName.MatchString(name) {
			query.Set(name, hidden)
			secrets = true
		}
	}
	if secrets {
		u.RawQuery = query.Encode()
	}
	return u.Redacted()
}

// MarshalYAML writes a size as it is written in a file.
func (s Size) MarshalYAML() (any, error) { return s.String(), nil }
