package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/sekali/sekali/gateway"
)

type tokenCommand struct {
	Create tokenCreate `cmd:"" help:"Make an API key. It is shown once."`
	List   tokenList   `cmd:"" help:"List the API keys, without their secrets."`
	Revoke tokenRevoke `cmd:"" help:"End an API key. Gateways refuse it within a second."`
}

// outputFlag chooses between text for people and JSON for programs.
type outputFlag struct {
	Output string `short:"o" enum:"text,json" default:"text" help:"text or json."`
}

type tokenCreate struct {
	configFlags
	outputFlag
	Tenant      string        `required:"" help:"Whom the token speaks for."`
	Name        string        `help:"For people."`
	Permissions string        `default:"*" help:"Any of submit, read, operate, manage, proxy, joined by commas; * is everything."`
	Expires     time.Duration `help:"How long it is good for, e.g. 720h. Default: until it is revoked."`
}

// Run makes the token and shows it.
func (t tokenCreate) Run(ctx context.Context) error {
	cfg, err := t.load()
	if err != nil {
		return err
	}
	token, text, err := gateway.CreateToken(ctx, cfg, gateway.TokenDraft{
		Tenant: t.Tenant, Name: t.Name, Permissions: t.Permissions, Expires: t.Expires,
	})
	if err != nil {
		return err
	}
	if t.Output == "json" {
		return writeJSON(os.Stdout, struct {
			gateway.Token
			Text string `json:"token"`
		}{token, text})
	}
	// The token alone goes to standard output: TOKEN=$(sekali token create …).
	fmt.Fprintf(os.Stderr, "token %s of tenant %s; it is shown only now:\n", token.ID, token.Tenant)
	fmt.Println(text)
	return nil
}

type tokenList struct {
	configFlags
	outputFlag
}

// Run lists the tokens.
func (t tokenList) Run(ctx context.Context) error {
	cfg, err := t.load()
	if err != nil {
		return err
	}
	tokens, err := gateway.ListTokens(ctx, cfg)
	if err != nil {
		return err
	}
	if t.Output == "json" {
		return writeJSON(os.Stdout, struct {
			Tokens []gateway.Token `json:"tokens"`
		}{tokens})
	}
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "ID\tTENANT\tNAME\tPERMISSIONS\tCREATED\tEXPIRES\tREVOKED")
	for _, one := range tokens {
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", one.ID, one.Tenant, one.Name, strings.Join(one.Permissions, ","),
			one.CreatedAt.Format(time.RFC3339), orDash(one.ExpiresAt), orDash(one.RevokedAt))
	}
	return table.Flush()
}

func orDash(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return t.Format(time.RFC3339)
}

type tokenRevoke struct {
	configFlags
	ID string `arg:"" help:"The id of the token, as token list shows it."`
}

// Run revokes the token.
func (t tokenRevoke) Run(ctx context.Context) error {
	cfg, err := t.load()
	if err != nil {
		return err
	}
	if err := gateway.RevokeToken(ctx, cfg, t.ID); err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "token %s is revoked\n", t.ID)
	return nil
}

func writeJSON(w io.Writer, document any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(document)
}
