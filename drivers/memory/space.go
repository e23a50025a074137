package memory

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// space is the server's side, which its backends share. One mutex guards it, its entries, leases
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
	key     string   // with the prefix
	counter uint64   // the largest token that was given, or that a renewal set
	before  uint64   // the counter when the first of the holders came
	holders []*lease // one exclusive, or any number of shared ones
	queue   []*waiter
	watches map[*watch]struct{}
	timer   *time.Timer // fires at the next expiry; stopped unless somebody waits or watches
}

// waiter is one Acquire that waits in the queue.
type waiter struct {
	entry       *entry
	backend     *Backend
	req         driver.Request
	ready       chan struct{} // gets a value when one of the fields below is set
	lease       *lease        // after the grant
	interrupted error
}

func (w *waiter) wake() { signal(w.ready) }

// watch is one call of Watch.
type watch struct {
	backend *Backend
	entry   *entry
	ch      chan struct{}
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
	old := uint64(now.Add(-idle).UnixMicro()) // before 1970 all go
	left := map[string]*entry{}               // the old map would not give its memory back
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
func (e *entry) take(b *Backend, req *driver.Request, now time.Time) (*lease, error) {
	if q := req.Quorum; q != nil && q.Guard != 0 && req.TTL > q.Guard {
		return nil, &driver.RefusedError{Reason: fmt.Sprintf("TTL %v is over the restart guard, %v", req.TTL, q.Guard)}
	}
	e.purge(now)
	for _, l := range e.holders {
		if l.owner == req.Owner && l.mode == req.Mode {
			l.backend.Store(b)
			l.until = end(req, now)
			return l, nil
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

// grant makes req's owner a holder.
func (e *entry) grant(b *Backend, req *driver.Request, now time.Time) *lease {
	fence := driver.NextFence(e.counter+uint64(max(req.Tokens, 1)-1), req.FenceFloor, now)
	if req.ExactFence != 0 {
		fence = req.ExactFence
	}
	if len(e.holders) == 0 {
		e.before = e.counter
	}
	e.counter = max(e.counter, fence)
	l := &lease{entry: e, owner: req.Owner, fence: fence, tokens: req.Tokens, mode: req.Mode, since: now, until: end(req, now)}
	l.backend.Store(b)
	if req.Quorum != nil {
		l.grace = req.Quorum.Grace
	}
	e.holders = append(e.holders, l)
	e.arm(now)
	return l
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
	last := e.holders[0]
	for _, l := range e.holders {
		if l.until.IsZero() || !last.until.IsZero() && l.until.After(last.until) {
			last = l
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

// remove frees the key of a holder, if it is one still.
func (e *entry) remove(l *lease, now time.Time) bool {
	e.purge(now)
	if !slices.Contains(e.holders, l) {
		return false
	}
	l.until = now
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
	l.evicted = true
	if b := l.backend.Load(); b != nil && b.lost != nil {
		close(b.lost)
		b.lost = nil
	}
}

// evict takes the key from the matching holders.
func (e *entry) evict(now time.Time, match func(*lease) bool) {
	for _, l := range e.holders {
		if match(l) {
			l.lose()
			l.until = now
		}
	}
	e.purge(now)
}

// purge drops the holders whose time is over. It calls settle to pass the key on, so that a
// caller that comes now does not overtake the queue.
func (e *entry) purge(now time.Time) {
	if slices.ContainsFunc(e.holders, func(l *lease) bool { return l.expired(now) }) {
		e.settle(now)
	}
}

// settle updates the key: it drops holders whose time is over, grants the key to the first
// waiters, and signals watchers.
func (e *entry) settle(now time.Time) {
	e.holders = slices.DeleteFunc(e.holders, func(l *lease) bool { return l.expired(now) })
	for len(e.queue) > 0 && e.free(e.queue[0].req.Mode) {
		w := e.queue[0]
		e.queue = slices.Delete(e.queue, 0, 1)
		w.lease = e.grant(w.backend, &w.req, now)
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
		for _, l := range e.holders {
			if u := l.until; !u.IsZero() && (next.IsZero() || u.Before(next)) {
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
	e.arm(now) // a holder's time may have grown since
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
	if w.lease != nil {
		e.remove(w.lease, now)
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
