package main

import (
	"context"
	"errors"
	"io"
	"os"
	"sync"

	"github.com/sekali/sekali/client"
)

const (
	// batchLines and batchBytes keep a batch to what a gateway answers in a moment,
	// so that an interruption waits for little.
	batchLines = 200
	batchBytes = 1 << 20
	// batchesInFlight keep the gateway busy while answers travel.
	batchesInFlight = 3
)

// fileSubmit submits the lines of a file.
type fileSubmit struct {
	clientFlags
	gateway  *client.Client
	t        terminal
	progress *progress
}

// many submits a file.
func (c submitCommand) many(ctx context.Context, t terminal) error {
	if !c.alone() {
		return &usageError{"--file goes alone: each of its lines has a key, a type and a payload of its own"}
	}
	in, size, err := openLines(c.File, t.in)
	if err != nil {
		return err
	}
	defer in.Close()
	gateway, err := c.connect(bulkRetries, bulkPause)
	if err != nil {
		return err
	}
	s := &fileSubmit{clientFlags: c.clientFlags, gateway: gateway, t: t, progress: newProgress(t, size, fileWords)}
	lines := newLineReader(in)
	err = s.run(ctx, lines)
	return s.end(ctx, err, lines.number.Load())
}

// openLines opens the file, and tells how large it is; -1 where nobody knows.
func openLines(name string, in io.Reader) (io.ReadCloser, int64, error) {
	if name == "-" {
		return io.NopCloser(in), -1, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, &usageError{"--file: " + err.Error()}
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		return nil, 0, &usageError{"--file: " + name + " is a folder"}
	}
	if err != nil || !info.Mode().IsRegular() {
		return file, -1, nil
	}
	return file, info.Size(), nil
}

// run reads and sends until everything is sent, something ends all sending, or
// ctx ends. What is on its way by then is waited for.
func (s *fileSubmit) run(ctx context.Context, lines *lineReader) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	batches := make(chan batch)
	var senders sync.WaitGroup
	for range batchesInFlight {
		senders.Go(func() {
			if err := s.sendAll(ctx, batches); err != nil {
				stop(err)
			}
		})
	}
	// Not waited for once ctx has ended: nothing interrupts the reading of a pipe,
	// and the process is about to end.
	read := make(chan error, 1)
	go func() {
		read <- s.read(ctx, lines, batches)
	}()
	senders.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return <-read
}

// sendAll sends batches until there are no more. The error ends all sending.
func (s *fileSubmit) sendAll(ctx context.Context, batches <-chan batch) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case b, more := <-batches:
			if !more {
				return nil
			}
			if err := s.submit(ctx, b); err != nil {
				return err
			}
		}
	}
}

// read cuts the lines into batches, and ends those. Lines that cannot be sent are
// refused here.
func (s *fileSubmit) read(ctx context.Context, lines *lineReader, batches chan<- batch) error {
	defer close(batches)
	for {
		b, err := lines.next()
		for _, wrong := range b.wrong {
			if err := s.refuseLine(wrong); err != nil {
				return err
			}
		}
		if len(b.lines) == 0 {
			s.progress.add(b.bytes, counts{})
		} else {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case batches <- b:
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// end says how far it came, and what to do about what is left.
func (s *fileSubmit) end(ctx context.Context, err error, lastLine int64) error {
	done := s.progress.end()
	again := "Give the same command again to go on: what was accepted is replayed, and makes no second job."
	switch {
	case err == nil && done.refused > 0:
		return &someRefusedError{done.refused, "line"}
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &interruptedError{advice: again}
	}
	s.t.note("stopped; line %d was the last one that was read. %s", lastLine, again)
	return s.explained(ctx, err)
}
