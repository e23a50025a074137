package postgres

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// lockID is the advisory lock of a key: the first eight bytes of the SHA-256 of
// prefix and key. Two keys of one ID wait for each other, which is harmless.
func lockID(prefix, key string) int64 {
	sum := sha256.Sum256([]byte(prefix + key))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// table is what this backend's sessions have or ask for. Advisory locks are
// reentrant within a session, also from shared to exclusive: the server would
// grant a second time what the session has, so the table must refuse it.
type table struct {
	mu    sync.Mutex
	byID  map[int64]*entry
	spare []*entry // for the next key: most are locked for a moment
}

const spares = 64

type entry struct {
	claims []*claim
	change chan struct{}   // closed when a claim changes; nil if nobody waits for that
	line   []chan struct{} // those who wait for the lock, in order; the first's is closed
}

// A claim is one owner's lock, or the wish for it.
type claim struct {
	id    int64
	key   string
	owner string
	mode  driver.Mode
	state claimState // guarded by the table
	since time.Time  // by the local clock; when it was granted
}

type claimState uint8

const (
	asked   claimState = iota // the server has not answered yet
	held                      // granted
	leaving                   // the server was told to unlock
)

func (t *table) entry(id int64) *entry {
	e := t.byID[id]
	if e != nil {
		return e
	}
	if n := len(t.spare); n > 0 {
		e, t.spare = t.spare[n-1], t.spare[:n-1]
	} else {
		e = &entry{}
	}
	t.byID[id] = e
	return e
}

// ask enters c, unless it conflicts with another claim: with one that is held it
// returns that claim's copy; with one that is about to change, a channel that is closed
// when it has.
func (t *table) ask(c *claim) (holder *claim, change <-chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(c.id)
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
	if busy {
		if e.change == nil {
			e.change = make(chan struct{})
		}
		return nil, e.change
	}
	e.claims = append(e.claims, c)
	return nil, nil
}

// granted notes that the server granted c; a claim that a waiting connection made
// enters here, since what it does is no concern of the other sessions until then.
func (t *table) granted(c *claim, entered bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(c.id)
	if !entered {
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
	e := t.byID[c.id]
	if e == nil {
		return
	}
	for i, x := range e.claims {
		if x == c {
			e.claims = slices.Delete(e.claims, i, i+1)
			e.changed()
			break
		}
	}
	t.tidy(c.id, e)
}

func (e *entry) changed() {
	if e.change != nil {
		close(e.change)
		e.change = nil
	}
}

func (t *table) tidy(id int64, e *entry) {
	if len(e.claims) == 0 && len(e.line) == 0 && e.change == nil {
		delete(t.byID, id)
		if len(t.spare) < spares {
			t.spare = append(t.spare, e)
		}
	}
}

// enter puts the caller at the end of those who wait for the lock; the channel is
// closed when it is the first.
func (t *table) enter(id int64) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entry(id)
	turn := make(chan struct{})
	e.line = append(e.line, turn)
	if len(e.line) == 1 {
		close(turn)
	}
	return turn
}

// quit takes the caller out of the line.
func (t *table) quit(id int64, turn chan struct{}) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.byID[id]
	for i, x := range e.line {
		if x != turn {
			continue
		}
		e.line = slices.Delete(e.line, i, i+1)
		if i == 0 && len(e.line) > 0 {
			close(e.line[0])
		}
		break
	}
	t.tidy(id, e)
}
