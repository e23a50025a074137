package dlock

import (
	"sync/atomic"
	"time"
)

// instant is a time of a client's own clock: what passed since the client was made,
// the time in which the machine slept included.
type instant time.Duration

func (t instant) add(d time.Duration) instant { return t + instant(d) }
func (t instant) sub(u instant) time.Duration { return time.Duration(t - u) }

// clock measures time that goes on while the machine sleeps. Go's monotonic clock,
// which testing/synctest can make virtual, stops then; the kernel knows for how long.
type clock struct {
	start     time.Time
	suspended func() time.Duration // how long the machine has slept since it booted
	base      time.Duration        // suspended() at start
	slept     atomic.Int64         // suspended() − base, as last read
	read      atomic.Int64         // when slept was read: time since start
	wall      atomic.Int64         // the wall clock then, in ns
}

func newClock(suspended func() time.Duration) *clock {
	c := &clock{start: time.Now(), suspended: suspended, base: suspended()}
	c.wall.Store(c.start.UnixNano())
	return c
}

// sleepNoise is less than any sleep of a machine, and more than the time between the
// two readings that tell how long it slept.
const sleepNoise = 10 * time.Millisecond

// fresh reads both clocks.
func (c *clock) fresh() instant {
	slept := c.suspended() - c.base
	t := time.Now()
	since := t.Sub(c.start)
	if last := time.Duration(c.slept.Load()); slept-last < sleepNoise {
		slept = last
	} else {
		c.slept.Store(int64(slept))
	}
	c.read.Store(int64(since))
	c.wall.Store(t.UnixNano())
	return instant(since + slept)
}

// now is cheaper than fresh: it asks how long the machine slept only if the last answer is
// old, or if the wall clock and Go's went apart since, as they do in a sleep. At worst it is
// too early, by a sleep; a lease whose end is counted from that ends too early, which is
// safe.
func (c *clock) now() instant {
	t := time.Now()
	since := t.Sub(c.start)
	passed := since - time.Duration(c.read.Load())
	apart := time.Duration(t.UnixNano()-c.wall.Load()) - passed
	if passed > tick || apart > sleepNoise || apart < -sleepNoise {
		return c.fresh()
	}
	return instant(since + time.Duration(c.slept.Load()))
}

// time converts an instant to Go's time, monotonic and by the wall clock of now.
func (c *clock) time(t instant) time.Time {
	now := time.Now()
	return now.Add(time.Duration(t) - now.Sub(c.start) - time.Duration(c.slept.Load()))
}
