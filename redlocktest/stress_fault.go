package redlocktest

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// stressFault is one fault that was injected.
type stressFault struct {
	name       string
	client     int   // the client whose link or process it is, or allClients
	begin, end int64 // end is zero while it lasts
	effective  bool  // a call that was made into it shows it
	hidden     bool  // a driver may hide it
	forgets    bool  // servers lost their data
}

// A spoiler injects one kind of fault.
type spoiler struct {
	name    string
	global  bool
	process bool          // it concerns a client in a process of its own
	hidden  bool          // a driver may hide it: it repeats the call
	forgets bool          // servers lose their data
	rare    time.Duration // the least time between two of them
	last    time.Time
	// inject injects the fault for about d, makes a call into it, and reports whether that call
	// shows the fault.
	inject func(c *stressClient, d time.Duration) (effective bool)
}

// spoil injects faults until the stress is over. While half of the calls had no answer it injects none:
// on a machine so slow that each call meets a fault, the run would prove nothing.
func (s *stress) spoil(over <-chan struct{}) {
	all := s.spoilers()
	if len(all) == 0 {
		return
	}
	s.spoils.Store(slices.ContainsFunc(all, func(sp spoiler) bool { return sp.rare < time.Second }))
	rng := mathrand.New(mathrand.NewPCG(s.o.Seed, 1<<32))
	for s.wait(over, time.Duration(rng.Int64N(int64(15*time.Millisecond)))) {
		sp := &all[rng.IntN(len(all))]
		if time.Since(sp.last) < sp.rare || s.unanswered(2) {
			continue
		}
		may := slices.DeleteFunc(slices.Clone(s.clients), func(c *stressClient) bool { return c.remote != sp.process })
		if len(may) == 0 {
			continue
		}
		c := may[rng.IntN(len(may))]
		f := &stressFault{name: sp.name, client: c.id, hidden: sp.hidden, forgets: sp.forgets, begin: s.now()}
		if sp.global {
			f.client = allClients
		}
		sp.last = time.Now()
		s.mu.Lock()
		s.faults = append(s.faults, f)
		s.mu.Unlock()
		effective := sp.inject(c, 4*time.Millisecond+time.Duration(rng.Int64N(int64(30*time.Millisecond))))
		s.mu.Lock()
		f.end, f.effective = s.now(), effective
		s.mu.Unlock()
	}
}

// wait returns false if the stress is over.
func (s *stress) wait(over <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-over:
		return false
	case <-t.C:
		return !s.done()
	}
}

// spoilers returns the faults of the harness. All but Forget keep the servers' data.
func (s *stress) spoilers() (all []spoiler) {
	h, f := s.h, s.h.Faults
	add := func(there bool, sp spoiler) {
		if there {
			sp.last = time.Now().Add(-sp.rare * 9 / 10) // not at once
			all = append(all, sp)
		}
	}
	add(f.Partition != nil && f.Heal != nil, spoiler{name: "partition", inject: func(c *stressClient, d time.Duration) bool {
		return s.during(c, d, func() error { return f.Partition(c.b) }, func() error { return f.Heal(c.b) })
	}})
	add(f.Slow != nil, spoiler{name: "slow", inject: func(c *stressClient, d time.Duration) bool {
		return s.during(c, d, func() error { return f.Slow(c.b, d) }, func() error { return f.Slow(c.b, 0) })
	}})
	add(f.DropReply != nil, spoiler{name: "drop a reply", hidden: true, inject: func(c *stressClient, _ time.Duration) bool {
		s.drop(c.b)
		return s.shows(s.ctx, c.b, s.callTime()) // also waits until a reply is lost
	}})
	add(f.Reset != nil, spoiler{name: "break connections", hidden: true, rare: 50 * time.Millisecond, inject: func(c *stressClient, _ time.Duration) bool {
		if err := f.Reset(c.b); err != nil {
			s.note("the harness could not break connections: %v", err)
		}
		return s.shows(s.ctx, c.b, s.callTime())
	}})
	add(f.EndSession != nil && s.session(), spoiler{name: "end a session", rare: 50 * time.Millisecond, inject: func(c *stressClient, _ time.Duration) bool {
		l, err := c.b.Acquire(s.ctx, s.own())
		if endErr := f.EndSession(c.b); endErr != nil {
			s.note("the harness could not end a session: %v", endErr)
		}
		if err != nil { // it may have none
			return false
		}
		_, err = l.Renew(s.ctx, &driver.Renewal{TTL: s.long()})
		_ = l.Release(s.ctx)
		return err != nil
	}})
	add(f.Pause != nil && f.Resume != nil, spoiler{name: "pause the servers", global: true, rare: 200 * time.Millisecond, inject: func(c *stressClient, d time.Duration) bool {
		return s.during(c, d, f.Pause, f.Resume)
	}})
	add(f.Kill != nil && f.Restart != nil, spoiler{name: "kill the servers", global: true, rare: 5 * time.Second, inject: func(c *stressClient, d time.Duration) bool {
		return s.during(c, d, f.Kill, func() error { return f.Restart(true) })
	}})
	add(f.Forget != nil, spoiler{name: "servers forget", global: true, hidden: true, forgets: true, rare: f.ForgetEvery, inject: func(c *stressClient, _ time.Duration) bool {
		if err := f.Forget(); err != nil {
			s.note("the harness could not let servers forget: %v", err)
		}
		return s.shows(s.ctx, c.b, s.callTime())
	}})
	if s.o.Processes > 0 && h.Process != nil {
		add(true, spoiler{name: "kill a process", process: true, rare: time.Second, inject: func(c *stressClient, _ time.Duration) bool {
			if p, ok := c.backend().(*Client); ok {
				p.Kill()
			}
			s.startProcess(c)
			return true
		}})
		add(true, spoiler{name: "stop a process", process: true, rare: 100 * time.Millisecond, inject: func(c *stressClient, d time.Duration) bool {
			p, ok := c.backend().(*Client)
			return ok && s.during(c, 8*d, p.Pause, p.Resume)
		}})
	}
	return all
}

