package main

import (
	"context"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

// endSignals are the process's SIGINT and SIGTERM. The first one ends a context.
// The second one ends the process at once: whoever sends it will not wait.
type endSignals struct {
	arrived chan os.Signal
	done    chan struct{} // closed once the command has ended
	tell    atomic.Pointer[func(os.Signal)]
	ignored map[os.Signal]bool // were so from the start, and end no process
}

// signalError is why the context of a command has ended.
type signalError struct{ signal os.Signal }

func (e *signalError) Error() string { return "told to end by a signal: " + e.signal.String() }

func (*signalError) Unwrap() error { return context.Canceled }

// untilSignal returns a context that ends with the first signal. stop ends it too,
// and is to be called once.
func untilSignal() (context.Context, *endSignals) {
	ctx, end := context.WithCancelCause(context.Background())
	// Room for both: the second one may come before anybody has looked at the first.
	s := &endSignals{arrived: make(chan os.Signal, 2), done: make(chan struct{}), ignored: map[os.Signal]bool{
		os.Interrupt: signal.Ignored(os.Interrupt), syscall.SIGTERM: signal.Ignored(syscall.SIGTERM),
	}}
	signal.Notify(s.arrived, os.Interrupt, syscall.SIGTERM)
	go func() {
		defer end(nil)
		s.await(func(first os.Signal) { end(&signalError{first}) })
	}()
	return ctx, s
}

func (s *endSignals) stop() { close(s.done) }

// onSecond sets what is said of the second signal before the process ends.
func (s *endSignals) onSecond(tell func(os.Signal)) { s.tell.Store(&tell) }

// await calls first with the first signal, and ends the process with the second one.
// From then on the system's own way with signals is in force again, and that before a
// word is said: a third one ends a process whose log takes no line.
func (s *endSignals) await(first func(os.Signal)) {
	defer signal.Stop(s.arrived)
	came, ok := s.next()
	if !ok {
		return
	}
	first(came)
	if came, ok = s.next(); !ok {
		return
	}
	signal.Stop(s.arrived)
	if tell := s.tell.Load(); tell != nil {
		(*tell)(came)
	}
	if !s.ignored[came] {
		raise(came)
	}
	number, _ := came.(syscall.Signal)
	os.Exit(signalled + int(number))
}

// next is the next signal; false once the command has ended.
func (s *endSignals) next() (os.Signal, bool) {
	select {
	case came := <-s.arrived:
		return came, true
	case <-s.done:
		return nil, false
	}
}

const (
	// deathWait is far more than a signal to oneself needs.
	deathWait = time.Second
	// signalled is added to a signal's number where shells tell of an end by it.
	signalled = 128
)

// raise ends the process as the signal does that nobody has asked for, so that those
// who wait for it see that it was ended.
func raise(by os.Signal) {
	if self, err := os.FindProcess(os.Getpid()); err == nil && self.Signal(by) == nil {
		<-time.NewTimer(deathWait).C
	}
}
