// Command sekali is the gateway and the tools around it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

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
)

// cli is the command line: each command has a Run method in a file of its own.
type cli struct {
	Serve     serveCommand     `cmd:"" default:"withargs" help:"Run the gateway (the default command)."`
	Migrate   migrateCommand   `cmd:"" help:"Bring the database schema up, or show how it stands."`
	Cancel    cancelCommand    `cmd:"" help:"Cancel a job: at once, or by asking whoever runs it to stop."`
	Retry     retryCommand     `cmd:"" help:"Bring a failed or cancelled job back, with new attempts."`
	Resolve   resolveCommand   `cmd:"" help:"Settle a job that failed with an unknown outcome."`
	Inspect   inspectCommand   `cmd:"" help:"Show what has happened to a job, and what it means."`
	Executors executorsCommand `cmd:"" help:"Show what runs where, what waits and why."`
	Pause     pauseCommand     `cmd:"" help:"Keep jobs of a type from being started, by any process."`
	Resume    resumeCommand    `cmd:"" help:"Let jobs of a paused type start again."`
	Config    configCommand    `cmd:"" help:"Check or print the configuration."`
	Token     tokenCommand     `cmd:"" help:"Make, list and revoke API keys (auth.mode: api_key)."`
	Health    healthCommand    `cmd:"" help:"Ask a running gateway on this machine whether it serves; for health checks."`
	Version   versionCommand   `cmd:"" help:"Print the version."`
}

func main() {
	os.Exit(run(os.Args[1:], terminal{in: os.Stdin, out: os.Stdout, notes: os.Stderr}))
}

func run(args []string, t terminal) int {
	var c cli
	parser, err := kong.New(&c, kong.Name("sekali"),
		kong.Description("HTTP gateway for background jobs: submit a job with a key as often as you like, its effect happens once."),
		kong.UsageOnError(), kong.Writers(t.out, t.notes))
	if err != nil {
		panic(err) // the struct above is wrong
	}
	chosen, err := parser.Parse(args)
	if err != nil {
		parser.Errorf("%v", err)
		return exitUsage
	}
	ctx, stop := untilSignal()
	defer stop()
	chosen.BindTo(ctx, (*context.Context)(nil))
	chosen.Bind(t)
	if err := chosen.Run(); err != nil {
		fmt.Fprintln(t.notes, "sekali:", err)
		return codeOf(err)
	}
	return 0
}

func codeOf(err error) int {
	var wrong *gateway.ConfigError
	var draft *gateway.DraftError
	var usage *usageError
	var refused *refusedError
	var unreachable *unreachableError
	switch {
	case errors.As(err, &wrong), errors.As(err, &draft), errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &refused):
		return exitRefused
	case errors.As(err, &unreachable):
		return exitUnreachable
	}
	return exitFailed
}

// usageError reports arguments that cannot be meant.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// untilSignal returns a context that ends with the first SIGINT or SIGTERM. The
// second one ends the process at once: whoever sends it will not wait.
func untilSignal() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// configFlags are the flags of every command that reads the configuration.
type configFlags struct {
	Config      string `help:"Configuration file (YAML)." placeholder:"FILE" env:"SEKALI_CONFIG"`
	Listen      string `help:"Address to serve on (listen)." placeholder:"HOST:PORT"`
	DatabaseURL string `help:"sqlite:FILE or postgres://… (database_url)." placeholder:"URL"`
	RedisURL    string `help:"redis://… (redis_url)." placeholder:"URL"`
	LogLevel    string `help:"debug, info, warn or error (log.level)." placeholder:"LEVEL"`
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

type versionCommand struct{}

// Run prints the version.
func (versionCommand) Run() error {
	fmt.Println(version)
	return nil
}
