// Package gateway puts Sekali together: configuration, database, HTTP surface
// and dispatcher. The command sekali is a thin shell around it; programs of
// your own can embed it and add executors written in Go:
//
//	cfg := gateway.Default()
//	cfg.TxExecutors = map[string]executor.TxExecutor{"invoice": executor.TxFunc(createInvoice)}
//	g, err := gateway.New(cfg)
//	…
//	err = g.Run(ctx) // serves until ctx ends, then drains
//
// examples/embedded is a whole program.
package gateway
