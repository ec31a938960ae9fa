package gateway

import (
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// prefix of every environment variable that names a key.
const prefix = "SEKALI_"

// plain are the variables that hosting platforms set, by the path of the key.
var plain = map[string]string{"database_url": "DATABASE_URL", "redis_url": "REDIS_URL"}

// notOurs are variables with our prefix that name no key: the client's, the
// ones that a command job gets, those of the tests, and what Kubernetes sets
// in every pod for a service named sekali.
var notOurs = regexp.MustCompile(`^SEKALI_(URL|TOKEN|CONFIG|JOB_ID|KEY|TENANT|ATTEMPT|FENCING_TOKEN|TEST_.*|SERVICE_.*|PORT|PORT_.*)$`)

var notInNames = regexp.MustCompile(`[^A-Z0-9]+`)

func variable(path string) string {
	return prefix + strings.Trim(notInNames.ReplaceAllString(strings.ToUpper(path), "_"), "_")
}

// variables are the names of a key, the ones that win first.
func variables(path string) []string {
	names := []string{variable(path)}
	base, isFile := strings.CutSuffix(path, "_file")
	if name, ok := plain[base]; ok {
		if isFile {
			name += "_FILE"
		}
		names = append(names, name)
	}
	return names
}

// environment sets every key below v that a variable names. Keys of a job type
// can be set for types that stand in the file.
func (l *loader) environment(v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Pointer:
		l.pointer(v, path)
	case reflect.Struct:
		for f := range fields(v.Type()) {
			at := join(path, f.Tag.Get("yaml"))
			field := v.FieldByIndex(f.Index)
			l.environment(field, at)
			if f.Tag.Get("secret") == "true" {
				l.secret(field, at)
			}
		}
	case reflect.Map:
		for _, name := range v.MapKeys() {
			entry := reflect.New(v.Type().Elem()).Elem()
			entry.Set(v.MapIndex(name))
			l.environment(entry, join(path, name.String()))
			v.SetMapIndex(name, entry)
		}
	case reflect.Slice: // argv: a list has no variable
	default:
		if text, name, ok := l.lookup(path); ok {
			l.scalar(text, v, name)
		}
	}
}

// pointer goes into what is there and makes a scalar that a variable names.
func (l *loader) pointer(v reflect.Value, path string) {
	if !v.IsNil() {
		l.environment(v.Elem(), path)
		return
	}
	if v.Type().Elem().Kind() == reflect.Struct {
		return
	}
	if _, _, ok := l.lookup(path); ok {
		v.Set(reflect.New(v.Type().Elem()))
		l.environment(v.Elem(), path)
	}
}

func (l *loader) lookup(path string) (text, name string, ok bool) {
	for _, name := range variables(path) {
		l.known[name] = true
		if text, ok := l.env[name]; ok && text != "" {
			return text, name, true
		}
	}
	return "", "", false
}

// secret reads a secret from the file that …_file names, in the environment or
// the configuration file, unless the secret itself is given more directly.
func (l *loader) secret(v reflect.Value, path string) {
	file, name, inEnv := l.lookup(path + "_file")
	_, _, direct := l.lookup(path)
	if direct {
		if inEnv {
			l.problem(name, file, "is given together with %s; remove one of them", variable(path))
		}
		return
	}
	if !inEnv {
		file, name = l.files[path], path+"_file"
	}
	if file == "" {
		return
	}
	text, err := os.ReadFile(file)
	if err != nil {
		l.problem(name, file, "cannot be read: %v", err)
		return
	}
	if len(strings.TrimSpace(string(text))) == 0 {
		l.problem(name, file, "is empty")
		return
	}
	v.SetString(strings.TrimSpace(string(text)))
}

// unknownVariables reports misspelt variables: one that is silently ignored is
// a setting that somebody believes to be in force.
func (l *loader) unknownVariables() {
	var unknown []string
	for name := range l.env {
		if strings.HasPrefix(name, prefix) && !l.known[name] && !notOurs.MatchString(name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		l.problem(name, "", "is no key of the configuration; see docs/configuration.md")
	}
}
