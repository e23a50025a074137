package redisnode

import (
	"math/rand/v2"
	"testing"
)

// The model of bounded counters: lua/counter.lua, in ticks. A counter ends some time after its
// last token. The mark, one per node, keeps the order of tokens beyond that, as long as the
// clock does not fall unnoticed by more than the counter's life allows.

// A rule says how a node makes tokens. The zero rule is that of lua/counter.lua; each field
// takes a part out.
type rule struct {
	name       string
	markAhead  bool // the mark is set to the end of the interval instead of the clock
	onlyNew    bool // the mark is checked only if there is no counter
	lifeOfNow  bool // the counter's life counts from the clock instead of the token
	unclamped  bool // an old proposal is accepted
	aheadBlind bool // a token ahead of the clock makes no check
	noFloor    bool // a clock that fell below the mark raises nothing
}

const (
	eps1     = 1 // how far a token may be ahead of the clock
	eps2     = 1 // how far a proposal may be behind it
	interval = 4 // A: all tokens of one interval make one check
	life     = 8 // life of a counter: longer than interval and eps2
	keysOf   = 2
)

// model is the state of one node, and the checker's own data.
type model struct {
	clock            int
	high, top, floor int // the mark; high 0: none
	counter, ends    [keysOf]int
	granted          [keysOf]int // the largest token so far
	due              int         // the clock when a check was last due
	peak             int         // the latest clock since
	outside          bool        // the clock moved in a way that the guarantee excludes
}

// expire ends the counters whose time has come.
func (m *model) expire() {
	for k := range m.counter {
		if m.counter[k] != 0 && m.clock >= m.ends[k] {
			m.counter[k], m.ends[k] = 0, 0
		}
	}
}

// set moves the clock.
func (m *model) set(clock int) {
	m.clock = clock
	m.peak = max(m.peak, clock)
	m.expire()
}

// judge is called when a check is due. It excludes schedules in which the clock fell unnoticed
// by more than a counter's life covers.
func (m *model) judge() {
	m.outside = m.outside || m.clock >= m.due && m.peak-m.clock >= life-eps2
	m.due, m.peak = m.clock, m.clock
}

// look compares the clock with the mark, and raises the mark.
func (m *model) look(r rule, x int, missing bool) int {
	if m.clock < m.high && !r.noFloor {
		m.floor = max(m.floor, m.top+interval)
	}
	if missing && x <= m.floor {
		x = m.floor + 1
	}
	m.high, m.top = m.clock, max(m.top, x)
	if r.markAhead {
		m.high = (m.clock/interval + 1) * interval
	}
	return x
}

// grant takes the lock of key k with a proposal p, and returns the token.
func (m *model) grant(r rule, k, p int) int {
	x := min(p, m.clock+eps1)
	if !r.unclamped {
		x = max(x, m.clock-eps2)
	}
	if p == 0 {
		x = m.clock
	}
	if old := m.counter[k]; old == 0 {
		m.judge()
		x = m.look(r, x, true)
	} else {
		x = max(x, old+1)
		enters, ahead := x/interval != old/interval, x > m.clock+eps1
		if enters || ahead {
			m.judge()
		}
		if !r.onlyNew && (enters || ahead && !r.aheadBlind) {
			m.look(r, x, false)
		}
	}
	m.counter[k], m.ends[k] = x, max(m.clock, x)+life
	if r.lifeOfNow {
		m.ends[k] = m.clock + life
	}
	return x
}

// A step is a grant of key k with a proposal, relative to the clock, or moves the clock.
type step struct {
	k, p int
	move int
}

var steps = func() []step {
	var all []step
	for k := range keysOf {
		for _, p := range []int{-100, -4, 0, 3} {
			all = append(all, step{k: k, p: p})
		}
	}
	for _, d := range []int{-12, -7, -4, -2, -1, 1, 2, 4, 7, 12} {
		all = append(all, step{move: d})
	}
	return all
}()

// do makes a step, and reports whether the token is larger than all before it.
func (m *model) do(r rule, s step) (rises bool) {
	if s.move != 0 {
		m.set(m.clock + s.move)
		return true
	}
	p := 0
	if s.p != -100 {
		p = m.clock + s.p
	}
	x := m.grant(r, s.k, p)
	rises = x > m.granted[s.k]
	m.granted[s.k] = max(m.granted[s.k], x)
	return rises
}

func newModel() model { return model{clock: 1000, peak: 1000, due: 1000} }

// search runs random schedules, and returns one that breaks the order, if any.
func search(r rule, schedules, length int) (bad []step, grants int) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range schedules {
		m, path := newModel(), []step(nil)
		for range length {
			s := steps[rng.IntN(len(steps))]
			path = append(path, s)
			rises := m.do(r, s)
			if m.outside {
				break
			}
			if !rises {
				return path, grants
			}
			if s.move == 0 {
				grants++
			}
		}
	}
	return nil, grants
}

// Tokens rise whatever the clock does within the guarantee, even if counters end.
func TestBoundedCountersKeepTheOrder(t *testing.T) {
	schedules := 100_000
	if testing.Short() {
		schedules = 20_000
	}
	bad, grants := search(rule{}, schedules, 30)
	if bad != nil {
		t.Errorf("a token does not rise: %+v", bad)
	}
	t.Logf("%d grants in %d random schedules", grants, schedules)
}

// Each simpler rule breaks the order.
func TestSimplerCountersBreakTheOrder(t *testing.T) {
	for _, r := range []rule{
		{name: "looks only without a counter", onlyNew: true},
		{name: "a life from now", lifeOfNow: true},
		{name: "no clamp from below", unclamped: true},
		{name: "a token ahead does not look", aheadBlind: true},
		{name: "no floor", noFloor: true},
	} {
		bad, _ := search(r, 300_000, 40)
		if bad == nil {
			t.Errorf("%s: no schedule breaks the order", r.name)
			continue
		}
		t.Logf("%s: broken by %d steps", r.name, len(bad))
	}
	// If the mark is set ahead of the clock it is always above the clock, and tokens run away.
	m := newModel()
	for i := range 200 {
		if i%2 == 0 {
			m.counter[0] = 0
		}
		m.do(rule{markAhead: true}, step{k: 0, p: -100})
	}
	if ahead := m.granted[0] - m.clock; ahead < 50 {
		t.Errorf("with a mark ahead tokens are %d ahead of the clock", ahead)
	}
}
