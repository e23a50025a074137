package boot

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTheMachinesClocksAreRead(t *testing.T) {
	a := suspended()
	b := suspended()
	if a < 0 || b-a > sleepNoise || a-b > sleepNoise {
		t.Errorf("suspended = %v, then %v, on a machine that is awake", a, b)
	}
}

// A sleep is time that passed; a wall clock that is set is not, and is counted as a jump.
func TestASleepIsTimeAndAJumpIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var slept, set atomic.Int64
		c := New(Source{
			Suspended: func() time.Duration { return time.Duration(slept.Load()) },
			Wall:      func(now time.Time) time.Time { return now.Add(time.Duration(slept.Load() + set.Load())) },
		})
		for _, s := range []struct {
			slept, set, passed time.Duration
			jumps              int64
		}{
			{0, 0, time.Minute, 0},
			{time.Hour, 0, time.Second / 2, 0},
			{0, time.Hour, time.Millisecond, 1},
			{0, -time.Second, time.Minute, 2},
			{time.Hour, 0, 0, 2},
		} {
			before := c.Now()
			slept.Add(int64(s.slept))
			set.Add(int64(s.set))
			time.Sleep(s.passed)
			if got := c.Now().Sub(before); got != s.slept+s.passed {
				t.Errorf("%v of sleep and %v awake are %v", s.slept, s.passed, got)
			}
			if c.Jumps() != s.jumps {
				t.Errorf("%d jumps, want %d", c.Jumps(), s.jumps)
			}
		}
		if at := c.Now(); !c.Time(at).Equal(time.Now()) {
			t.Errorf("now is %v as a time, and %v", c.Time(at), time.Now())
		}
	})
}

// Two conversions of one instant are one time: a lease's Expires does not go back.
func TestAnInstantIsOneTime(t *testing.T) {
	c := New(Source{})
	at := c.Fresh().Add(time.Minute)
	first := c.Time(at)
	for range 10000 {
		if again := c.Time(at); !again.Equal(first) {
			t.Fatalf("%v, and before %v", again, first)
		}
	}
}
