package executor_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/sekali/sekali/executor"
	"github.com/sekali/sekali/idempotency"
	"github.com/sekali/sekali/job"
)

func ExampleFunc() {
	greet := executor.Func(func(_ context.Context, c job.Claimed) (*job.Result, error) {
		var who struct{ Name string }
		if err := json.Unmarshal(c.Payload, &who); err != nil {
			// No retry makes the payload another one.
			return nil, &job.AttemptError{Code: "bad-payload", Detail: "name is missing", Permanent: true, Err: err}
		}
		return executor.JSON(map[string]string{"greeting": "Hello, " + who.Name})
	})

	result, err := greet.Execute(context.Background(), job.Claimed{Job: job.Job{Payload: []byte(`{"name":"Sekali"}`)}})
	fmt.Println(string(result.Body), err)
	// Output: {"greeting":"Hello, Sekali"} <nil>
}

// A function says what should become of a job that it could not do: nothing
// more, another attempt no earlier than in a while, or a later start that does
// not count as an attempt.
func ExampleFunc_errors() {
	charge := executor.Func(func(_ context.Context, c job.Claimed) (*job.Result, error) {
		switch string(c.Payload) {
		case `"card expired"`:
			return nil, job.Permanent(errors.New("the card has expired"))
		case `"bank busy"`:
			return nil, job.RetryAfter(errors.New("the bank is busy"), 30*time.Second)
		case `"bank closed"`:
			return nil, job.Snooze(8 * time.Hour)
		}
		return executor.JSON("charged")
	})

	for _, payload := range []string{`"card expired"`, `"bank busy"`, `"bank closed"`} {
		_, err := charge.Execute(context.Background(), job.Claimed{Job: job.Job{Payload: []byte(payload)}})
		var e *job.AttemptError
		fmt.Println(errors.As(err, &e), e.Permanent, e.Snooze, e.After)
	}
	// Output:
	// true true false 0s
	// true false false 30s
	// true false true 8h0m0s
}

// captures posts to a bank that keeps no receipts of ours, but can list them.
type captures struct{ listed map[string]string }

func (c captures) Execute(context.Context, job.Claimed) (*job.Result, error) {
	return nil, &job.AttemptError{Code: "bank", Detail: "the bank did not answer", Unknown: true}
}

func (c captures) Reconcile(_ context.Context, claimed job.Claimed) (executor.Reconciliation, error) {
	receipt, found := c.listed[string(claimed.Key)]
	if !found {
		return executor.Reconciliation{Answer: executor.ReconcileNotDone}, nil
	}
	result, err := executor.JSON(receipt)
	return executor.Reconciliation{Answer: executor.ReconcileDone, Result: result}, err
}

// A Go executor that can find out what an attempt did is asked before the job is
// tried again, where its type says on_unknown_outcome: reconcile.
func ExampleReconciler() {
	var bank executor.Reconciler = captures{listed: map[string]string{"order-42": "receipt-7"}}
	for _, key := range []idempotency.Key{"order-42", "order-43"} {
		found, err := bank.Reconcile(context.Background(), job.Claimed{Job: job.Job{Key: key}})
		fmt.Println(key, found.Answer, found.Result != nil, err)
	}
	// Output:
	// order-42 done true <nil>
	// order-43 not_done false <nil>
}

func ExampleKeyTemplate() {
	template, err := executor.NewOperationKey("payment_capture:{{ .payload.provider_event_id }}")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(template.Key(job.Job{Payload: []byte(`{"provider_event_id":"evt_1"}`)}))
	_, err = template.Key(job.Job{Payload: []byte(`{}`)})
	fmt.Println(err)
	// Output:
	// payment_capture:evt_1 <nil>
	// job: operation_key: provider_event_id: is missing
}

// What the function writes through the transaction and the end of the job are
// one commit: the effect happens exactly once.
func ExampleTxFunc() {
	const insertPoints = `insert into points (account, order_key, points) values (?1, ?2, 10)`
	addPoints := executor.TxFunc(func(ctx context.Context, tx *sql.Tx, c job.Claimed) (*job.Result, error) {
		if _, err := tx.ExecContext(ctx, insertPoints, c.Tenant, c.Key); err != nil {
			return nil, fmt.Errorf("insert points: %w", err)
		}
		return executor.JSON(map[string]int{"points": 10})
	})

	// The dispatcher begins and ends the transaction; here the example does.
	ctx := context.Background()
	db, err := sql.Open("sqlite", ":memory:")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	db.SetMaxOpenConns(1) // each connection has a memory of its own
	if _, err := db.ExecContext(ctx, `create table points (account text, order_key text, points integer)`); err != nil {
		fmt.Println(err)
		return
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	done, err := addPoints.ExecuteTx(ctx, tx, job.Claimed{Job: job.Job{Tenant: "acme", Key: idempotency.Key("order-42")}})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(string(done.Result.Body), tx.Commit())
	// Output: {"points":10} <nil>
}
