// Package claims has the locks that this process holds or asks for, and the wait queue of each.
package claims

import (
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
)

// Table has the locks that this backend's sessions hold or ask for. Advisory locks are
// reentrant within a session, even from shared to exclusive: the server would grant a lock
// twice to one session, so the table refuses the second request.
type Table struct {
	mu       sync.Mutex
	byNumber map[advisory.Number]*entry
}

// NewTable returns an empty table.
func NewTable() *Table { return &Table{byNumber: map[advisory.Number]*entry{}} }

type entry struct {
	claims []*Claim
	change chan struct{} // closed when a claim changes; nil: no caller waits for that
	queue  []*Place      // the callers that wait for the lock, in order
}

// A Place is a caller's place in the wait queue of a lock.
type Place struct {
	mode  driver.Mode
	First chan struct{} // closed when it is the first
}

// A Claim is one owner's lock, or its request for the lock.
type Claim struct {
	Number  advisory.Number
	Key     string
	Owner   string
	Mode    driver.Mode
	Waiting bool       // it has a place in the queue
	state   claimState // guarded by the table
	Since   time.Time  // when it was granted, by the local clock
}

type claimState uint8

const (
	asked   claimState = iota // the server has not answered yet
	held                      // granted
	leaving                   // the server was told to unlock
)

func (t *Table) entry(n advisory.Number) *entry {
	e := t.byNumber[n]
	if e == nil {
		e = &entry{}
		t.byNumber[n] = e
	}
	return e
}

// Ask enters c unless it conflicts with another claim. If the other claim is held, Ask returns
// a copy of it; if it is about to change, a channel that is closed after the change. A reader
// does not overtake a writer that waits in this process.
func (t *Table) Ask(c *Claim) (holder *Claim, change <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(c.Number)
	busy := false
	for _, x := range e.claims {
		if x.Mode == driver.Shared && c.Mode == driver.Shared {
			continue
		}
		if x.state == held {
			seen := *x
			return &seen, nil
		}
		busy = true
	}
	if c.Mode == driver.Shared && !c.Waiting && slices.ContainsFunc(e.queue, func(p *Place) bool { return p.mode == driver.Exclusive }) {
		return &Claim{Key: c.Key}, nil
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

// Granted notes that the server granted c. The claim of a waiting connection enters the table
// only here.
func (t *Table) Granted(c *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(c.Number)
	if !slices.Contains(e.claims, c) {
		e.claims = append(e.claims, c)
	}
	c.state, c.Since = held, time.Now()
	e.changed()
}

// Leaving notes that c is being unlocked.
func (t *Table) Leaving(c *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c.state = leaving
}

// Drop removes c.
func (t *Table) Drop(c *Claim) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byNumber[c.Number]
	if e == nil {
		return
	}
	if i := slices.Index(e.claims, c); i >= 0 {
		e.claims = slices.Delete(e.claims, i, i+1)
		e.changed()
	}
	t.tidy(c.Number, e)
}

func (e *entry) changed() {
	if e.change != nil {
		close(e.change)
		e.change = nil
	}
}

func (t *Table) tidy(n advisory.Number, e *entry) {
	if len(e.claims) == 0 && len(e.queue) == 0 && e.change == nil {
		delete(t.byNumber, n)
	}
}

// Queued returns how many callers in this process wait for the lock.
func (t *Table) Queued(n advisory.Number) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.byNumber[n]; e != nil {
		return len(e.queue)
	}
	return 0
}

// Enter puts c at the end of its lock's wait queue.
func (t *Table) Enter(c *Claim) *Place {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(c.Number)
	p := &Place{mode: c.Mode, First: make(chan struct{})}
	e.queue = append(e.queue, p)
	if len(e.queue) == 1 {
		close(p.First)
	}
	return p
}

// Quit takes a place out of the queue.
func (t *Table) Quit(n advisory.Number, p *Place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byNumber[n]
	i := slices.Index(e.queue, p)
	e.queue = slices.Delete(e.queue, i, i+1)
	if i == 0 && len(e.queue) > 0 {
		close(e.queue[0].First)
	}
	t.tidy(n, e)
}

// Hot remembers the keys that callers waited for a moment ago: the next caller that may wait
// for such a key does so at once, without an attempt.
type Hot struct {
	mu   sync.Mutex
	keys map[advisory.Number]time.Time
}

// NewHot returns an empty Hot.
func NewHot() *Hot { return &Hot{keys: map[advisory.Number]time.Time{}} }

const (
	hotFor  = time.Second
	hotKeys = 1024
)

// Note records whether a caller waited for the lock.
func (h *Hot) Note(n advisory.Number, waited bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !waited {
		delete(h.keys, n)
		return
	}
	if len(h.keys) >= hotKeys {
		clear(h.keys)
	}
	h.keys[n] = time.Now()
}

// Is reports whether a caller waited for the lock a moment ago.
func (h *Hot) Is(n advisory.Number) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.keys[n]
	return ok && time.Since(at) < hotFor
}
