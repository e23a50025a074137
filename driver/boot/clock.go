// Package boot measures time that goes on while the machine sleeps.
package boot

import (
	"sync/atomic"
	"time"
)

// Instant is a time of one Clock: the time since the clock was made, including the time in
// which the machine slept.
type Instant time.Duration

// Add returns the instant d after t.
func (t Instant) Add(d time.Duration) Instant { return t + Instant(d) }

// Sub returns how much later t is than u.
func (t Instant) Sub(u Instant) time.Duration { return time.Duration(t - u) }

// Clock measures time that goes on while the machine sleeps. Go's monotonic clock, which
// testing/synctest can make virtual, stops during a sleep; the kernel knows how long the sleep
// was. It is safe for concurrent use.
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

// Source has the readings that a Clock uses. Tests have their own.
type Source struct {
	Suspended func() time.Duration          // how long the machine has slept since it booted
	Wall      func(now time.Time) time.Time // the wall clock
	Awake     func() time.Time              // Go's clock, which stops while the machine sleeps
}

// New returns a clock that uses the readings in s, and the machine's own in place of nil ones.
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
	// tick is how long Now may use the last reading of the time slept.
	tick = time.Second

	// sleepNoise is shorter than any sleep of a machine, and longer than the time between the
	// two readings whose difference is the time slept.
	sleepNoise = 10 * time.Millisecond

	// jump is the least difference of the clocks that counts as a jump. A clock is slewed by
	// less between two readings; a pause that matters is longer, such as that of a virtual
	// machine that was stopped and whose clock was corrected afterwards.
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

// Now is cheaper than Fresh: it asks the kernel for the time slept only if the last answer is
// old, or if the wall clock and Go's clock have drifted apart since, as they do in a sleep. At
// worst the result is too early, by the length of a sleep. A lease whose end is counted from it
// ends too early, which is safe.
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

// Jumps is how often the wall clock jumped and this clock did not: somebody set the wall clock,
// or the machine was stopped in a way that its kernel does not know of. The next Now or Fresh
// notices a jump, so it is noticed late.
func (c *Clock) Jumps() int64 { return c.jumps.Load() }

// Time converts an instant to Go's time, monotonic and by the wall clock of now. Two
// conversions of one instant give equal times.
func (c *Clock) Time(t Instant) time.Time {
	now := time.Now()
	awake := now
	if !c.goTime {
		awake = c.source.Awake()
	}
	return now.Add(time.Duration(t) - awake.Sub(c.start) - time.Duration(c.slept.Load()))
}
