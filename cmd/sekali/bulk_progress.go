package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/schollz/progressbar/v3"
)

const (
	// barEvery and lineEvery are how often people and logs are told.
	barEvery  = 100 * time.Millisecond
	lineEvery = 5 * time.Second
	barWidth  = 20
)

// counts is what became of many calls.
type counts struct {
	accepted int // now
	replayed int // before
	bound    int // of accepted: to another job with the business key
	skipped  int // there was nothing to do
	refused  int
}

// all is how many calls there were.
func (c counts) all() int { return c.accepted + c.replayed + c.skipped + c.refused }

// words are what counts are called.
type words struct{ accepted, replayed, skipped string }

// progress tells how many calls stand: in a bar on a terminal, else in a line every
// few seconds. It may be used by several goroutines.
type progress struct {
	t     terminal
	words words
	total int64 // bytes; -1: nobody knows
	began time.Time

	mu     sync.Mutex
	bar    *progressbar.ProgressBar // nil: no terminal
	bytes  int64
	counts counts
	told   time.Time
	paused time.Time // until when, as was told
}

func newProgress(t terminal, total int64, w words) *progress {
	now := time.Now()
	p := &progress{t: t, words: w, total: total, began: now, told: now}
	if isTerminal(t.notes) {
		p.bar = progressbar.NewOptions64(total, progressbar.OptionSetWriter(t.notes), progressbar.OptionSetWidth(barWidth), progressbar.OptionThrottle(barEvery),
			progressbar.OptionSetPredictTime(total > 0), progressbar.OptionShowDescriptionAtLineEnd(), progressbar.OptionClearOnFinish())
	}
	return p
}

// add counts what has been done, and tells it if it is time to.
func (p *progress) add(bytes int64, c counts) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bytes += bytes
	p.counts.accepted += c.accepted
	p.counts.replayed += c.replayed
	p.counts.bound += c.bound
	p.counts.skipped += c.skipped
	p.counts.refused += c.refused
	if p.bar != nil {
		p.bar.Describe(p.sofar())
		_ = p.bar.Add64(bytes) // a file that grows shows a full bar
		return
	}
	if time.Since(p.told) >= lineEvery {
		p.told = time.Now()
		p.t.note("%s%s", p.share(), p.sofar())
	}
}

// accepted is how many calls have changed something.
func (p *progress) accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counts.accepted
}

// note says something beside the bar.
func (p *progress) note(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.t.note(format, args...)
}

// pauses tells of a long pause, once where several callers begin theirs together.
func (p *progress) pauses(wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := time.Now().Add(wait)
	if until.Before(p.paused.Add(notedPause)) {
		return
	}
	p.paused = until
	p.clear()
	p.t.note(pauseNote, wait)
}

// write prints something for programs. Its error is *outputError: whoever reads
// the results must not take those that arrived for all.
func (p *progress) write(text []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if isTerminal(p.t.out) {
		p.clear()
	}
	if _, err := p.t.out.Write(text); err != nil {
		return &outputError{err}
	}
	return nil
}

func (p *progress) clear() {
	if p.bar != nil {
		_ = p.bar.Clear()
	}
}

// end takes the bar away and says what has become of everything.
func (p *progress) end() counts {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	p.t.note("%s, in %s", p.sofar(), time.Since(p.began).Round(100*time.Millisecond))
	return p.counts
}

// share is how much of a file is done, and for how long the rest will take.
func (p *progress) share() string {
	if p.total <= 0 || p.bytes == 0 {
		return ""
	}
	left := time.Duration(float64(time.Since(p.began)) * float64(p.total-p.bytes) / float64(p.bytes))
	return fmt.Sprintf("%d %%, %s left: ", 100*p.bytes/p.total, max(left, 0).Round(time.Second))
}

func (p *progress) sofar() string {
	c := p.counts
	parts := []string{fmt.Sprintf("%d %s", c.accepted, p.words.accepted)}
	if p.words.replayed != "" {
		parts = append(parts, fmt.Sprintf("%d %s", c.replayed, p.words.replayed))
	}
	if p.words.skipped != "" {
		parts = append(parts, fmt.Sprintf("%d %s", c.skipped, p.words.skipped))
	}
	parts = append(parts, fmt.Sprintf("%d refused", c.refused))
	text := strings.Join(parts, ", ")
	if c.bound > 0 {
		text += fmt.Sprintf(" (%d of the accepted stand for another job with their business key)", c.bound)
	}
	if spent := time.Since(p.began).Seconds(); spent >= 1 {
		text += fmt.Sprintf(", %.0f/s", float64(c.all())/spent)
	}
	return text
}

// isTerminal reports whether a person looks on.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && (isatty.IsTerminal(file.Fd()) || isatty.IsCygwinTerminal(file.Fd()))
}

var fileWords = words{accepted: "accepted", replayed: "replayed"}
