package gateway

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/sekali/sekali/access"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/internal/cron"
	"github.com/sekali/sekali/job"
)

// defaultTenant is everybody's without auth.mode: api_key.
const defaultTenant = "default"

// withDefaults fills in what the schedule does not say.
func (s Schedule) withDefaults() Schedule {
	s.Timezone = cmp.Or(s.Timezone, "UTC")
	s.Missed = cmp.Or(s.Missed, string(job.MissedRunLast))
	s.Tenant = cmp.Or(s.Tenant, defaultTenant)
	s.Payload = cmp.Or(s.Payload, "null")
	return s
}

var businessKey = regexp.MustCompile(`^[ -~]{0,255}$`)

func (c Config) checkSchedules(k *check) {
	types := c.types()
	for _, name := range slices.Sorted(maps.Keys(c.Schedules)) {
		s, path := c.Schedules[name].withDefaults(), "schedules."+name
		k.that(typeName.MatchString(name), path, name, "takes letters, digits, dot, dash and underscore, at most 100")
		_, known := types[s.Type]
		k.that(known, path+".type", s.Type, "takes the name of a configured job type")
		location, err := cron.Location(s.Timezone)
		k.that(err == nil, path+".timezone", s.Timezone, "takes the IANA name of a time zone, e.g. Asia/Jakarta or UTC")
		_, err = cron.Parse(s.Cron, cmp.Or(location, time.UTC))
		k.that(err == nil, path+".cron", s.Cron, fmt.Sprint(err))
		k.oneOf(path+".missed", s.Missed, string(job.MissedRunLast), string(job.MissedSkip), string(job.MissedRunAll))
		k.that(access.IsTenant(s.Tenant), path+".tenant", s.Tenant, "takes 1 to 100 letters, digits and . _ : @ -, the first a letter or digit")
		k.that(businessKey.MatchString(s.BusinessKey), path+".business_key", s.BusinessKey, "takes at most 255 printable ASCII characters, as in a request")
		if s.Priority != nil {
			checkPriority(k, path, *s.Priority)
		}
		c.checkPayload(k, path+".payload", s, types[s.Type])
	}
}

// checkPayload finds what every firing would be refused for.
func (c Config) checkPayload(k *check, path string, s Schedule, t JobType) {
	if !json.Valid([]byte(s.Payload)) {
		k.that(false, path, s.Payload, "takes a value; in a variable it is written as JSON")
		return
	}
	k.that(len(s.Payload) <= int(c.Limits.Body), path, fmt.Sprintf("%d bytes", len(s.Payload)), fmt.Sprintf("takes at most limits.body (%s)", c.Limits.Body))
	settings, err := t.schemed(job.Settings{})
	if err == nil {
		settings, err = t.keyed(settings)
	}
	if err != nil {
		return // reported with the type
	}
	if settings.CheckPayload != nil {
		err = settings.CheckPayload([]byte(s.Payload))
	}
	var wrong *job.PayloadError
	if errors.As(err, &wrong) {
		for _, v := range wrong.Violations {
			k.that(false, path+v.Pointer, "", fmt.Sprintf("does not fit the schema of %s: %s", s.Type, v.Detail))
		}
		return
	}
	checkKeyParts(k, path, s, settings)
}

// checkKeyParts finds payloads that the type cannot make its keys of.
func checkKeyParts(k *check, path string, s Schedule, settings job.Settings) {
	j := job.Job{Tenant: idempotency.Tenant(s.Tenant), Key: "schedule", Type: job.Type(s.Type), Payload: []byte(s.Payload)}
	for _, part := range []func(job.Job) (string, error){settings.BusinessKey, settings.OperationKey} {
		if part == nil {
			continue
		}
		_, err := part(j)
		var lacking *job.KeyPartError
		if errors.As(err, &lacking) && (lacking.Key != "business_key" || s.BusinessKey == "") {
			k.that(false, path, "", fmt.Sprintf("lacks what the %s of %s is made of: %s %s", lacking.Key, s.Type, lacking.Path, lacking.Reason))
		}
	}
}

// schedules are those of the configuration, which is valid.
func (c Config) schedules() ([]job.Schedule, error) {
	var list []job.Schedule
	for _, name := range slices.Sorted(maps.Keys(c.Schedules)) {
		s := c.Schedules[name].withDefaults()
		location, err := cron.Location(s.Timezone)
		if err != nil {
			return nil, fmt.Errorf("schedule %s: %w", name, err)
		}
		times, err := cron.Parse(s.Cron, location)
		if err != nil {
			return nil, fmt.Errorf("schedule %s: %w", name, err)
		}
		var payload bytes.Buffer
		if err := json.Compact(&payload, []byte(s.Payload)); err != nil {
			return nil, fmt.Errorf("schedule %s: payload: %w", name, err)
		}
		list = append(list, job.Schedule{
			Name: name, Type: job.Type(s.Type), Tenant: idempotency.Tenant(s.Tenant), Payload: payload.Bytes(),
			BusinessKey: s.BusinessKey, Priority: s.Priority, Cron: s.Cron, Timezone: s.Timezone,
			Missed: job.MissedPolicy(s.Missed), Times: times,
		})
	}
	return list, nil
}

func scheduleNames(list []job.Schedule) []string {
	names := make([]string, len(list))
	for i, s := range list {
		names[i] = s.Name
	}
	return names
}
