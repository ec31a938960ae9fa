// Command sekali is the gateway and the tools around it.
package main

import (
	"context"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/sekali/sekali/gateway"
)

// version is set by the build (-ldflags "-X main.version=…").
var version = "dev"

// Exit codes; config.md's client commands share them.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitRefused     = 3 // by the gateway
	exitUnreachable = 4
	exitUnfinished  = 5   // the job goes on
	exitInterrupted = 130 // as shells have it
)

// cli is the command line: each command has a Run method in a file of its own.
// The groups are those of `sekali --help`.
type cli struct {
	Serve serveCommand `cmd:"" group:"serve" help:"Run the gateway (the default command)."`

	Submit  submitCommand  `cmd:"" group:"jobs" help:"Submit a job, or a file of jobs."`
	Status  statusCommand  `cmd:"" group:"jobs" help:"Show how a job stands, or watch it."`
	List    listCommand    `cmd:"" group:"jobs" help:"List jobs."`
	Result  resultCommand  `cmd:"" group:"jobs" help:"Print the result of a job."`
	Inspect inspectCommand `cmd:"" group:"jobs" help:"Show what has happened to a job, and what it means."`

	Cancel    cancelCommand    `cmd:"" group:"operate" help:"Cancel a job, or many."`
	Retry     retryCommand     `cmd:"" group:"operate" help:"Bring a failed or cancelled job back, or many."`
	Resolve   resolveCommand   `cmd:"" group:"operate" help:"Settle a job that failed with an unknown outcome."`
	Executors executorsCommand `cmd:"" group:"operate" help:"Show what runs where, what waits and why."`
	Schedules schedulesCommand `cmd:"" group:"operate" help:"Show recurring work: when it fired last, and when next."`
	Pause     pauseCommand     `cmd:"" group:"operate" help:"Keep jobs of a type from being started, by any process."`
	Resume    resumeCommand    `cmd:"" group:"operate" help:"Let jobs of a paused type start again."`

	Doctor     doctorCommand     `cmd:"" group:"setup" help:"Look for what is wrong, and say what to do."`
	Migrate    migrateCommand    `cmd:"" group:"setup" help:"Bring the database schema up, or show how it stands."`
	Config     configCommand     `cmd:"" group:"setup" help:"Check or print the configuration."`
	Token      tokenCommand      `cmd:"" group:"setup" help:"Make, list and revoke API keys (auth.mode: api_key)."`
	Health     healthCommand     `cmd:"" group:"setup" help:"Ask a running gateway on this machine whether it serves; for health checks."`
	OpenAPI    openapiCommand    `cmd:"" name:"openapi" group:"setup" help:"Print the OpenAPI document, for generators of clients."`
	Completion completionCommand `cmd:"" group:"setup" help:"Print what lets bash, zsh or fish complete commands and flags."`
	Version    versionCommand    `cmd:"" group:"setup" help:"Print the version."`
}

var groups = kong.ExplicitGroups([]kong.Group{
	{Key: "serve", Title: "Serve:"},
	{Key: "jobs", Title: "Jobs:"},
	{Key: "operate", Title: "Operate:"},
	{Key: "setup", Title: "Set up and look after:"},
})

// helpWidth is what a person reads well; a terminal may be wider.
const helpWidth = 100

func main() {
	os.Exit(run(os.Args[1:], standardTerminal()))
}

func run(args []string, t terminal) int {
	p := newParser(t)
	if len(args) > 0 && args[0] == completeWord {
		return p.complete(args[1:], t)
	}
	if err := misnaming(args); err != nil {
		return p.report(t, nil, err)
	}
	chosen, err := p.kong.Parse(withDefault(args))
	if p.helped {
		return 0
	}
	if err != nil {
		return p.report(t, nodeOf(err), err)
	}
	if err := checkGiven(chosen); err != nil {
		return p.report(t, chosen.Selected(), err)
	}
	ctx, signals := untilSignal()
	defer signals.stop()
	chosen.BindTo(ctx, (*context.Context)(nil))
	chosen.Bind(t, signals)
	if err := chosen.Run(); err != nil {
		return p.report(t, chosen.Selected(), err)
	}
	return 0
}

// withDefault puts in the default command where none is named. The parser could
// do so itself, but knows then no near misses of a command's name.
func withDefault(args []string) []string {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") && args[0] != "-h" && args[0] != "--help" {
		return append([]string{"serve"}, args...)
	}
	return args
}

// configFlags are the flags of every command that reads the configuration.
type configFlags struct {
	Config      string `help:"Configuration file (YAML)." placeholder:"FILE" env:"SEKALI_CONFIG" usage:"[--config FILE]"`
	Listen      string `help:"Address to serve on (listen)." placeholder:"HOST:PORT"`
	DatabaseURL string `help:"sqlite:FILE or postgres://… (database_url)." placeholder:"URL"`
	RedisURL    string `help:"redis://… (redis_url)." placeholder:"URL"`
	LogLevel    string `help:"debug, info, warn or error (log.level)." placeholder:"LEVEL" values:"debug,info,warn,error"`
}

// load reads the configuration; flags win over the environment, that over the file.
func (f configFlags) load() (gateway.Config, error) {
	environ := os.Environ()
	for name, value := range map[string]string{
		"SEKALI_LISTEN": f.Listen, "SEKALI_DATABASE_URL": f.DatabaseURL,
		"SEKALI_REDIS_URL": f.RedisURL, "SEKALI_LOG_LEVEL": f.LogLevel,
	} {
		if value != "" {
			environ = append(environ, name+"="+value)
		}
	}
	return gateway.Load(f.Config, environ)
}
