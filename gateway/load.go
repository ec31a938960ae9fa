package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Path  string // where, e.g. job_types.invoice.http.url, or an environment variable
	Value string // what stands there; empty for a missing or secret value
	Want  string // what would be right
}

func (p Problem) String() string {
	if p.Value == "" {
		return p.Path + ": " + p.Want
	}
	return fmt.Sprintf("%s: %q: %s", p.Path, p.Value, p.Want)
}

// ConfigError reports everything that is wrong with a configuration at once.
type ConfigError struct{ Problems []Problem }

func (e *ConfigError) Error() string {
	lines := make([]string, 0, len(e.Problems)+1)
	lines = append(lines, fmt.Sprintf("configuration: %d problem(s)", len(e.Problems)))
	for _, p := range e.Problems {
		lines = append(lines, "  "+p.String())
	}
	return strings.Join(lines, "\n")
}

// Load reads the file (none if it is "") and the environment, given as
// os.Environ() does, over the defaults and validates the whole. Environment
// wins over file. Its error is a *ConfigError where the configuration is wrong.
func Load(file string, environ []string) (Config, error) {
	cfg := Default()
	l := loader{env: environment(environ), known: map[string]bool{}, files: map[string]string{}}
	if file != "" {
		l.file(file, &cfg)
	}
	l.environment(reflect.ValueOf(&cfg).Elem(), "")
	l.unknownVariables()
	l.problems = append(l.problems, cfg.problems()...)
	if len(l.problems) > 0 {
		return Config{}, &ConfigError{Problems: l.problems}
	}
	return cfg, nil
}

// loader walks Config by reflection, so that a key's path, its environment
// variable and its errors come from one place: the field.
type loader struct {
	env      map[string]string
	known    map[string]bool   // variables that name a key
	files    map[string]string // secrets that the file wants read from files, by path
	problems []Problem
}

func environment(environ []string) map[string]string {
	env := make(map[string]string, len(environ))
	for _, line := range environ {
		if name, value, ok := strings.Cut(line, "="); ok {
			env[name] = value
		}
	}
	return env
}

func (l *loader) problem(path, value, want string, args ...any) {
	l.problems = append(l.problems, Problem{Path: path, Value: value, Want: fmt.Sprintf(want, args...)})
}

func (l *loader) file(name string, cfg *Config) {
	text, err := os.ReadFile(name)
	if err != nil {
		l.problem(name, "", "cannot be read: %v", err)
		return
	}
	documents := yaml.NewDecoder(bytes.NewReader(text))
	var doc, more yaml.Node
	if err := documents.Decode(&doc); errors.Is(err, io.EOF) {
		return // an empty file sets nothing
	} else if err != nil {
		l.problem(name, "", "is no YAML: %v", err)
		return
	}
	if err := documents.Decode(&more); !errors.Is(err, io.EOF) {
		l.problem(name, "", "takes one YAML document: what follows a line of --- would be ignored")
	}
	l.node(doc.Content[0], reflect.ValueOf(cfg).Elem(), "")
}

// node sets v from a node of the file.
func (l *loader) node(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Tag == "!!null" {
		return
	}
	if v.Type() == reflect.TypeFor[JSON]() {
		text, err := jsonOf(n)
		if err != nil {
			l.problem(path, "", "%v", err)
		}
		v.SetString(text)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		l.node(n, v.Elem(), path)
	case reflect.Struct:
		l.mapping(n, v, path)
	case reflect.Map:
		l.entries(n, v, path)
	case reflect.Slice:
		l.sequence(n, v, path)
	default:
		if n.Kind != yaml.ScalarNode {
			l.problem(path, "", "takes one value: %s", wanted(v))
			return
		}
		l.scalar(n.Value, v, path)
	}
}

func (l *loader) mapping(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		l.problem(cmp.Or(path, "the file"), n.Value, "takes keys with values, indented below it")
		return
	}
	l.repeated(n, path)
	for i := 0; i < len(n.Content); i += 2 {
		key, value := n.Content[i].Value, n.Content[i+1]
		at := join(path, key)
		if field, ok := fieldOf(v, key); ok {
			l.node(value, field, at)
			continue
		}
		base, isFile := strings.CutSuffix(key, "_file")
		if isFile && isSecret(v.Type(), base) {
			l.files[join(path, base)] = value.Value
			continue
		}
		l.unknown(at, key, v.Type())
	}
}

