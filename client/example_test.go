package client_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/sekali/sekali/client"
	"github.com/sekali/sekali/gateway"
)

// exampleGateway runs a gateway on SQLite, whose job type echo succeeds with its
// payload as the result.
func exampleGateway() (url string, stop func()) {
	folder, err := os.MkdirTemp("", "sekali-example-")
	if err != nil {
		panic(err)
	}
	cfg := gateway.Default()
	cfg.Listen, cfg.DatabaseURL = "127.0.0.1:0", "sqlite:"+filepath.Join(folder, "sekali.db")
	g, err := gateway.New(cfg, gateway.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- g.Run(ctx) }()
	select {
	case <-g.Serving():
	case err := <-ended:
		panic(err)
	}
	return g.URL(), func() {
		cancel()
		<-ended
		os.RemoveAll(folder)
	}
}

// Submit once, run once: whoever repeats a call with its key gets the first answer.
func Example() {
	url, stop := exampleGateway()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	c, err := client.New(url)
	if err != nil {
		fmt.Println(err)
		return
	}
	type invoice struct {
		Order string `json:"order"`
		Total int    `json:"total"`
	}
	key := client.Key("invoice", "order-42")
	for range 2 {
		receipt, err := c.Submit(ctx, "echo", invoice{"order-42", 1999}, client.WithKey(key))
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(receipt.Key, "replayed:", receipt.Replayed)
	}
	result, err := c.Result(ctx, key)
	if err != nil {
		fmt.Println(err)
		return
	}
	var made invoice
	if err := result.Decode(&made); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(made.Total)
	// Output:
	// invoice:order-42 replayed: false
	// invoice:order-42 replayed: true
	// 1999
}

// A refusal is a *Problem: its code says what is wrong, and Retryable whether the
// same call may succeed later.
func ExampleProblem() {
	url, stop := exampleGateway()
	defer stop()
	ctx := context.Background()
	c, err := client.New(url)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = c.Submit(ctx, "echo", "one", client.WithKey("k"))
	fmt.Println(err)
	_, err = c.Submit(ctx, "echo", "another", client.WithKey("k"))
	var problem *client.Problem
	if errors.As(err, &problem) {
		fmt.Println(problem.Status, problem.Code == client.CodeIdempotencyKeyReused, problem.Retryable)
	}
	_, err = c.Submit(ctx, "echo", "x", client.WithPriority(200))
	if errors.As(err, &problem) {
		fmt.Println(problem.Code, problem.Errors[0].Pointer)
	}
	// Output:
	// <nil>
	// 422 true false
	// validation-failed /priority
}

// Many jobs at once, each under a key of its own; and all of them again, page by
// page.
func ExampleClient_SubmitBatch() {
	url, stop := exampleGateway()
	defer stop()
	ctx := context.Background()
	c, err := client.New(url)
	if err != nil {
		fmt.Println(err)
		return
	}
	results, err := c.SubmitBatch(ctx, []client.BatchItem{
		{Key: "order-1", Type: "echo", Payload: 1},
		{Key: "order-2", Type: "nothing of the kind"},
		{Key: "order-3", Type: "echo", Payload: 3, Options: []client.SubmitOption{client.WithPriority(5)}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, r := range results {
		if r.Problem != nil {
			fmt.Println(r.Key, r.Status, r.Problem.Code)
			continue
		}
		fmt.Println(r.Key, r.Status, "replayed:", r.Replayed)
	}
	jobs := 0
	for _, err := range c.Jobs(ctx, client.Filter{KeyPrefix: "order-"}) {
		if err != nil {
			fmt.Println(err)
			return
		}
		jobs++
	}
	fmt.Println(jobs, "jobs")
	// Output:
	// order-1 202 replayed: false
	// order-2 400 unknown-job-type
	// order-3 202 replayed: false
	// 2 jobs
}

// A key that is made of what the operation is about survives a crash of the program
// that submits.
func ExampleKey() {
	fmt.Println(client.Key("invoice", "order-42", "2026-03"))
	fmt.Println(client.Key("invoice", "order-42:2026", "03"))
	// Output:
	// invoice:order-42:2026-03
	// invoice:order-42%3A2026:03
}
