package memory

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// space is the server's side, which its backends share. One mutex guards it, its entries, holds
// and waiters.
type space struct {
	address string
	server  string // identity, like a server's run id

	mu      sync.Mutex
	entries map[string]*entry
	dropped uint64 // the largest dropped counter: new counters start here
	swept   time.Time
	holds   int // how often Hold was called
}

// entry is the state of one key.
type entry struct {
	space   *space
	key     string // with the prefix
	counter uint64 // the largest token that was given, or that a renewal set
	before  uint64 // the counter when the first of the holders came
	holders []hold // one exclusive, or any number of shared ones
	queue   []*waiter
	watches map[*watch]struct{}
	timer   *time.Timer // fires at the next expiry; stopped unless somebody waits or watches
}

// hold is one owner's lock.
type hold struct {
	owner string
	fence uint64
	count uint32 // the tokens of its range: at least one
	mode  driver.Mode
	since time.Time
	until time.Time // zero: until it is released

	backend *Backend // the backend that has it; nil: Hold
	lease   *lease   // nil: not returned to a caller yet, or Hold
}

func (h *hold) expired(now time.Time) bool { return !h.until.IsZero() && !now.Before(h.until) }

// waiter is one Acquire that waits in the queue.
type waiter struct {
	entry       *entry
	backend     *Backend
	req         driver.Request
	ready       chan struct{} // gets a value when one of the fields below is set
	fence       uint64        // the token, after the grant
	interrupted error
}

func (w *waiter) wake() { signal(w.ready) }

// watch is one call of Watch.
type watch struct {
	backend *Backend
	entry   *entry
	ch      chan struct{}
	stop    func() bool
}

func (w *watch) wake() { signal(w.ch) }

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default: // there is a value already: values coalesce
	}
}

// idle is how long a counter is kept after its last use, and how often there is a sweep.
const idle = time.Minute

// entry returns key's entry, and makes it if there is none.
func (s *space) entry(key string, now time.Time) *entry {
	if now.Sub(s.swept) >= idle {
		s.sweep(now)
	}
	if e := s.entries[key]; e != nil {
		return e
	}
	e := &entry{space: s, key: key, counter: s.dropped}
	s.entries[key] = e
	return e
}

// sweep drops the counters that were not used for a while. A counter's value is about the time
// of its last use in microseconds, or larger.
func (s *space) sweep(now time.Time) {
	old := uint64(max(0, now.Add(-idle).UnixMicro()))
	left := map[string]*entry{} // the old map would not give its memory back
	for key, e := range s.entries {
		e.purge(now)
		if e.counter < old && len(e.holders)+len(e.queue)+len(e.watches) == 0 {
			s.dropped = max(s.dropped, e.counter)
			continue
		}
		left[key] = e
	}
	s.entries, s.swept = left, now
}

// take grants the key to req at once, or says why not.
func (e *entry) take(b *Backend, req *driver.Request, now time.Time) (*hold, error) {
	if q := req.Quorum; q != nil && q.Guard > 0 && req.TTL > q.Guard {
		return nil, &driver.RefusedError{Reason: fmt.Sprintf("TTL %v is over the restart guard, %v", req.TTL, q.Guard)}
	}
	e.purge(now)
	for i := range e.holders {
		if h := &e.holders[i]; h.owner == req.Owner && h.mode == req.Mode {
			h.until = end(req, now)
			return h, nil
		}
	}
	if !e.free(req.Mode) || len(e.queue) > 0 {
		return nil, e.held(now)
	}
	counter := e.counter
	if len(e.holders) > 0 { // readers, whose tokens need not be below one another's
		counter = e.before
	}
	if req.ExactFence != 0 && req.ExactFence < counter {
		return nil, &driver.RefusedError{Reason: fmt.Sprintf("the key's counter, %d, is above the token to join at, %d", counter, req.ExactFence)}
	}
	return e.grant(b, req, now), nil
}

// grant makes req's owner a holder. The result is valid until the holders change.
func (e *entry) grant(b *Backend, req *driver.Request, now time.Time) *hold {
	count := max(req.Tokens, 1)
	fence := driver.NextFence(e.counter+uint64(count-1), req.FenceFloor, now)
	if req.ExactFence != 0 {
		fence = req.ExactFence
	}
	if len(e.holders) == 0 {
		e.before = e.counter
	}
	e.counter = max(e.counter, fence)
	e.holders = append(e.holders, hold{owner: req.Owner, fence: fence, count: count, mode: req.Mode, since: now, until: end(req, now), backend: b})
	e.arm(now)
	return &e.holders[len(e.holders)-1]
}

// end returns when the server's lock ends if it grants or renews req now.
func end(req *driver.Request, now time.Time) time.Time {
	if req.TTL == 0 {
		return time.Time{} // until it is released, or its session ends
	}
	ttl := req.TTL
	if req.Quorum != nil {
		ttl += req.Quorum.Grace
	}
	return now.Add(ttl)
}

