package redisnode

import (
	"sync"
	"time"
)

// A clock bounds a server's clock by what its replies say, relative to the local
// monotonic clock.
type clock struct {
	mu    sync.Mutex
	base  time.Time // local
	known bool
	// The server's microseconds − local microseconds since base: at least and at most.
	least, most int64
}

func (c *clock) local(t time.Time) int64 { return int64(t.Sub(c.base) / time.Microsecond) }

// observe learns that the server's clock said us at some instant between sent and
// received. The tightest bounds win, until a reply shows that they cannot be true
// any more: the clocks drift, or one was set.
func (c *clock) observe(us int64, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.base.IsZero() {
		c.base = sent
	}
	most, least := us-c.local(sent), us-c.local(received)
	if !c.known || least > c.most || most < c.least {
		c.known, c.least, c.most = true, least, most
		return
	}
	c.least, c.most = max(c.least, least), min(c.most, most)
}

// at returns the latest that the server's clock may say at the local instant t, in
// microseconds of Unix time.
func (c *clock) at(t time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most + c.local(t)
}

// passed returns the local instant at which the server's clock says more than us
// for certain.
func (c *clock) passed(us int64) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.base.Add(time.Duration(us-c.least+1) * time.Microsecond)
}
