// Package boot measures time that goes on while the machine sleeps.
package boot

import (
	"sync/atomic"
	"time"
)

// Instant is a time of one Clock: what passed since the clock was made, the time in which
// the machine slept included.
type Instant time.Duration

// Add returns the instant d after t.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns how much later t is than u.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Clock measures time that goes on while the machine sleeps. Go's monotonic clock, which
// testing/synctest can make virtual, stops then; the kernel knows for how long. It is safe
// for concurrent use.
type Clock struct {
	start  time.Time
	source Source
	base   time.Duration // Suspended() at start
	slept  atomic.Int64  // Suspended() − base, as last read
	read   atomic.Int64  // when slept was read: time since start
	wall   atomic.Int64  // the wall clock then, in ns
	jumps  atomic.Int64  // how often the wall clock jumped
	goTime bool          // source.Awake is time.Now
}

// Source is where a Clock reads. Tests have their own.
type Source struct {
	Suspended func() time.Duration          // how long the machine has slept since it booted
	Wall      func(now time.Time) time.Time // the wall clock
	Awake     func() time.Time              // Go's clock, which stops while the machine sleeps
}

// New returns a clock that reads from s, and what s leaves out from the machine.
func New(s Source) *Clock {
	if s.Suspended == nil {
		s.Suspended = suspended
	}
	if s.Wall == nil {
		s.Wall = func(now time.Time) time.Time { return now }
	}
	goTime := s.Awake == nil
	if goTime {
		s.Awake = time.Now
	}
	c := &Clock{start: s.Awake(), source: s, base: s.Suspended(), goTime: goTime}
	c.wall.Store(s.Wall(c.start).UnixNano())
	return c
}

const (
	// tick is the longest that Now trusts what it knows of sleeps.
	tick = time.Second

	// sleepNoise is less than any sleep of a machine, and more than the time between the
	// two readings that tell how long it slept.
	sleepNoise = 10 * time.Millisecond

	// jump is more than a clock is slewed between two readings, and less than a pause that
	// matters: a virtual machine that was stopped, and whose clock is put right afterwards.
	jump = 250 * time.Millisecond
)

// Fresh reads all clocks.
func (c *Clock) Fresh() Instant {
	slept := c.source.Suspended() - c.base
	t := c.source.Awake()
	since := t.Sub(c.start)
	last, wall := time.Duration(c.slept.Load()), c.source.Wall(t).UnixNano()
	if slept-last < sleepNoise {
		slept = last
	} else {
		c.slept.Store(int64(slept))
	}
	passed := since + slept - time.Duration(c.read.Swap(int64(since))) - last
	apart := time.Duration(wall-c.wall.Swap(wall)) - passed
	if apart > jump || apart < -jump {
		c.jumps.Add(1)
	}
	return Instant(since + slept)
}

// Now is cheaper than Fresh: it asks how long the machine slept only if the last answer is
// old, or if the wall clock and Go's went apart since, as they do in a sleep. At worst it is
// too early, by a sleep; a lease whose end is counted from that ends too early, which is
// safe.
func (c *Clock) Now() Instant {
	t := c.source.Awake()
	since := t.Sub(c.start)
	passed := since - time.Duration(c.read.Load())
	apart := time.Duration(c.source.Wall(t).UnixNano()-c.wall.Load()) - passed
	if passed > tick || apart > sleepNoise || apart < -sleepNoise {
		return c.Fresh()
	}
	return Instant(since + time.Duration(c.slept.Load()))
}

// Jumps is how often the wall clock was seen to jump where this clock did not: somebody set
// it, or the machine was stopped in a way that its kernel does not know of. It is seen by the
// next Now or Fresh, and so late.
func (c *Clock) Jumps() int64 { return c.jumps.Load() }

// Time converts an instant to Go's time, monotonic and by the wall clock of now. The
// conversions of one instant are equal: with two readings of the clock they would not be.
func (c *Clock) Time(t Instant) time.Time {
	now := time.Now()
	awake := now
	if !c.goTime {
		awake = c.source.Awake()
	}
	return now.Add(time.Duration(t) - awake.Sub(c.start) - time.Duration(c.slept.Load()))
}
