package postgres

import (
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// table has the locks that this backend's sessions hold or ask for. Advisory locks are
// reentrant within a session, also from shared to exclusive: the server would grant a lock
// twice to one session, so the table must refuse the second request.
type table struct {
	mu       sync.Mutex
	byNumber map[lockNumber]*entry
}

type entry struct {
	claims []*claim
	change chan struct{} // closed when a claim changes; nil if nobody waits for that
	queue  []*place      // those who wait for the lock, in order
}

// A place is a caller's place in the wait queue of a lock.
type place struct {
	mode  driver.Mode
	first chan struct{} // closed when it is the first
}

// A claim is one owner's lock, or the wish for it.
type claim struct {
	number  lockNumber
	key     string
	owner   string
	mode    driver.Mode
	waiting bool       // it has a place in the queue
	state   claimState // guarded by the table
	since   time.Time  // by the local clock; when it was granted
}

type claimState uint8

const (
	asked   claimState = iota // the server has not answered yet
	held                      // granted
	leaving                   // the server was told to unlock
)

func (t *table) entry(n lockNumber) *entry {
	e := t.byNumber[n]
	if e == nil {
		e = &entry{}
		t.byNumber[n] = e
	}
	return e
}

// ask enters c, unless it conflicts with another claim: with one that is held it
// returns that claim's copy; with one that is about to change, a channel that is closed
// when it has. A reader does not pass a writer that waits in this process.
func (t *table) ask(c *claim) (holder *claim, change <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(c.number)
	busy := false
	for _, x := range e.claims {
		if x.mode == driver.Shared && c.mode == driver.Shared {
			continue
		}
		if x.state == held {
			seen := *x
			return &seen, nil
		}
		busy = true
	}
	if c.mode == driver.Shared && !c.waiting && slices.ContainsFunc(e.queue, func(p *place) bool { return p.mode == driver.Exclusive }) {
		return &claim{key: c.key}, nil
	}
	if busy {
		if e.change == nil {
			e.change = make(chan struct{})
		}
		return nil, e.change
	}
	e.claims = append(e.claims, c)
	return nil, nil
}

// granted notes that the server granted c. The claim of a waiting connection enters
// here: until then it does not concern the other sessions.
func (t *table) granted(c *claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(c.number)
	if !slices.Contains(e.claims, c) {
		e.claims = append(e.claims, c)
	}
	c.state, c.since = held, time.Now()
	e.changed()
}

// leave notes that c is being unlocked.
func (t *table) leave(c *claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.state = leaving
}

// drop forgets c.
func (t *table) drop(c *claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byNumber[c.number]
	if e == nil {
		return
	}
	if i := slices.Index(e.claims, c); i >= 0 {
		e.claims = slices.Delete(e.claims, i, i+1)
		e.changed()
	}
	t.tidy(c.number, e)
}

func (e *entry) changed() {
	if e.change != nil {
		close(e.change)
		e.change = nil
	}
}

func (t *table) tidy(n lockNumber, e *entry) {
	if len(e.claims) == 0 && len(e.queue) == 0 && e.change == nil {
		delete(t.byNumber, n)
	}
}

// queued reports whether somebody in this process waits for the lock.
func (t *table) queued(n lockNumber) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byNumber[n]
	return e != nil && len(e.queue) > 0
}

// enter puts c at the end of its lock's wait queue.
func (t *table) enter(c *claim) *place {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(c.number)
	p := &place{mode: c.mode, first: make(chan struct{})}
	e.queue = append(e.queue, p)
	if len(e.queue) == 1 {
		close(p.first)
	}
	return p
}

// quit takes a place out of the queue.
func (t *table) quit(n lockNumber, p *place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byNumber[n]
	i := slices.Index(e.queue, p)
	e.queue = slices.Delete(e.queue, i, i+1)
	if i == 0 && len(e.queue) > 0 {
		close(e.queue[0].first)
	}
	t.tidy(n, e)
}
