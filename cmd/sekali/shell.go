package main

import (
	"regexp"
	"strings"
)

// shellWord is a key as a shell takes it: clients choose keys, and people paste what
// they read.
func shellWord(key string) string {
	if plainWord.MatchString(key) {
		return key
	}
	return "'" + strings.ReplaceAll(key, "'", `'\''`) + "'"
}

var plainWord = regexp.MustCompile(`^[A-Za-z0-9_.:/@%+=-]+$`)

// argument is a key as an argument of a command: one that begins with a dash would
// be a flag.
func argument(key string) string {
	if strings.HasPrefix(key, "-") {
		return "-- " + shellWord(key)
	}
	return shellWord(key)
}

// flagName is a parameter's name as a flag's.
func flagName(parameter string) string { return strings.ReplaceAll(parameter, "_", "-") }
