package breaker_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/internal/breaker"
)

func TestBreaker_RestsAfterFailuresInARow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(time.Now)
		for range breaker.Failures - 1 {
			b.Report(false)
		}
		b.Report(true)
		for range breaker.Failures {
			if !b.Allow() {
				t.Fatal("it rests before there were enough failures in a row")
			}
			b.Report(false)
		}
		if b.Allow() {
			t.Fatal("it does not rest")
		}
		<-time.After(breaker.Rest - time.Nanosecond)
		if b.Allow() {
			t.Error("the rest is too short")
		}
	})
}

func TestBreaker_OneCallProbesAfterARest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := breaker.New(time.Now)
		for range breaker.Failures {
			b.Report(false)
		}
		for _, reported := range []bool{true, false} { // a probe that failed, and one that was given up
			<-time.After(breaker.Rest)
			if !b.Allow() || b.Allow() {
				t.Fatal("not exactly one probe was allowed")
			}
			if reported {
				b.Report(false)
			}
		}
		<-time.After(breaker.Rest)
		if !b.Allow() {
			t.Fatal("no probe was allowed")
		}
		b.Report(true)
		for range 2 {
			if !b.Allow() {
				t.Error("it rests after a success")
			}
		}
	})
}
