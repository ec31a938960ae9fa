package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/sekali/sekali/gateway"
)

type doctorCommand struct {
	configFlags
	outputFlag
}

// Help has the examples.
func (doctorCommand) Help() string {
	return `Looks at the configuration, the database, Redis, clocks, limits and the jobs, and says what is wrong and what
to do. It needs no running gateway, disturbs none, and changes nothing. The exit code is 1 if there is a problem; a warning is none.

  sekali doctor --config sekali.yaml
  sekali doctor -o json | jq '.checks[] | select(.state != "ok")'`
}

// Run looks, and tells.
func (d doctorCommand) Run(ctx context.Context, t terminal) error {
	cfg, err := d.load()
	findings := gateway.ExamineConfig(err)
	if err == nil {
		findings = append(findings, gateway.Examine(ctx, cfg)...)
	}
	counts := map[gateway.FindingState]int{}
	for i, f := range findings {
		if f.Check != "configuration" { // which quotes the file
			findings[i].Seen = unpackaged(f.Seen)
		}
		counts[f.State]++
	}
	if err := d.show(t, findings, counts); err != nil {
		return err
	}
	switch n := counts[gateway.FindingProblem]; n {
	case 0:
		return nil
	case 1:
		return errors.New("doctor: there is one problem")
	default:
		return fmt.Errorf("doctor: there are %d problems", n)
	}
}

func (d doctorCommand) show(t terminal, findings []gateway.Finding, counts map[gateway.FindingState]int) error {
	if d.json() {
		return t.print(struct {
			Checks   []gateway.Finding `json:"checks"`
			Problems int               `json:"problems"`
			Warnings int               `json:"warnings"`
		}{findings, counts[gateway.FindingProblem], counts[gateway.FindingWarning]})
	}
	rows := make([][]string, len(findings))
	for i, f := range findings {
		rows[i] = []string{string(f.State), f.Check, f.Seen}
	}
	if err := t.table([]string{"STATE", "CHECK", "SEEN"}, rows); err != nil {
		return err
	}
	told := map[string]bool{}
	for _, f := range findings {
		if line := f.Check + ": " + f.Do; f.Do != "" && !told[line] {
			if len(told) == 0 {
				fmt.Fprintln(t.out, "\nWhat to do:")
			}
			told[line] = true
			fmt.Fprintln(t.out, "-", plain(line))
		}
	}
	return nil
}
