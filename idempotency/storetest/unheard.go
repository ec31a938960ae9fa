package storetest

import (
	"context"
	"sync"
)

// Unheard returns a context with the parent's values that ends when end is called,
// and whose AfterFuncs never run: what a function sees that is done before anybody
// else has heard of the end.
func Unheard(parent context.Context) (ctx context.Context, end func()) {
	u := &unheard{Context: context.WithoutCancel(parent), done: make(chan struct{})}
	return u, sync.OnceFunc(func() { close(u.done) })
}

type unheard struct {
	context.Context
	done chan struct{}
}

// Done implements context.Context.
func (u *unheard) Done() <-chan struct{} { return u.done }

// Err implements context.Context.
func (u *unheard) Err() error {
	select {
	case <-u.done:
		return context.Canceled
	default:
		return nil
	}
}

// AfterFunc is what context.AfterFunc calls; the function it returns stops what has
// not run.
func (u *unheard) AfterFunc(func()) func() bool { return func() bool { return true } }
