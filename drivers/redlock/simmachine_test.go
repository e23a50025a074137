package redlock

import (
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// simMachine is what one client of the simulation runs on: its clocks run at a rate of their own, and
// it sleeps while the others do not. A client that sleeps hears nothing, and sends nothing. Nil is
// one whose clocks are right, and that never sleeps.
type simMachine struct {
	began time.Time
	rate  float64 // of its clocks: local time a true time
	deaf  bool    // its kernel does not tell for how long it has slept

	clock *boot.Clock // as the engine reads it

	mu    sync.Mutex
	slept time.Duration // in all, by true time, the sleep that is under way included
	until time.Time     // that ends then
	set   time.Duration // by how much its wall clock was set
}

// sleep makes the machine sleep, and reports whether it did not already.
func (m *simMachine) sleep(d time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Before(m.until) {
		return false
	}
	m.slept, m.until = m.slept+d, now.Add(d)
	return true
}

// setWall sets its wall clock.
func (m *simMachine) setWall(ahead time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.set = ahead
}

// thaw waits while the machine sleeps, and reports whether it did.
func (m *simMachine) thaw() (slept bool) {
	if m == nil {
		return false
	}
	for {
		m.mu.Lock()
		d := time.Until(m.until)
		m.mu.Unlock()
		if d <= 0 {
			return slept
		}
		slept = true
		time.Sleep(d)
	}
}

// read returns how long the machine exists, and for how long of that it has slept.
func (m *simMachine) read() (lives, slept time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	return now.Sub(m.began), m.slept - max(0, m.until.Sub(now))
}

func (m *simMachine) local(d time.Duration) time.Duration { return time.Duration(float64(d) * m.rate) }

// newSimMachine returns a machine whose clocks run at this rate.
func newSimMachine(rate float64, deaf bool) *simMachine {
	m := &simMachine{began: time.Now(), rate: rate, deaf: deaf}
	m.clock = boot.New(boot.Source{
		Awake: m.awake,
		Suspended: func() time.Duration {
			if m.deaf {
				return 0
			}
			_, slept := m.read()
			return m.local(slept)
		},
		Wall: func(time.Time) time.Time {
			lives, _ := m.read()
			m.mu.Lock()
			defer m.mu.Unlock()
			return m.began.Add(m.local(lives) + m.set)
		},
	})
	return m
}

// awake is what Go's clock says there.
func (m *simMachine) awake() time.Time {
	lives, slept := m.read()
	return m.began.Add(m.local(lives - slept))
}

// end is the true time at which a lease ends, as the machine's boot-time clock has it: that
// goes on while the machine sleeps.
func (m *simMachine) end(l driver.Lease) time.Time {
	m.clock.Fresh() // it has slept, perhaps
	now := time.Now()
	return now.Add(time.Duration(float64(l.Grant().Expires.Sub(now)) / m.rate))
}
