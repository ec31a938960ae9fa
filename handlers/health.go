package handlers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sekali/sekali/api"
)

// checkTimeout bounds one check, so that a database that does not answer still
// leaves an answer within the second that probes wait by default.
const checkTimeout = 300 * time.Millisecond

// Check is one part that the process depends on.
type Check struct {
	Name  string
	Fatal bool // without it the process cannot serve; else it is degraded
	Check func(ctx context.Context) error
}

// Liveness is the document of /healthz.
type Liveness struct {
	Status string `json:"status"` // ok
}

// Readiness is the document of /readyz.
type Readiness struct {
	Status   string   `json:"status"` // ready, degraded or unavailable
	Degraded []string `json:"degraded"`
	Failed   []string `json:"failed"`
}

// Live answers /healthz: 200 while the process serves, whatever it depends on.
//
//	@ID	getHealth
//	@Summary	Ask whether the process serves
//	@Description	It asks nothing of what the process depends on: restart the process if there is no answer.
//	@Tags	probes
//	@Produce	json
//	@Success	200 {object} Liveness "It does."
//	@Router	/healthz [get]
func Live(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Cache-Control", "no-store")
	api.WriteJSON(w, http.StatusOK, Liveness{Status: "ok"})
	return nil
}

// Ready answers /readyz: 503 if a fatal check fails, 200 otherwise, with the
// names of the checks that failed. What they said is for the log.
//
//	@ID	getReadiness
//	@Summary	Ask whether the process can take work
//	@Description	Send requests elsewhere while it cannot.
//	@Tags	probes
//	@Produce	json
//	@Success	200 {object} Readiness "It can; degraded names parts that it does without."
//	@Success	503 {object} Readiness "It cannot; failed names why."
//	@Router	/readyz [get]
func Ready(checks []Check) Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		doc, err := ask(r.Context(), checks)
		api.ReportOf(r.Context()).Err = err
		status := http.StatusOK
		if len(doc.Failed) > 0 {
			status = http.StatusServiceUnavailable
		}
		w.Header().Set("Cache-Control", "no-store")
		api.WriteJSON(w, status, doc)
		return nil
	}
}

func ask(ctx context.Context, checks []Check) (Readiness, error) {
	doc := Readiness{Status: "ready", Degraded: []string{}, Failed: []string{}}
	var errs []error
	for _, c := range checks {
		err := c.ask(ctx)
		if err == nil {
			continue
		}
		errs = append(errs, fmt.Errorf("handlers: %s is not ready: %w", c.Name, err))
		if c.Fatal {
			doc.Failed = append(doc.Failed, c.Name)
			continue
		}
		doc.Degraded = append(doc.Degraded, c.Name)
	}
	switch {
	case len(doc.Failed) > 0:
		doc.Status = "unavailable"
	case len(doc.Degraded) > 0:
		doc.Status = "degraded"
	}
	return doc, errors.Join(errs...)
}

func (c Check) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return c.Check(ctx)
}
