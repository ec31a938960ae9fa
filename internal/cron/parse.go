package cron

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/netresearch/go-cron"
)

// searchYears is how far the library looks for a time: past 2100, which is no
// leap year, so that the 29th of February is always found.
const searchYears = 12

// grammar is the classical one. A day of the month and a day of the week that are
// both given mean either of them, as in every crontab.
var grammar = cron.MustNewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom).
	WithMaxSearchYears(searchYears)

// fields are the places of an expression, with what each takes.
var fields = []struct{ name, takes string }{
	{"second", "0 to 59"},
	{"minute", "0 to 59"},
	{"hour", "0 to 23"},
	{"day of the month", "1 to 31"},
	{"month", "1 to 12 or JAN to DEC"},
	{"day of the week", "0 to 7 or SUN to SAT (0 and 7 are Sunday)"},
}

// names stand for whole expressions.
var names = map[string]string{
	"@yearly": "0 0 0 1 1 *", "@annually": "0 0 0 1 1 *", "@monthly": "0 0 0 1 * *", "@weekly": "0 0 0 * * 0",
	"@daily": "0 0 0 * * *", "@midnight": "0 0 0 * * *", "@hourly": "0 0 * * * *",
}

const every = "@every "

// Parse reads an expression of five fields (minute, hour, day of the month, month,
// day of the week), of six with the second in front, a name such as @daily, or
// "@every 90s". The error says in words which field is wrong and what it takes.
func Parse(expression string, in *time.Location) (*Times, error) {
	expression = strings.TrimSpace(expression)
	if length, ok := strings.CutPrefix(expression, every); ok {
		return parseEvery(strings.TrimSpace(length))
	}
	if strings.HasPrefix(expression, "@") {
		spelt, known := names[expression]
		if !known {
			return nil, errors.New("takes @yearly, @monthly, @weekly, @daily, @hourly or @every 90s, or five fields")
		}
		expression = spelt
	}
	split := strings.Fields(expression)
	if len(split) == len(fields)-1 {
		split = append([]string{"0"}, split...)
	}
	if len(split) != len(fields) {
		return nil, fmt.Errorf("has %d fields and takes five (minute, hour, day of the month, month, day of the week), or six with the second in front", len(split))
	}
	for i, field := range split {
		if _, err := spec(alone(i, field)); err != nil || !classical(field) {
			return nil, fmt.Errorf("the %s is %q and takes %s, * for all, lists (1,15), ranges (1-5) and steps (*/10)", fields[i].name, field, fields[i].takes)
		}
	}
	parsed, err := spec(split)
	if err != nil {
		return nil, fmt.Errorf("is no cron expression: %w", err)
	}
	if parsed.Next(time.Unix(0, 0).UTC()).IsZero() {
		return nil, errors.New("names a day that never comes")
	}
	return &Times{clock: parsed, hourly: parsed.Hour&allHours == allHours, location: in}, nil
}

// part is one of a field's list: all, a value, or a range, with a step or none.
var part = regexp.MustCompile(`^(?:\*|([0-9A-Za-z]+)(?:-([0-9A-Za-z]+))?)(?:/[1-9][0-9]*)?$`)

// classical reports whether the field is as the documents say. The library takes
// more, and means by it what nobody who writes it does: 5-1 goes round.
func classical(field string) bool {
	for one := range strings.SplitSeq(field, ",") {
		found := part.FindStringSubmatch(one)
		if found == nil {
			return false
		}
		from, err := strconv.Atoi(found[1])
		if to, err2 := strconv.Atoi(found[2]); err == nil && err2 == nil && from > to {
			return false
		}
	}
	return true
}

// allHours are the bits of 0 to 23.
const allHours = 1<<24 - 1

// alone is an expression in which one field alone can be wrong.
func alone(i int, field string) []string {
	expression := slices.Repeat([]string{"*"}, len(fields))
	expression[i] = field
	return expression
}

// spec parses six fields. A field that holds nothing, a lone comma, is refused.
func spec(split []string) (*cron.SpecSchedule, error) {
	parsed, err := grammar.Parse(strings.Join(split, " "))
	if err != nil {
		return nil, err
	}
	s, ok := parsed.(*cron.SpecSchedule)
	if !ok || slices.Contains([]uint64{s.Second, s.Minute, s.Hour, s.Dom, s.Month, s.Dow}, 0) {
		return nil, errors.New("holds no time")
	}
	s.Location = time.UTC
	return s, nil
}

func parseEvery(length string) (*Times, error) {
	every, err := time.ParseDuration(length)
	if err != nil || every < time.Second || every%time.Second != 0 || every > mostEvery {
		return nil, fmt.Errorf("has %q after @every and takes whole seconds there, 1s to %dh", length, mostEvery/time.Hour)
	}
	return &Times{every: int64(every / time.Second)}, nil
}

// mostEvery is a year: whoever means longer means a date.
const mostEvery = 8760 * time.Hour
