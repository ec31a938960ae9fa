package main

import "fmt"

type versionCommand struct{ outputFlag }

// Help has the examples.
func (versionCommand) Help() string {
	return `The version is that of the release, or of the commit it was built from.

  sekali version
  sekali version -o json`
}

// Run prints the version.
func (v versionCommand) Run(t terminal) error {
	if v.json() {
		return t.print(map[string]string{"version": version})
	}
	fmt.Fprintln(t.out, version)
	return nil
}