// repeated reports keys that stand twice: one of the two would not be obeyed.
func (l *loader) repeated(n *yaml.Node, path string) {
	seen := map[string]bool{}
	for i := 0; i < len(n.Content); i += 2 {
		key := n.Content[i].Value
		if seen[key] {
			l.problem(join(path, key), "", "stands twice (again in line %d); remove one", n.Content[i].Line)
		}
		seen[key] = true
	}
}

func (l *loader) unknown(path, key string, t reflect.Type) {
	names := keysOf(t)
	l.problem(path, "", "unknown key %q; known here: %s", key, strings.Join(names, ", "))
}

func (l *loader) entries(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.MappingNode {
		l.problem(path, n.Value, "takes names with values, indented below it")
		return
	}
	if v.IsNil() {
		v.Set(reflect.MakeMap(v.Type()))
	}
	l.repeated(n, path)
	for i := 0; i < len(n.Content); i += 2 {
		entry := reflect.New(v.Type().Elem()).Elem()
		l.node(n.Content[i+1], entry, join(path, n.Content[i].Value))
		v.SetMapIndex(reflect.ValueOf(n.Content[i].Value), entry)
	}
}

func (l *loader) sequence(n *yaml.Node, v reflect.Value, path string) {
	if n.Kind != yaml.SequenceNode {
		l.problem(path, n.Value, "takes a list, e.g. [a, b]")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
	for i, item := range n.Content {
		l.node(item, v.Index(i), fmt.Sprintf("%s[%d]", path, i))
	}
}

var durationType = reflect.TypeFor[time.Duration]()

// scalar sets v from text; source is the path or the environment variable.
func (l *loader) scalar(text string, v reflect.Value, source string) {
	var err error
	switch {
	case v.Type() == durationType:
		var d time.Duration
		if d, err = time.ParseDuration(text); err == nil {
			v.SetInt(int64(d))
		}
	case v.Type() == reflect.TypeFor[Size]():
		err = v.Addr().Interface().(*Size).UnmarshalText([]byte(text))
	case v.Kind() == reflect.Bool:
		err = setBool(text, v)
	case v.Kind() == reflect.Int:
		var n int64
		if n, err = strconv.ParseInt(text, 10, 32); err == nil {
			v.SetInt(n)
		}
	default:
		v.SetString(text)
	}
	switch {
	case err != nil:
		l.problem(source, text, "takes %s", wanted(v))
	case overridesNothing(source, v):
		l.problem(source, text, "takes more than 0; leave it out to take the default")
	}
}

// overridesNothing reports a zero where a job type would set its own value: in
// Config a zero stands for the default, which nobody who writes 0 means.
func overridesNothing(source string, v reflect.Value) bool {
	ofType := strings.HasPrefix(source, "job_types.") || strings.HasPrefix(source, prefix+"JOB_TYPES_")
	name := strings.ToLower(source)
	zero := strings.HasSuffix(name, "priority") || strings.HasSuffix(name, "concurrency") // have a zero of their own
	return ofType && !zero && v.CanInt() && v.IsZero()
}

func setBool(text string, v reflect.Value) error {
	if text != "true" && text != "false" {
		return errors.New("not a boolean")
	}
	v.SetBool(text == "true")
	return nil
}

func wanted(v reflect.Value) string {
	switch {
	case v.Type() == durationType:
		return "a duration such as 30s, 5m or 24h"
	case v.Type() == reflect.TypeFor[Size]():
		return "a size such as 512, 64KiB or 1MiB"
	case v.Kind() == reflect.Bool:
		return "true or false"
	case v.Kind() == reflect.Int:
		return "a whole number"
	}
	return "text"
}

func fieldOf(v reflect.Value, key string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if v.Type().Field(i).Tag.Get("yaml") == key && key != "-" {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func isSecret(t reflect.Type, key string) bool {
	for f := range fields(t) {
		if f.Tag.Get("yaml") == key {
			return f.Tag.Get("secret") == "true"
		}
	}
	return false
}

func keysOf(t reflect.Type) []string {
	var names []string
	for f := range fields(t) {
		names = append(names, f.Tag.Get("yaml"))
	}
	slices.Sort(names)
	return names
}

// fields are the fields of a struct that stand in a file.
func fields(t reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if f := t.Field(i); f.Tag.Get("yaml") != "-" && !yield(f) {
				return
			}
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}
