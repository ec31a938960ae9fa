package batching_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sekali/sekali/internal/batching"
)

type call = batching.Call[int, int]

// double answers each call with twice its number.
func double(_ context.Context, calls []*call) {
	for _, c := range calls {
		c.Answer(2 * c.In)
	}
}

// gate is a flush that waits to be let go, and notes what went together.
type gate struct {
	mu      sync.Mutex
	flushes [][]int
	open    chan struct{}
}

func newGate() *gate { return &gate{open: make(chan struct{})} }

func (g *gate) flush(ctx context.Context, calls []*call) {
	var numbers []int
	for _, c := range calls {
		numbers = append(numbers, c.In)
	}
	g.mu.Lock()
	g.flushes = append(g.flushes, numbers)
	g.mu.Unlock()
	<-g.open
	double(ctx, calls)
}

// sizes are how many calls each flush had.
func (g *gate) sizes() []int {
	g.mu.Lock()
	defer g.mu.Unlock()
	var sizes []int
	for _, f := range g.flushes {
		sizes = append(sizes, len(f))
	}
	return sizes
}

func TestBatcher_WhoComesDuringAFlushGoesTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		b := batching.New(batching.Config[int]{Flushes: 2, Size: 5}, g.flush)
		var wg sync.WaitGroup
		for n := range 14 {
			wg.Go(func() {
				if out, err := b.Do(t.Context(), n); out != 2*n || err != nil {
					t.Errorf("%d: %d, %v", n, out, err)
				}
			})
			synctest.Wait()
		}
		if got := g.sizes(); !slices.Equal(got, []int{1, 1}) {
			t.Errorf("before the first answer: %v", got)
		}
		close(g.open)
		wg.Wait()
		// Two flushes are under way at once: which of them notes its calls first is open.
		slices.SortFunc(g.flushes, slices.Compare)
		want := [][]int{{0}, {1}, {2, 3, 4, 5, 6}, {7, 8, 9, 10, 11}, {12, 13}}
		if got := g.flushes; !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("flushes %v", got)
		}
		if out, err := b.Do(t.Context(), 100); out != 200 || err != nil {
			t.Errorf("idle again: %d, %v", out, err)
		}
	})
}

func TestBatcher_HeavyCallsGoAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		b := batching.New(batching.Config[int]{Weigh: func(n int) int { return n }, Weight: 10}, g.flush)
		var wg sync.WaitGroup
		for _, n := range []int{0, 50, 4, 6, 3} {
			wg.Go(func() { _, _ = b.Do(t.Context(), n) })
			synctest.Wait()
		}
		close(g.open)
		wg.Wait()
		if got := g.flushes; !slices.EqualFunc(got, [][]int{{0}, {50}, {4, 6}, {3}}, slices.Equal) {
			t.Errorf("flushes %v", got)
		}
	})
}

func TestBatcher_RefusesWhenTooManyWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		b := batching.New(batching.Config[int]{Room: 1}, g.flush)
		var wg sync.WaitGroup
		for n := range 2 {
			wg.Go(func() {
				if _, err := b.Do(t.Context(), n); err != nil {
					t.Errorf("%d: %v", n, err)
				}
			})
			synctest.Wait()
		}
		if _, err := b.Do(t.Context(), 3); !errors.Is(err, batching.ErrFull) {
			t.Errorf("no room: %v", err)
		}
		close(g.open)
		wg.Wait()
	})
}

