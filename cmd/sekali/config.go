package main

import (
	"fmt"
	"os"
)

type configCommand struct {
	Check configCheck `cmd:"" help:"Report everything that is wrong with the configuration."`
	Print configPrint `cmd:"" help:"Print the configuration in force, secrets hidden."`
}

type configCheck struct{ configFlags }

// Run reports problems; the exit code is 2 if there are any.
func (c configCheck) Run() error {
	if _, err := c.load(); err != nil {
		return err
	}
	fmt.Println("the configuration is fine")
	return nil
}

type configPrint struct{ configFlags }

// Run prints YAML that could be used as a file, but for the secrets.
func (c configPrint) Run() error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	text, err := cfg.YAML()
	if err != nil {
		return err
	}
	_, err = os.Stdout.Write(text)
	return err
}
