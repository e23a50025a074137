package redlock

import (
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver/boot"
)

// simMachine is the machine of one client of the simulation. Its clocks run at their own rate,
// and it sleeps at times. A sleeping client receives and sends nothing. A nil simMachine has
// right clocks and never sleeps.
type simMachine struct {
	began time.Time
	rate  float64 // of its clocks: local time per true time
	deaf  bool    // its kernel does not tell how long it has slept

	clock *boot.Clock // the clock that the engine reads

	mu    sync.Mutex
	slept time.Duration // total sleep, by true time, including the current one
	until time.Time     // end of the current sleep
	set   time.Duration // how far its wall clock was set
}

// sleep makes the machine sleep. It returns false if the machine sleeps already.
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

// thaw waits while the machine sleeps, and reports whether it had to wait.
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

// read returns the machine's age, and how much of it the machine has slept.
func (m *simMachine) read() (lives, slept time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	return now.Sub(m.began), m.slept - max(0, m.until.Sub(now))
}

func (m *simMachine) local(d time.Duration) time.Duration { return time.Duration(float64(d) * m.rate) }

// newSimMachine returns a machine whose clocks have this rate.
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

// awake returns the time by Go's clock on this machine.
func (m *simMachine) awake() time.Time {
	lives, slept := m.read()
	return m.began.Add(m.local(lives - slept))
}

// end returns the true time at which a lease ends by the machine's boot-time clock, which goes
// on while the machine sleeps.
func (m *simMachine) end(expires boot.Instant) time.Time {
	left := expires.Sub(m.clock.Fresh()) // the machine may have slept meanwhile
	return time.Now().Add(time.Duration(float64(left) / m.rate))
}
