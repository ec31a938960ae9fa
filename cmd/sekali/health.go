package main

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/sekali/sekali/client"
)

// healthTimeout is how long a health check may take before it counts as failed.
const healthTimeout = 2 * time.Second

type healthCommand struct {
	configFlags
	URL *string `placeholder:"URL" help:"Address of another gateway than that of the configuration. SEKALI_URL is none: a health check is about its own machine."`
}

// Help has the examples.
func (healthCommand) Help() string {
	return `Prints nothing and exits 0 if the gateway that this configuration describes serves: for health checks of
containers, which have no curl. The exit code is 4 if none answers. sekali doctor looks deeper, and needs no
running gateway.

  sekali health
  sekali health --listen 127.0.0.1:9000
  sekali health --url https://jobs.example.com`
}

// Run asks /healthz, once: whoever checks comes back.
func (h healthCommand) Run(ctx context.Context) error {
	address, err := h.address()
	if err != nil {
		return err
	}
	f := clientFlags{URL: address, typedURL: true}
	gateway, err := f.connect(0, 0)
	if err != nil && h.URL == nil {
		return &usageError{"the address of listen makes no URL; give one with --url"}
	}
	if err != nil {
		return err
	}
	got, err := gateway.Do(ctx, client.Request{Path: "/healthz", Timeout: healthTimeout})
	if err == nil {
		err = got.Decode(&struct{}{})
	}
	var unreachable *client.UnreachableError
	var other *client.NotGatewayError
	if errors.As(err, &unreachable) || errors.As(err, &other) {
		return &unreachableError{text: err.Error() + "; start a gateway there, or name its address with --listen (listen) or --url", err: err}
	}
	return f.explained(ctx, err)
}

// address is where the gateway is asked: on every address of this machine means on
// its own too.
func (h healthCommand) address() (string, error) {
	if h.URL != nil {
		return *h.URL, nil
	}
	cfg, err := h.load()
	if err != nil {
		return "", err
	}
	host, port, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return "", err
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost"
	}
	return "http://" + net.JoinHostPort(host, port), nil
}
