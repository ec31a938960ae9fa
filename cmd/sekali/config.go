package main

import (
	"errors"
	"fmt"

	"github.com/sekali/sekali/gateway"
)

type configCommand struct {
	Check configCheck `cmd:"" help:"Report everything that is wrong with the configuration."`
	Print configPrint `cmd:"" help:"Print the configuration in force, secrets hidden."`
}

// Help has the examples.
func (configCommand) Help() string {
	return `The configuration is a file, the environment over it, and flags over both. docs/configuration.md lists
every key.

  sekali config check --config sekali.yaml
  SEKALI_DISPATCHER_SLOTS=8 sekali config print`
}

type configCheck struct {
	configFlags
	outputFlag
}

// Help has the examples.
func (configCheck) Help() string {
	return `Reads the file and the environment as the gateway would, starts nothing, and reports all problems at
once. The exit code is 2 if there are any.

  sekali config check --config sekali.yaml
  sekali config check -o json`
}

// Run reports problems; the exit code is 2 if there are any.
func (c configCheck) Run(t terminal) error {
	_, err := c.load()
	if c.json() {
		return errors.Join(err, t.print(map[string]any{"problems": problemsOf(err)}))
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(t.out, "the configuration is fine")
	return nil
}

// configProblem is one thing that is wrong with a configuration.
type configProblem struct {
	Path  string `json:"path"`
	Value string `json:"value,omitempty"`
	Want  string `json:"want"`
}

func problemsOf(err error) []configProblem {
	list := []configProblem{}
	var wrong *gateway.ConfigError
	if errors.As(err, &wrong) {
		for _, p := range wrong.Problems {
			list = append(list, configProblem(p))
		}
	}
	return list
}

type configPrint struct{ configFlags }

// Help has the examples.
func (configPrint) Help() string {
	return `Prints YAML that could be used as a file, with every default filled in. Secrets are hidden.

  sekali config print --config sekali.yaml
  SEKALI_LOG_LEVEL=debug sekali config print`
}

// Run prints YAML that could be used as a file, but for the secrets.
func (c configPrint) Run(t terminal) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	text, err := cfg.YAML()
	if err != nil {
		return err
	}
	_, err = t.out.Write(text)
	return err
}
