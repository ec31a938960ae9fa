package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sekali/sekali/gateway"
)

type tokenCommand struct {
	Create tokenCreate `cmd:"" help:"Make an API key. It is shown once."`
	List   tokenList   `cmd:"" help:"List the API keys, without their secrets."`
	Revoke tokenRevoke `cmd:"" help:"End an API key. Gateways refuse it within a second."`
}

// Help has the examples.
func (tokenCommand) Help() string {
	return `With auth.mode: api_key every request carries a token, and the tenant is the token's. Tokens are kept in
the database, as hashes: these commands need the database, and no running gateway.

  sekali token create --tenant acme --name ci --permissions submit,read --expires 720h
  sekali token list
  sekali token revoke ID`
}

type tokenCreate struct {
	configFlags
	outputFlag
	Tenant      string         `required:"" help:"Whom the token speaks for."`
	Name        string         `help:"For people."`
	Permissions string         `default:"*" values:"submit,read,operate,manage,proxy,work,work_all" joined:"" help:"Any of submit, read, operate, manage, proxy, work, work_all, joined by commas; * is everything but work_all."`
	Expires     *time.Duration `placeholder:"720h" help:"How long it is good for. Default: until it is revoked."`
}

// Help has the examples.
func (tokenCreate) Help() string {
	return `The token alone goes to standard output, once; nobody can show it again. Permissions: submit (jobs, and
their cancelling), read, operate (retry and resolve), manage (pause and resume), proxy, work (claim and end jobs as
a worker); * is all of them. work_all is work on the jobs of all tenants, and has to be named.

  sekali token create --tenant acme --name ci --permissions submit,read --expires 720h
  TOKEN=$(sekali token create --tenant acme)`
}

// Run makes the token and shows it.
func (t tokenCreate) Run(ctx context.Context, to terminal) error {
	draft := gateway.TokenDraft{Tenant: t.Tenant, Name: t.Name, Permissions: t.Permissions}
	if t.Expires != nil {
		if draft.Expires = *t.Expires; draft.Expires == 0 {
			return &usageError{"--expires must be longer than 0s; leave it out for a token that is good until it is revoked"}
		}
	}
	cfg, err := t.load()
	if err != nil {
		return err
	}
	token, text, err := gateway.CreateToken(ctx, cfg, draft)
	if err != nil {
		return err
	}
	if t.json() {
		return to.print(struct {
			gateway.Token
			Text string `json:"token"`
		}{token, text})
	}
	to.note("token %s of tenant %s; it is shown only now:", token.ID, token.Tenant)
	fmt.Fprintln(to.out, text)
	return nil
}

type tokenList struct {
	configFlags
	outputFlag
}

// Help has the examples.
func (tokenList) Help() string {
	return `Revoked and expired tokens are listed too, oldest first.

  sekali token list
  sekali token list -o json --config sekali.yaml`
}

// Run lists the tokens.
func (t tokenList) Run(ctx context.Context, to terminal) error {
	cfg, err := t.load()
	if err != nil {
		return err
	}
	tokens, err := gateway.ListTokens(ctx, cfg)
	if err != nil {
		return err
	}
	if t.json() {
		return to.print(struct {
			Tokens []gateway.Token `json:"tokens"`
		}{tokens})
	}
	rows := make([][]string, len(tokens))
	for i, one := range tokens {
		rows[i] = []string{
			one.ID, one.Tenant, one.Name, strings.Join(one.Permissions, ","), one.CreatedAt.Format(time.RFC3339),
			orDash(one.ExpiresAt), orDash(one.RevokedAt),
		}
	}
	return to.table([]string{"ID", "TENANT", "NAME", "PERMISSIONS", "CREATED", "EXPIRES", "REVOKED"}, rows)
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

// Help has the examples.
func (tokenRevoke) Help() string {
	return `Every gateway on the database refuses the token within a second. It stays in the list.

  sekali token revoke 4f3a9c`
}

// Run revokes the token.
func (t tokenRevoke) Run(ctx context.Context, to terminal) error {
	cfg, err := t.load()
	if err != nil {
		return err
	}
	if err := gateway.RevokeToken(ctx, cfg, t.ID); err != nil {
		return err
	}
	to.note("token %s is revoked", t.ID)
	return nil
}
