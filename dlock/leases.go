package dlock

import (
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
)

// A client has a heap of its leases, the earliest step first, and one timer. So held leases cost no
// goroutines, and a client that holds none costs none. Close finds its leases here.
//
// The client's mutex is taken under a lease's, and never the other way round.

// tick is the longest pause between two looks at the clock while a lease is held. After a sleep
// of the machine, in which timers sleep too, the client notices it within a tick.
const tick = time.Second

// enlist adds a lease, with its first step, unless the client was closed.
func (c *Client) enlist(l *Lease) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.count.held.Add(1)
	l.stepAt = min(l.endsAt(), l.renewAt)
	c.leases = append(c.leases, l)
	c.leases.fix(len(c.leases) - 1)
	if l.lost != nil {
		c.watchers(l.lost, 1)
	}
	c.arm()
	return nil
}

// move sets when l's next step is due, unless it was dropped.
func (c *Client) move(l *Lease, at boot.Instant) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.index >= 0 {
		l.stepAt = at
		c.leases.fix(int(l.index))
		c.arm()
	}
}

// drop removes l, which has no further step.
func (c *Client) drop(l *Lease) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l.index < 0 {
		return
	}
	if l.lost != nil {
		c.watchers(l.lost, -1)
	}
	end := len(c.leases) - 1
	last := c.leases[end]
	c.leases[end], c.leases = nil, c.leases[:end]
	if last != l {
		c.leases[l.index] = last
		c.leases.fix(int(l.index))
	}
	l.index = -1
}

// arm sets the timer for the first step, or for the next tick. A timer that fires earlier is
// left alone: an unnecessary wake-up costs less than setting the timer at every Lock. c.mu is held.
func (c *Client) arm() {
	if c.running || c.closed || len(c.leases) == 0 || c.leases[0].stepAt == never {
		return
	}
	now := c.clock.Now()
	at := min(c.leases[0].stepAt, now.Add(tick))
	if c.armed != 0 && c.armed <= at {
		return
	}
	c.armed = max(at, 1)
	if c.timer == nil {
		c.timer = time.AfterFunc(at.Sub(now), c.run)
	} else {
		c.timer.Reset(at.Sub(now))
	}
}

// run makes every step that is due. No step blocks.
func (c *Client) run() {
	if c.begin() != nil {
		return
	}
	defer c.calls.Done()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = 0
	if c.running {
		return // that run looks again before it ends
	}
	c.running = true
	now := c.clock.Fresh()
	for ; len(c.leases) > 0 && c.leases[0].stepAt <= now && !c.closed; now = c.clock.Now() {
		l := c.leases[0]
		c.mu.Unlock()
		l.step(now) // takes the lease's mutex, which comes before this one
		c.mu.Lock()
	}
	c.running = false
	c.arm()
}

// leaseHeap is a heap by stepAt.
type leaseHeap []*Lease

// fix moves the lease at i to its place.
func (h leaseHeap) fix(i int) {
	l := h[i]
	for ; i > 0 && l.stepAt < h[(i-1)/2].stepAt; i = (i - 1) / 2 {
		h[i] = h[(i-1)/2]
		h[i].index = int32(i)
	}
	for child := 2*i + 1; child < len(h); child = 2*i + 1 {
		if child+1 < len(h) && h[child+1].stepAt < h[child].stepAt {
			child++
		}
		if l.stepAt <= h[child].stepAt {
			break
		}
		h[i] = h[child]
		h[i].index = int32(i)
		i = child
	}
	h[i], l.index = l, int32(i)
}

// idleWatch is how long a channel without leases is still watched: its session is likely to get
// the next lease soon.
const idleWatch = time.Second

// watch watches another channel for a lease.
func (c *Client) watch(last, next <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watchers(last, -1)
	if next != nil {
		c.watchers(next, 1)
	}
}

// watchers adds n to the leases whose loss a channel tells. One goroutine watches each channel,
// since leases share theirs. c.mu is held.
func (c *Client) watchers(lost <-chan struct{}, n int) {
	leases, watched := c.watched[lost]
	if watched || n > 0 {
		c.watched[lost] = leases + n
	}
	if !watched && n > 0 && !c.closed {
		c.renewals.workers.Go(func() { c.await(lost) })
	}
}

// await ends the leases that the backend reports to be gone, when it closes their channel.
func (c *Client) await(lost <-chan struct{}) {
	idle := time.NewTicker(idleWatch)
	defer idle.Stop()
	for {
		select {
		case <-lost:
			c.mu.Lock()
			delete(c.watched, lost)
			leases := slices.Clone(c.leases)
			c.mu.Unlock()
			for _, l := range leases {
				_ = l.Err()
			}
			return
		case <-c.life.Done():
			return
		case <-idle.C:
			c.mu.Lock()
			unused := c.watched[lost] == 0
			if unused {
				delete(c.watched, lost)
			}
			c.mu.Unlock()
			if unused {
				return
			}
		}
	}
}
