package main

import (
	"reflect"

	"github.com/alecthomas/kong"
)

// misnamed are words that other programs know, and what to type here.
var misnamed = map[string]string{
	"--version": "there is no --version: sekali version prints the version",
	"-v":        "there is no -v: sekali version prints the version",
	"-V":        "there is no -V: sekali version prints the version",
	"help":      "there is no command help: sekali --help lists the commands, and sekali COMMAND --help explains one",
}

// misnaming tells of a line that begins with such a word.
func misnaming(args []string) error {
	if len(args) == 0 || misnamed[args[0]] == "" {
		return nil
	}
	return &usageError{misnamed[args[0]]}
}

// checkGiven refuses what was given and is empty: it comes of a variable that is not
// set, and left out it would mean more jobs than anybody wanted, a job without its
// payload, or a gateway without its configuration. An empty --token is nobody's
// mistake: it is what scripts have for a gateway that asks for none.
func checkGiven(line *kong.Context) error {
	command, noting := line.Selected().Target.Addr().Interface().(interface{ wasTyped(flag string) })
	for _, step := range line.Path {
		name, value := givenBy(step)
		switch {
		case value == nil:
		case isEmpty(value.Target) && name != "--token":
			return &usageError{name + " is empty: is a variable not set?"}
		case noting:
			command.wasTyped(name)
		}
	}
	return nil
}

// givenBy is the flag or argument of a step, and its name as people know it.
func givenBy(step *kong.Path) (string, *kong.Value) {
	switch {
	case step.Positional != nil:
		return placeholder(step.Positional.Name), step.Positional
	case step.Flag != nil:
		return "--" + step.Flag.Name, step.Flag.Value
	}
	return "", nil
}

func isEmpty(value reflect.Value) bool {
	if value.Kind() == reflect.Pointer && !value.IsNil() {
		value = value.Elem()
	}
	return value.Kind() == reflect.String && value.Len() == 0
}
