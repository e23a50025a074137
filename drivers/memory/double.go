package memory

import (
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// What tests of one's own code need: contention, loss, outage.

// Hold lets another owner take key, until release is called: acquiring it answers
// ErrHeld, or waits. Whoever has the key at that instant loses it, whoever waits for
// it goes on waiting. The hold has no TTL. release may be called more than once.
func (b *Backend) Hold(key string) (release func()) {
	s := b.space
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	e := s.entry(b.key(key), now)
	s.holds++
	h := hold{
		owner: fmt.Sprintf("another/%d", s.holds),
		fence: driver.NextFence(e.counter, 0, now),
		since: now,
	}
	e.counter = h.fence
	e.holders = append(e.holders[:0], h)
	e.arm(now)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		e.remove(h.owner, h.fence, time.Now())
	}
}

// Expire takes key from whoever holds it, as the end of the TTL does: the first in
// line gets it, and the lease learns of its loss at its next renewal or release, by
// ErrLost.
func (b *Backend) Expire(key string) {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	e := b.space.entries[b.key(key)]
	if e == nil {
		return
	}
	e.holders = e.holders[:0]
	e.settle(time.Now())
}

// Fail stages an outage: every call on b and on its leases answers err, the waiting
// ones at once, until Fail(nil). What it holds stays held until its TTL ends, and
// other backends on the same space go on. An err that is none of driver's verdicts
// is an unknown outcome, as a broken connection is.
func (b *Backend) Fail(err error) {
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	b.outage = err
	if err != nil {
		b.interrupt(err)
	}
}
