package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Mallocs returns how many objects the process has allocated so far.
func (p *Process) Mallocs(ctx context.Context) (float64, error) {
	if p.Name != "sekali" {
		text, err := p.get(ctx, "/mallocs")
		if err != nil {
			return 0, err
		}
		return strconv.ParseFloat(strings.TrimSpace(text), 64)
	}
	return p.Metric(ctx, "go_memstats_mallocs_total")
}

// Metric returns a metric of the gateway that has no labels.
func (p *Process) Metric(ctx context.Context, name string) (float64, error) {
	text, err := p.get(ctx, "/metrics")
	if err != nil {
		return 0, err
	}
	return metric(text, name)
}

func metric(text, name string) (float64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("rig: there is no metric %s", name)
}

// Living is what a process holds in memory that is not garbage.
type Living struct {
	Bytes       float64 // of objects and stacks
	Stacks      float64 // of stacks alone
	Goroutines  int
	Collections int // of garbage, so far
}

// Living reads the gateway's, as its garbage collector last found it: the size of
// the heap at which it will run next is what lived then and a share on top of
// that, and of the stacks. gogc is that share in percent.
func (p *Process) Living(ctx context.Context, gogc float64) (Living, error) {
	text, err := p.get(ctx, "/metrics")
	if err != nil {
		return Living{}, err
	}
	values := map[string]float64{}
	for _, name := range []string{"go_memstats_next_gc_bytes", "go_memstats_stack_inuse_bytes", "go_goroutines", "go_gc_duration_seconds_count"} {
		if values[name], err = metric(text, name); err != nil {
			return Living{}, err
		}
	}
	stacks, share := values["go_memstats_stack_inuse_bytes"], gogc/100
	return Living{
		Bytes:      (values["go_memstats_next_gc_bytes"]-share*stacks)/(1+share) + stacks,
		Stacks:     stacks,
		Goroutines: int(values["go_goroutines"]), Collections: int(values["go_gc_duration_seconds_count"]),
	}, nil
}

// litterRequests are made at a time; each leaves some megabytes of garbage.
const litterRequests = 8

// Litter has the gateway make garbage: it reads large bodies that are no JSON.
func (p *Process) Litter(ctx context.Context) error {
	body := strings.Repeat(" ", 1_000_000)
	for range litterRequests {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+p.Address+"/jobs", strings.NewReader(body))
		if err != nil {
			return fmt.Errorf("rig: %w", err)
		}
		request.Header.Set("Content-Type", "application/json")
		request.Header.Set("Idempotency-Key", "litter")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return fmt.Errorf("rig: litter %s: %w", p.Name, err)
		}
		_, _ = io.Copy(io.Discard, response.Body) // a refusal, whose text nobody needs
		_ = response.Body.Close()
		if response.StatusCode != http.StatusBadRequest {
			return fmt.Errorf("rig: a body that is no JSON got status %d", response.StatusCode)
		}
	}
	return nil
}

// AwaitGoroutines waits until the process has so many goroutines.
func (p *Process) AwaitGoroutines(ctx context.Context, want int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		got, err := p.goroutines(ctx)
		if err != nil {
			return err
		}
		if got >= want {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("rig: %s: %d goroutines, of %d: %w", p.Name, got, want, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func (p *Process) goroutines(ctx context.Context) (int, error) {
	if p.Name != "sekali" {
		l, err := p.Collected(ctx)
		return l.Goroutines, err
	}
	n, err := p.Metric(ctx, "go_goroutines")
	return int(n), err
}

// Collected has a contestant collect its garbage and reads what is left.
func (p *Process) Collected(ctx context.Context) (Living, error) {
	var l Living
	text, err := p.get(ctx, "/living")
	if err != nil {
		return l, err
	}
	if _, err := fmt.Sscan(text, &l.Bytes, &l.Stacks, &l.Goroutines); err != nil {
		return l, fmt.Errorf("rig: memory of %s: %w", p.Name, err)
	}
	return l, nil
}

// Fill has River insert so many jobs.
func (p *Process) Fill(ctx context.Context, jobs int) error {
	_, err := p.get(ctx, "/fill/"+strconv.Itoa(jobs))
	return err
}

// Arrivals returns when a contestant's jobs were picked up, by key.
func (p *Process) Arrivals(ctx context.Context) (map[string]time.Time, error) {
	text, err := p.get(ctx, "/arrivals")
	if err != nil {
		return nil, err
	}
	var nanoseconds map[string]int64
	if err := json.Unmarshal([]byte(text), &nanoseconds); err != nil {
		return nil, fmt.Errorf("rig: arrivals at %s: %w", p.Name, err)
	}
	at := make(map[string]time.Time, len(nanoseconds))
	for key, n := range nanoseconds {
		at[key] = time.Unix(0, n)
	}
	return at, nil
}

func (p *Process) get(ctx context.Context, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.Address+path, nil)
	if err != nil {
		return "", fmt.Errorf("rig: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", fmt.Errorf("rig: ask %s: %w", p.Name, err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("rig: %s%s: %w", p.Name, path, err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("rig: %s%s: status %d: %s", p.Name, path, response.StatusCode, text)
	}
	return string(text), nil
}
