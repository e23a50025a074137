package redisnode

import (
	"sync"
	"time"
)

// A clock bounds a server's clock by what its replies say, relative to the local
// monotonic clock.
type clock struct {
	mu   sync.Mutex
	base time.Time // local time
	seen time.Time // local time of the latest reply
	// Lower and upper bound of the server's microseconds minus the local microseconds since base.
	least, most int64
}

func (c *clock) local(t time.Time) int64 { return int64(t.Sub(c.base) / time.Microsecond) }

// observe notes that the server's clock showed the time us at some instant between sent and
// received. The tightest bounds count, until a reply shows that they are no longer true because
// the clocks drift, or one was set.
func (c *clock) observe(us int64, sent, received time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.base.IsZero()
	if first {
		c.base = sent
	}
	c.seen = received
	most, least := us-c.local(sent), us-c.local(received)
	if first || least > c.most || most < c.least {
		c.least, c.most = least, most
		return
	}
	c.least, c.most = max(c.least, least), min(c.most, most)
}

// at returns the latest time that the server's clock may show at the local time t, in Unix
// microseconds.
func (c *clock) at(t time.Time) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most + c.local(t)
}

// passed returns the local time at which the server's clock has certainly passed the time us, though
// it may have run 10 % slower than the local one since the latest reply.
func (c *clock) passed(us int64) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.base.Add(time.Duration(us-c.least+1) * time.Microsecond)
	return at.Add(max(0, at.Sub(c.seen)) / 9)
}
