package main_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	sekali "github.com/sekali/sekali/cmd/sekali"
)

// gone is a gateway that is away for longer than one question is repeated.
func gone() []answerOf { return make([]answerOf, 5) }

// Whoever waits goes on while the gateway restarts.
func TestWait_OutlastsARestart(t *testing.T) {
	t.Parallel()
	held := []string{"Preference-Applied", "wait=30"}
	for _, tt := range []struct {
		name   string
		args   []string
		posted bool
		out    string
	}{
		{"result", []string{"result", "k", "--wait", "1m"}, false, `{"n": 1.50}`},
		{"submit", []string{"submit", "pay", "--key", "k", "--wait", "1m"}, true, `{"n": 1.50}`},
		{"status", []string{"status", "k", "--watch"}, false, "succeeded"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			first := []answerOf{{200, accepted, held}}
			d := newDouble(t, map[string][]answerOf{"POST /jobs": first})
			d.answers["GET /jobs/k"] = append(gone(), answerOf{503, `{"code":"shutting-down","title":"t","detail":"d","retryable":true}`, nil}, answerOf{200, succeeded, held})
			if !tt.posted {
				d.answers["GET /jobs/k"] = append(first, d.answers["GET /jobs/k"]...)
			}
			out, notes, code := run(append(tt.args, "--url", d.URL)...)
			if code != 0 || !strings.Contains(out, tt.out) || strings.Count(notes, "\n") != 1 {
				t.Errorf("exit code %d: %s%s", code, out, notes)
			}
			has(t, notes, "cannot be reached", "asking it again")
		})
	}
}

func TestWait_EndsWhereTheGatewayStaysAwayOrRefuses(t *testing.T) {
	t.Parallel()
	held := []string{"Preference-Applied", "wait=1"}
	for name, tt := range map[string]struct {
		then answerOf
		wait string // over only where nothing else ends it
		code int
	}{
		"away":           {answerOf{}, "5s", 4},
		"refused":        {answerOf{404, `{"code":"job-not-found","title":"t","detail":"d"}`, nil}, "1m", 3},
		"asks for hours": {answerOf{429, `{"code":"rate-limited","title":"t","detail":"d","retryable":true}`, []string{"Retry-After", "3580"}}, "1m", 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDouble(t, map[string][]answerOf{"GET /jobs/k": {{200, accepted, held}, tt.then}})
			if out, notes, code := run("result", "k", "--wait", tt.wait, "--url", d.URL); code != tt.code || out != "" {
				t.Errorf("exit code %d: %s%s", code, out, notes)
			}
		})
	}
}

// A stored answer tells of the job as it was accepted.
func TestSubmit_PrintsTheJobAsItIsWhenTheTimeIsOver(t *testing.T) {
	t.Parallel()
	now := strings.ReplaceAll(accepted, `"pending","attempts":0`, `"processing","attempts":3`)
	d := newDouble(t, map[string][]answerOf{
		"POST /jobs":  {{202, accepted, []string{"Preference-Applied", "wait=1", "Job-Status", "processing"}}},
		"GET /jobs/k": {{200, now, []string{"Preference-Applied", "wait=0"}}},
	})
	out, notes, code := run("submit", "pay", "--key", "k", "--wait", "1ns", "-o", "json", "--url", d.URL)
	if code != 5 {
		t.Errorf("exit code %d", code)
	}
	has(t, out, `"status": "processing"`, `"attempts": 3`)
	has(t, notes, "it is processing")
}

// Nothing interrupts the reading of a pipe but the end of the process.
func TestReadJSON_AnInterruptionEndsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		in, end := io.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- sekali.ReadJSON(ctx, in) }()
		synctest.Wait() // until it reads
		cancel()
		if err := <-ended; err == nil || err.Error() != "interrupted" {
			t.Errorf("%v", err)
		}
		_ = end.Close()
	})
}
