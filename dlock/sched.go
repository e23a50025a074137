package dlock

import (
	"container/heap"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
)

// tick is the longest pause between two looks at the clock while a lease is held. After a sleep
// of the machine, in which timers sleep too, the client notices it within a tick.
const tick = time.Second

// scheduler calls the steps of a client's leases when they are due: renewals, warnings,
// ends. It is one timer and a heap, so that held leases cost no goroutines, and a
// client that holds none costs none.
//
// Its mutex is taken under a lease's and never the other way round.
type scheduler struct {
	clock *boot.Clock

	mu      sync.Mutex
	due     leaseHeap
	timer   *time.Timer
	armed   boot.Instant // when the timer fires; zero: never
	running bool         // a run is under way, and looks again before it ends
	jumps   int64        // clock.Jumps when the leases were last checked
	stopped bool
	idle    sync.Cond // a run has ended
}

// put sets when l's next step is due.
func (s *scheduler) put(l *Lease, at boot.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return
	}
	l.stepAt = at
	if l.index >= 0 {
		heap.Fix(&s.due, int(l.index))
	} else {
		heap.Push(&s.due, l)
	}
	s.arm()
}

// drop removes l, which has no further step.
func (s *scheduler) drop(l *Lease) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.index >= 0 {
		heap.Remove(&s.due, int(l.index))
	}
}

// arm sets the timer for the first step, or for the next tick. A timer that fires earlier is
// left alone: an unnecessary wake-up costs less than setting the timer at every Lock.
func (s *scheduler) arm() {
	if len(s.due) == 0 || s.running {
		return
	}
	now := s.clock.Now()
	at := min(s.due[0].stepAt, now.Add(tick))
	if s.armed != 0 && s.armed <= at {
		return
	}
	s.armed = max(at, 1)
	if s.timer == nil {
		s.timer = time.AfterFunc(at.Sub(now), s.run)
	} else {
		s.timer.Reset(at.Sub(now))
	}
}

// run makes every step that is due. No step blocks.
func (s *scheduler) run() {
	s.mu.Lock()
	s.armed = 0
	if s.running {
		s.mu.Unlock()
		return
	}
	s.running = true
	now := s.clock.Fresh()
	s.recheck(now)
	for ; len(s.due) > 0 && s.due[0].stepAt <= now; now = s.clock.Now() {
		l := heap.Pop(&s.due).(*Lease)
		s.mu.Unlock()
		l.step(now)
		s.mu.Lock()
	}
	s.running = false
	s.arm()
	s.mu.Unlock()
	s.idle.Broadcast()
}

// recheck makes every lease look at its lock after the wall clock jumped: the machine may have
// been stopped in a way that no clock of its own shows. No promise rests on this, because the
// jump is seen late. s.mu is held, except during the leases' steps.
func (s *scheduler) recheck(now boot.Instant) {
	jumps := s.clock.Jumps()
	if jumps == s.jumps {
		return
	}
	s.jumps = jumps
	leases := slices.Clone(s.due)
	s.mu.Unlock()
	for _, l := range leases {
		l.recheck(now)
	}
	s.mu.Lock()
}

// stop ends the timer, and waits for a run that is under way. Leases that are still in the
// heap have no further step.
func (s *scheduler) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	for _, l := range s.due {
		l.index = -1
	}
	s.due = nil
	if s.timer != nil {
		s.timer.Stop()
	}
	for s.running {
		s.idle.Wait()
	}
}

// leaseHeap implements heap.Interface, the earliest step first.
type leaseHeap []*Lease

func (h leaseHeap) Len() int           { return len(h) }
func (h leaseHeap) Less(i, j int) bool { return h[i].stepAt < h[j].stepAt }
func (h leaseHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = int32(i), int32(j)
}

func (h *leaseHeap) Push(x any) {
	l := x.(*Lease)
	l.index = int32(len(*h))
	*h = append(*h, l)
}

func (h *leaseHeap) Pop() any {
	old := *h
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	l.index = -1
	return l
}