// Who waits may leave; who is in a flush gets its answer, however late.
func TestBatcher_PatienceEndsWhenTheFlushBegins(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		b := batching.New(batching.Config[int]{Patience: time.Second}, g.flush)
		var wg sync.WaitGroup
		wg.Go(func() {
			if out, err := b.Do(t.Context(), 1); out != 2 || err != nil {
				t.Errorf("in the flush: %d, %v", out, err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if _, err := b.Do(t.Context(), 2); !errors.Is(err, batching.ErrPatience) {
				t.Errorf("waiting: %v", err)
			}
		})
		left, leave := context.WithCancelCause(t.Context())
		cause := errors.New("left")
		wg.Go(func() {
			if _, err := b.Do(left, 3); !errors.Is(err, cause) {
				t.Errorf("left: %v", err)
			}
		})
		synctest.Wait()
		leave(cause)
		<-time.After(2 * time.Second)
		close(g.open)
		wg.Wait()
		if got := g.flushes; !slices.EqualFunc(got, [][]int{{1}}, slices.Equal) {
			t.Errorf("flushes %v", got)
		}
	})
}

func TestBatcher_CallersMayLeaveAFlush(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := newGate()
		b := batching.New(batching.Config[int]{Leave: true}, g.flush)
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = b.Do(t.Context(), 1) })
		synctest.Wait()
		wg.Go(func() { _, _ = b.Do(t.Context(), 2) }) // to be flushed by a goroutine of its own
		synctest.Wait()
		left, leave := context.WithCancelCause(t.Context())
		cause := errors.New("left")
		wg.Go(func() {
			if out, err := b.Do(left, 3); out != 0 || !errors.Is(err, cause) {
				t.Errorf("left: %d, %v", out, err)
			}
		})
		synctest.Wait()
		g.open <- struct{}{} // for the first one; the other two are under way now
		synctest.Wait()
		leave(cause)
		synctest.Wait()
		close(g.open)
		wg.Wait()
		if got := g.flushes; !slices.EqualFunc(got, [][]int{{1}, {2, 3}}, slices.Equal) {
			t.Errorf("flushes %v", got)
		}
	})
}

func TestBatcher_APanicAnswersThoseThatAreLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		open := make(chan struct{})
		b := batching.New(batching.Config[int]{}, func(_ context.Context, calls []*call) {
			<-open
			for _, c := range calls {
				if c.In == 2 {
					panic("two")
				}
				c.Answer(c.In)
			}
		})
		outs := make([]error, 4)
		var wg sync.WaitGroup
		for n := range outs {
			wg.Go(func() { _, outs[n] = b.Do(t.Context(), n) })
			synctest.Wait()
		}
		close(open)
		wg.Wait()
		if outs[0] != nil || outs[1] != nil || !errors.Is(outs[2], batching.ErrPanic) || !errors.Is(outs[3], batching.ErrPanic) {
			t.Errorf("%v", outs)
		}
		if out, err := b.Do(t.Context(), 7); out != 7 || err != nil {
			t.Errorf("afterwards: %d, %v", out, err)
		}
	})
}

// A slow call does not hold up its neighbours, nor the flushes that follow.
func TestBatcher_AnswersMayComeLate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan int)
		b := batching.New(batching.Config[int]{}, func(_ context.Context, calls []*call) {
			for _, c := range calls {
				switch c.In {
				case 0:
					c.Later(func() int { panic("zero") })
				case 1:
					c.Later(func() int { return <-slow })
				default:
					c.Answer(c.In)
				}
			}
		})
		late := make(chan int)
		go func() {
			out, _ := b.Do(t.Context(), 1)
			late <- out
		}()
		synctest.Wait()
		for n := 2; n < 5; n++ {
			if out, err := b.Do(t.Context(), n); out != n || err != nil {
				t.Errorf("%d: %d, %v", n, out, err)
			}
		}
		slow <- 10
		if out := <-late; out != 10 {
			t.Errorf("late: %d", out)
		}
		if _, err := b.Do(t.Context(), 0); !errors.Is(err, batching.ErrPanic) {
			t.Errorf("a late panic: %v", err)
		}
	})
}

func BenchmarkBatcher(b *testing.B) {
	batcher := batching.New(batching.Config[int]{Flushes: 2}, double)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, _ = batcher.Do(b.Context(), 1)
		}
	})
}
