// Package client talks to a Sekali gateway.
//
//	c, err := client.New("http://127.0.0.1:8080")
//	receipt, err := c.Submit(ctx, "invoice_generate", invoice, client.WithKey(client.Key("invoice", order)))
//	result, err := c.Result(ctx, receipt.Key)
//
// What it promises:
//
//   - A call may be repeated by its caller, with the same key, whatever became of
//     it: the gateway accepts a key once. Whoever gives no key finds the one that
//     was made in the receipt, which holds it also when there is an error.
//   - Within a call, only requests that cannot do anything twice are sent again:
//     those that read, those that end in one state however often they come, and
//     those with a key. That happens when no answer came, and when the answer asks
//     for it (409, 429, 503, and the like from proxies on the way), never after a
//     422. Retry-After is obeyed, tries are bounded, and the end of the context
//     ends every wait at once.
//   - Payloads and results keep their bytes: a number of 20 digits stays one.
//   - Words that a later gateway may bring, such as a new status, are passed on as
//     text and never an error.
//   - The token goes to the base URL and nowhere else: redirects are not followed.
//
// Errors are a *Problem, if the gateway refused; an *UnreachableError, if none
// answered; a *NotGatewayError, if something else did; or wrap the error of the
// context. A *JobError tells of a job that ended without a result.
//
// A Client may be used by many goroutines at once. Package wire, below it, is
// generated from the OpenAPI document of the gateway.
package client