// during injects a fault for this long, or longer if a call of this machine takes long, and reports
// whether a call of the client shows it.
func (s *stress) during(c *stressClient, d time.Duration, begin, end func() error) (effective bool) {
	heal := s.inject(begin, end)
	shown := s.async(func() { effective = s.shows(s.ctx, c.backend(), d/2) })
	s.pause(d)
	heal()
	s.run.mu.Lock()
	s.cleanups = s.cleanups[:len(s.cleanups)-1]
	s.run.mu.Unlock()
	<-shown
	return effective
}

// own returns a request for a key that nobody else uses.
func (s *stress) own() *driver.Request {
	return s.fill(driver.Request{Key: "redlocktest/stress/" + rand.Text(), TTL: s.short()})
}

// shows reports whether an attempt on a free key fails, or takes this long.
func (s *stress) shows(ctx context.Context, b driver.Backend, long time.Duration) bool {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	start := time.Now()
	l, err := b.Acquire(ctx, s.own())
	took := time.Since(start)
	if err == nil {
		_ = l.Release(s.ctx) // else it ends by its TTL
	}
	v := classify(err)
	return v == unknown || v == later || took >= long
}

// faultCounts sums up the faults.
func (s *stress) faultCounts() (all []FaultCount) {
	for _, f := range s.faults {
		if f.end == 0 {
			continue
		}
		i := slices.IndexFunc(all, func(c FaultCount) bool { return c.Name == f.name })
		if i < 0 {
			i = len(all)
			all = append(all, FaultCount{Name: f.name, hidden: f.hidden})
		}
		all[i].Injected++
		if f.effective {
			all[i].Effective++
		}
	}
	slices.SortFunc(all, func(a, b FaultCount) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// mustShow is how often a fault of one kind is injected before too few effects count: a signal to a
// process may take effect a moment after its hook has returned, so a few of them prove nothing.
const mustShow = 5

// withoutEffect says which of the faults have too little effect; empty: none. It is hopeless if a
// hook does nothing: more time would not help.
func withoutEffect(faults []FaultCount) (why string, hopeless bool) {
	injected, effective := 0, 0
	for _, f := range faults {
		if !f.hidden && f.Injected >= mustShow && f.Effective < f.Injected/4 {
			return fmt.Sprintf("only %d of %d × %s had an effect on a call that was made into it: the harness' hook does nothing", f.Effective, f.Injected, f.Name), true
		}
		injected, effective = injected+f.Injected, effective+f.Effective
	}
	if effective == 0 {
		return fmt.Sprintf("of %d faults none had an effect on a call that was made into it: the harness' hooks do nothing, or the driver hides them", injected), false
	}
	return "", false
}

// moment is how long after a fault a call may still show it.
const moment = int64(20 * time.Millisecond)

// since returns when the first of these faults may have ended a lease that was requested at this time,
// before the lease was over; zero: none did. The client's next call tells it, a moment after the fault.
func (s *stress) since(call, over int64, of func(*stressFault) bool) (from int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if !of(f) || f.begin > over {
			continue
		}
		if f.end == 0 || f.end+moment >= call {
			if at := max(f.begin, call, 1); from == 0 || at < from {
				from = at
			}
		}
	}
	return from
}
