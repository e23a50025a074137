package redlock

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
)

// A node's time measures the node, and not how busy this process is. So it is counted in
// slices, and each begins when the one before has ended and this process has done what was
// ready to run: a process that stood still loses one slice, however long that was, and reads in
// the next one the answers that came meanwhile. All slices together take at most mostTimeouts
// times their sum. Nothing that a lease rests on is counted so.
const (
	timeSlices   = 4
	mostTimeouts = 5
	// hops is from how many goroutines to the next an answer goes until the bid has it.
	hops = 4
)

// settle lets all goroutines run that are ready to, and those that they wake.
func settle() {
	for range hops {
		runtime.Gosched()
	}
}

// A life is the context of calls that begin and end together, so that they share its
// timer. It ends with the last of them, or when the nodes' time is over. Its deadline is the
// latest instant at which that may be.
type life struct {
	context.Context // the values, and perhaps an earlier end
	clock           *boot.Clock
	wake            chan<- struct{} // gets a value at the end of each slice, if it has room; nil: nobody waits
	slice           time.Duration
	due, most       boot.Instant
	calls           atomic.Int32
	unlink          func() bool

	mu     sync.Mutex
	timer  *time.Timer
	passed int           // slices
	done   chan struct{} // nil: nobody asked for it
	err    error
}

// newLife returns a life that ends with ctx, too, for calls that have this time each.
func newLife(ctx context.Context, clock *boot.Clock, d time.Duration) *life {
	s, now := &life{Context: ctx, clock: clock}, clock.Now()
	due, most := now.Add(d), now.Add(mostTimeouts*d)
	if t, ok := ctx.Deadline(); ok {
		end := now.Add(time.Until(t))
		due, most = min(due, end), min(most, end)
	}
	s.begin(now, due, most)
	if ctx.Done() != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.err == nil {
			s.unlink = context.AfterFunc(ctx, func() { s.finish(ctx.Err()) })
		}
	}
	return s
}

// begin begins the life, with one call that has its time from now until due, as counted in
// slices, and ends at the latest at most.
func (s *life) begin(now, due, most boot.Instant) {
	s.slice, s.due, s.most = max(due.Sub(now)/timeSlices, 1), due, most
	s.calls.Store(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(s.next(), s.tick)
}

// join adds a call, unless the life is over.
func (s *life) join() bool {
	for {
		n := s.calls.Load()
		if n == 0 {
			return false
		}
		if s.calls.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// next returns how long the next slice is.
func (s *life) next() time.Duration { return min(s.slice, s.most.Sub(s.clock.Now())) }

// tick ends a slice.
func (s *life) tick() {
	settle()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.passed++; s.passed < timeSlices && s.err == nil {
		if d := s.next(); d > 0 {
			s.timer.Reset(d)
			s.tell()
			return
		}
	}
	s.end(context.DeadlineExceeded)
}

// ran returns how much of their time the calls have had.
func (s *life) ran() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.passed) * s.slice
}

// leave tells that a call ended.
func (s *life) leave() {
	if s.calls.Add(-1) == 0 {
		s.finish(context.Canceled)
	}
}

func (s *life) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end(err)
}

// end ends the life, unless it has ended. s.mu is held.
func (s *life) end(err error) {
	if s.err != nil {
		return
	}
	s.err = err
	s.timer.Stop()
	if s.unlink != nil {
		s.unlink()
	}
	if s.done != nil {
		close(s.done)
	}
	s.tell()
}

func (s *life) tell() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *life) Deadline() (time.Time, bool) { return s.clock.Time(s.most), true }

func (s *life) Done() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		s.done = make(chan struct{})
		if s.err != nil {
			close(s.done)
		}
	}
	return s.done
}

func (s *life) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// await waits for done, for no longer than so many slices.
func (b *Backend) await(done <-chan struct{}, slice time.Duration, n int) {
	most := b.clock.Now().Add(time.Duration(n) * slice * mostTimeouts)
	t := time.NewTimer(slice)
	defer t.Stop()
	for range n {
		select {
		case <-done:
			return
		case <-t.C:
			settle()
		}
		if b.clock.Now() >= most {
			return
		}
		t.Reset(slice)
	}
}
