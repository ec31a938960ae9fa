package executor_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

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
