package redlock

import (
	"context"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
)

// A node timeout must measure the node, and not how busy this process is. So it is counted in
// slices. A slice begins when the one before has ended and this process has run all goroutines
// that were ready. A process that stood still loses one slice, however long it stood, and reads
// the answers that came meanwhile in the next one. All slices together take at most
// mostTimeouts times their sum. The validity of a lease is never counted in this way.
const (
	timeSlices = 4
	// hops is how many goroutines pass an answer on until the bid has it.
	hops = 4
)

// soonest is the shortest wait for a timer: in bubbles of synctest, timers that are due at once
// crash the race detector.
const soonest = time.Nanosecond

// settle lets all ready goroutines run, and those that they wake.
func settle() {
	for range hops {
		runtime.Gosched()
	}
}

// A life is the context of calls that begin and end together, so that they share its
// timer. It ends with the last of them, or when the nodes' time is over. Its deadline is the
// latest instant at which that may be.
type life struct {
	context.Context // has the values, and perhaps an earlier end
	clock           *boot.Clock
	wake            chan<- struct{} // gets a value at the end of each slice, if it has room; nil: no caller waits
	slice           time.Duration
	due, most       boot.Instant
	began           boot.Instant // of the current slice
	unlink          func() bool
	calls           atomic.Int32

	mu     sync.Mutex
	passed int32 // slices
	timer  *time.Timer
	done   chan struct{} // nil: not used yet
	err    error
}

// newLife returns a life for calls with this timeout each. It also ends with ctx.
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

// begin begins the life, with one call whose time runs from now until due, counted in slices.
// It ends at most at the latest.
func (s *life) begin(now, due, most boot.Instant) {
	s.slice, s.due, s.most = max(due.Sub(now)/timeSlices, 1), due, most
	s.calls.Store(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began = now
	s.timer = time.AfterFunc(max(s.next(), soonest), s.tick)
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
		s.began = s.clock.Now()
		if d := s.next(); d > 0 {
			s.timer.Reset(d)
			s.tell()
			return
		}
	}
	s.end(context.DeadlineExceeded)
}

// ran returns how much of their time the calls have used.
func (s *life) ran() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.passed) * s.slice
}

// leave notes the end of a call.
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

// Due returns when the nodes' time is over, if this process runs until then; zero: it is.
func (s *life) Due() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return time.Time{}
	}
	due := s.began.Add(time.Duration(timeSlices-s.passed) * s.slice)
	soon := s.clock.Now().Add(max(s.slice/timeSlices, time.Millisecond)) // the timer may be late
	return s.clock.Time(min(max(due, soon), s.most))
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
