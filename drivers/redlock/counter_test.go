package redlock

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver/quorum"
)

// A counter ends some time after its last token: see lua/counter.lua. The mark, one per node, keeps the
// order of tokens beyond that, as long as the clock does not fall unnoticed by more than the counter's
// life allows.

const (
	counterTick = 2500 * time.Millisecond
	counterKeys = 2
	// A counter lives longer than the interval of lua/counter.lua and an old proposal.
	counterLife = 8 * counterTick
)

// counters are a simulated server with some keys.
type counters struct {
	s       *simServer
	keys    [counterKeys]simKey
	largest [counterKeys]uint64 // token
	high    time.Time           // the latest clock when it was to be compared with the mark, after the last fall that was noticed
	peak    time.Time           // the latest clock after that fall
	outside bool                // the clock moved in a way that the guarantee excludes
}

func newCounters(broken simBroken) *counters {
	at := time.UnixMicro(1_700_000_010_000_000)
	return &counters{s: &simServer{broken: broken, at: at}, peak: at}
}

// on makes k the server's key while f runs.
func (c *counters) on(k int, f func(*simKey)) {
	c.s.memory.lock = c.keys[k]
	f(c.s.key())
	c.keys[k] = c.s.memory.lock
}

// move moves the clock.
func (c *counters) move(d time.Duration) {
	if c.s.at = c.s.at.Add(d); c.s.at.After(c.peak) {
		c.peak = c.s.at
	}
	for k := range c.keys { // some may end
		c.on(k, func(*simKey) {})
	}
}

// grant takes and releases key k with a proposed token, and reports whether the token is larger than
// all before it.
func (c *counters) grant(k int, proposed uint64) (rises bool) {
	c.on(k, func(key *simKey) {
		old := int64(key.counter)
		token := c.s.acquire(simCall{me: "o/1", token: proposed, life: counterLife}, &quorum.Terms{}).fence
		key.clear()
		if x := int64(token); old == 0 || x/simInterval != old/simInterval || x > c.s.micros()+simAhead {
			at := c.s.at
			if at.Before(c.high.Add(-simInterval * time.Microsecond)) {
				c.high, c.peak = at, at // noticed
			} else if at.After(c.high) {
				c.high = at
			}
			c.outside = c.outside || c.peak.Sub(at) >= counterLife-time.Duration(simLag)*time.Microsecond
		}
		rises = token > c.largest[k]
		c.largest[k] = max(c.largest[k], token)
	})
	return rises
}

// disorder draws schedules, and returns in how many steps one breaks the order; zero: none does.
func disorder(broken simBroken, schedules, length int) (steps, grants int) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range schedules {
		c := newCounters(broken)
		for i := range length {
			if d := rng.IntN(18); d >= 8 {
				c.move([]time.Duration{-12, -7, -4, -2, -1, 1, 2, 4, 7, 12}[d-8] * counterTick)
				continue
			}
			proposed := uint64(0)
			if p := rng.IntN(4); p > 0 {
				proposed = uint64(c.s.at.Add([]time.Duration{-4, 0, 3}[p-1] * counterTick).UnixMicro())
			}
			rises := c.grant(rng.IntN(counterKeys), proposed)
			if grants++; c.outside {
				break
			}
			if !rises {
				return i + 1, grants
			}
		}
	}
	return 0, grants
}

// Tokens rise whatever the clock does within the guarantee, even if counters end.
func TestBoundedCountersKeepTheOrder(t *testing.T) {
	schedules := 100_000
	if testing.Short() {
		schedules = 20_000
	}
	steps, grants := disorder(simBroken{}, schedules, 30)
	if steps > 0 {
		t.Errorf("a token does not rise after %d steps", steps)
	}
	t.Logf("%d grants in %d random schedules", grants, schedules)
}

// Each simpler rule breaks the order.
func TestSimplerCountersBreakTheOrder(t *testing.T) {
	for name, broken := range map[string]simBroken{
		"looks only without a counter":     {old: true},
		"a life from now":                  {life: true},
		"no clamp from below":              {lag: true},
		"a token ahead does not look":      {ahead: true},
		"a clock that fell raises nothing": {floor: true},
	} {
		steps, grants := disorder(broken, 300_000, 40)
		if steps == 0 {
			t.Errorf("%s: no schedule breaks the order", name)
		}
		t.Logf("%s: broken by %d steps, after %d grants", name, steps, grants)
	}
}