// free reports whether the holders, if there are any, allow one more of this mode.
func (e *entry) free(mode driver.Mode) bool {
	return len(e.holders) == 0 || mode == driver.Shared && e.holders[0].mode == driver.Shared
}

// held is the verdict for a request that cannot have the key. Of several holders it is about the
// one whose lease ends last. There is at least one: a key that nobody holds has no waiters.
func (e *entry) held(now time.Time) *driver.HeldError {
	last := &e.holders[0]
	for i := range e.holders {
		if h := &e.holders[i]; h.until.IsZero() || !last.until.IsZero() && h.until.After(last.until) {
			last = h
		}
	}
	err := &driver.HeldError{Holder: last.owner, Since: wall(last.since), Server: e.space.server, Clock: wall(now)}
	if last.mode == driver.Shared {
		err.Holder, err.Mode = "", driver.Shared
	}
	if !last.until.IsZero() {
		err.RetryAfter = last.until.Sub(now)
	}
	return err
}

// find returns the hold of exactly this acquisition: its owner and its token.
func (e *entry) find(owner string, fence uint64) *hold {
	for i := range e.holders {
		if h := &e.holders[i]; h.fence == fence && h.owner == owner {
			return h
		}
	}
	return nil
}

// remove frees the hold of exactly this acquisition, if it is there.
func (e *entry) remove(owner string, fence uint64, now time.Time) bool {
	e.purge(now)
	h := e.find(owner, fence)
	if h == nil {
		return false
	}
	h.until = now
	e.settle(now)
	return true
}

var closedChannel = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// lose notes that the lock was taken from l, and tells the leases of its backend that one of them
// is lost.
func (l *lease) lose() {
	if l == nil {
		return
	}
	l.evicted = true
	if b := l.backend; b.lost != nil {
		close(b.lost)
		b.lost = nil
	}
}

// evict takes the key from the matching holders.
func (e *entry) evict(now time.Time, match func(*hold) bool) {
	n := len(e.holders)
	e.holders = slices.DeleteFunc(e.holders, func(h hold) bool {
		if match(&h) {
			h.lease.lose()
			return true
		}
		return false
	})
	if len(e.holders) < n {
		e.settle(now)
	}
}

// purge drops the holders whose time is over. It calls settle to pass the key on, so that a
// caller that comes now does not overtake the queue.
func (e *entry) purge(now time.Time) {
	for i := range e.holders {
		if e.holders[i].expired(now) {
			e.settle(now)
			return
		}
	}
}

// settle updates the key: it drops holders whose time is over, grants the key to the first
// waiters, and signals watchers.
func (e *entry) settle(now time.Time) {
	e.holders = slices.DeleteFunc(e.holders, func(h hold) bool { return h.expired(now) })
	for len(e.queue) > 0 && e.free(e.queue[0].req.Mode) {
		w := e.queue[0]
		e.queue = slices.Delete(e.queue, 0, 1)
		w.fence = e.grant(w.backend, &w.req, now).fence
		w.wake()
	}
	for w := range e.watches {
		w.wake()
	}
	e.arm(now)
}

// arm sets the timer to the next expiry, if there are waiters or watchers.
func (e *entry) arm(now time.Time) {
	var next time.Time
	if len(e.queue)+len(e.watches) > 0 {
		for i := range e.holders {
			if u := e.holders[i].until; !u.IsZero() && (next.IsZero() || u.Before(next)) {
				next = u
			}
		}
	}
	switch {
	case next.IsZero():
		if e.timer != nil {
			e.timer.Stop()
		}
	case e.timer == nil:
		e.timer = time.AfterFunc(next.Sub(now), e.tick)
	default:
		e.timer.Reset(next.Sub(now))
	}
}

func (e *entry) tick() {
	e.space.mu.Lock()
	defer e.space.mu.Unlock()
	now := time.Now()
	e.purge(now)
	e.arm(now)
}

// enqueue puts b's request at the end of the queue.
func (e *entry) enqueue(b *Backend, req *driver.Request, now time.Time) *waiter {
	w := &waiter{entry: e, backend: b, req: *req, ready: make(chan struct{}, 1)}
	e.queue = append(e.queue, w)
	e.arm(now)
	return w
}

// abandon undoes w's request. If w waited for a holder, it returns that holder.
func (e *entry) abandon(w *waiter, now time.Time) *driver.HeldError {
	if w.fence != 0 {
		e.remove(w.req.Owner, w.fence, now)
		return nil
	}
	held := e.held(now)
	if i := slices.Index(e.queue, w); i >= 0 {
		e.queue = slices.Delete(e.queue, i, i+1)
	}
	e.settle(now) // the waiter behind w may get the key now
	return held
}

// wall strips the monotonic reading: a server's clock is a wall clock.
func wall(t time.Time) time.Time { return t.Round(0) }
