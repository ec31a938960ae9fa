package e2e_test

import (
	"bytes"
	"net/http"
	"sync"
	"testing"
)

// invoices is the quick start's table and types.
const invoices = `
job_types:
  invoice_generate:
    executor: sql
    sql:
      setup: create table if not exists invoices (order_id text primary key, total bigint not null)
      statement: insert into invoices (order_id, total) values ({{ .payload.order_id }}, {{ .payload.total }}) returning order_id, total
      existing: select order_id, total from invoices where order_id = {{ .payload.order_id }}
  invoice_count:
    executor: sql
    sql:
      statement: select count(*) as invoices from invoices where order_id = {{ .payload.order_id }}
`

// The main job, as the README shows it: submit, repeat, look, and one row.
func TestMainJob_FiftyParallelSubmitsOfOneKeyWriteOneInvoice(t *testing.T) {
	onGateway(t, invoices, func(t *testing.T, g *gateway) {
		const body = `{"type":"invoice_generate","payload":{"order_id":"1001","total":4200}}`
		answers := make([]answer, 50)
		var wg sync.WaitGroup
		for i := range answers {
			wg.Go(func() { answers[i], _ = g.resent("order-1001", body) })
		}
		wg.Wait()
		fresh := 0
		for _, a := range answers {
			if a.Response == nil {
				t.Fatal("a submit got no answer")
			}
			a.want(t, http.StatusAccepted, "Location: /jobs/order-1001")
			if a.Header.Get("Idempotent-Replayed") == "false" {
				fresh++
			}
			if !bytes.Equal(a.body, answers[0].body) {
				t.Errorf("answers differ:\n%s\n%s", a.body, answers[0].body)
			}
		}
		if fresh != 1 {
			t.Errorf("%d answers say that they are the first one", fresh)
		}
		if j := g.finished("order-1001"); j["status"] != "succeeded" {
			t.Fatalf("job %v", j)
		}
		again := g.submit("order-1001", body).want(t, http.StatusAccepted, "Idempotent-Replayed: true", "Job-Status: succeeded", "Retry-After:")
		if !bytes.Equal(again.body, answers[0].body) {
			t.Errorf("the replay differs:\n%s\n%s", again.body, answers[0].body)
		}
		g.submit("count-1001", `{"type":"invoice_count","payload":{"order_id":"1001"}}`)
		g.finished("count-1001")
		if got := g.get("/jobs/count-1001/result"); string(got.body) != `{"invoices":1}` {
			t.Errorf("the table holds %s", got.body)
		}
	})
}
