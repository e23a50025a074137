package redlocktest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// stressFault is one fault that was injected.
type stressFault struct {
	name       string
	client     int // the client whose link or process it is, or allClients
	begin, end int64
	// inForce is when the hook that begins it had returned, and healed when the hook that ends
	// it was called.
	inForce, healed int64
	effective       bool
	refuted         bool // a lock was granted while it was in force
	hidden          bool
	// slow is how long a call takes at least to show the fault; zero: only a failure shows it.
	slow int64
	// pending says that the fault affects the next request, which has not come yet. Later
	// settled is the end of the first call that began after the fault.
	pending bool
	settled int64
}

// A spoiler injects one kind of fault.
type spoiler struct {
	name   string
	global bool
	// held says that only a client that has a lock shows the fault.
	held bool
	// next says that the fault affects the client's next request.
	next   bool
	rare   time.Duration // the least time between two of them
	inject func(c *stressClient, d time.Duration)
	last   time.Time
	// hidden says that a driver may hide the fault: it repeats the call.
	hidden bool
	// delays is how long a call takes at least to show the fault, as a multiple of its duration
	// d; zero: only a failure shows it.
	delays float64
}

// spoil injects faults until the stress is over.
func (s *stress) spoil(over <-chan struct{}) {
	all := s.spoilers()
	if len(all) == 0 {
		return
	}
	s.spoils.Store(slices.ContainsFunc(all, func(sp spoiler) bool { return sp.rare < time.Second }))
	rng := rand.New(rand.NewPCG(s.o.Seed, 1<<32))
	for s.wait(over, time.Duration(rng.Int64N(int64(15*time.Millisecond)))) {
		sp := &all[rng.IntN(len(all))]
		if sp.rare > 0 && time.Since(sp.last) < sp.rare {
			continue
		}
		var c *stressClient
		f := &stressFault{name: sp.name, client: allClients, pending: sp.next, hidden: sp.hidden}
		if !sp.global {
			if c = s.target(sp, rng); c == nil {
				continue
			}
			f.client = c.id
		}
		sp.last = time.Now()
		d := 4*time.Millisecond + time.Duration(rng.Int64N(int64(30*time.Millisecond)))
		d = max(d, min(8*time.Duration(s.usual.Load()), s.callTime()/4)) // differs from a slow machine
		f.slow = int64(sp.delays * float64(d))
		f.begin = s.now()
		s.mu.Lock()
		s.faults = append(s.faults, f)
		s.mu.Unlock()
		sp.inject(c, d)
		s.mu.Lock()
		f.end = s.now()
		s.mu.Unlock()
	}
}

// target picks a client: one in a process of its own for faults of processes, else one of this
// process. It returns nil if there is none.
func (s *stress) target(sp *spoiler, rng *rand.Rand) *stressClient {
	process := sp.name == "kill a process" || sp.name == "stop a process"
	var may []*stressClient
	for _, c := range s.clients {
		if c.remote == process && (!sp.held || c.held.Load() > 0) {
			may = append(may, c)
		}
	}
	if len(may) == 0 {
		return nil
	}
	return may[rng.IntN(len(may))]
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

// spoilers returns the faults of the harness that keep the servers' data.
func (s *stress) spoilers() (all []spoiler) {
	h, f := s.h, s.h.Faults
	during := func(d time.Duration, begin, end func() error) {
		heal := s.inject(begin, end)
		s.mark(func(f *stressFault, now int64) { f.inForce = now })
		s.pause(d)
		s.mark(func(f *stressFault, now int64) { f.healed = now })
		heal()
		s.run.mu.Lock()
		s.cleanups = s.cleanups[:len(s.cleanups)-1]
		s.run.mu.Unlock()
	}
	if f.Partition != nil && f.Heal != nil {
		all = append(all, spoiler{name: "partition", delays: 0.5, inject: func(c *stressClient, d time.Duration) {
			during(d, func() error { return f.Partition(c.b) }, func() error { return f.Heal(c.b) })
		}})
	}
	if f.Slow != nil {
		all = append(all, spoiler{name: "slow", delays: 0.75, inject: func(c *stressClient, d time.Duration) {
			during(2*d, func() error { return f.Slow(c.b, d) }, func() error { return f.Slow(c.b, 0) })
		}})
	}
	if f.DropReply != nil {
		all = append(all, spoiler{name: "drop a reply", hidden: true, next: true, inject: func(c *stressClient, _ time.Duration) { s.drop(c.b) }})
	}
	if f.Reset != nil {
		all = append(all, spoiler{name: "break connections", hidden: true, rare: 50 * time.Millisecond, inject: func(c *stressClient, _ time.Duration) {
			if err := f.Reset(c.b); err != nil {
				s.note("the harness could not break connections: %v", err)
			}
		}})
	}
	if f.EndSession != nil && s.session() {
		all = append(all, spoiler{name: "end a session", held: true, rare: 50 * time.Millisecond, inject: func(c *stressClient, _ time.Duration) {
			if err := f.EndSession(c.b); err != nil {
				s.note("the harness could not end a session: %v", err)
			}
		}})
	}
	if f.Pause != nil && f.Resume != nil {
		all = append(all, spoiler{name: "pause the servers", global: true, rare: 200 * time.Millisecond, delays: 0.5, inject: func(_ *stressClient, d time.Duration) { during(d, f.Pause, f.Resume) }})
	}
	if f.Kill != nil && f.Restart != nil {
		all = append(all, spoiler{name: "kill the servers", global: true, rare: 5 * time.Second, delays: 0.5, inject: func(_ *stressClient, d time.Duration) {
			during(d, f.Kill, func() error { return f.Restart(true) })
		}})
	}
	if s.o.Processes > 0 && h.Process != nil {
		all = append(all,
			spoiler{name: "kill a process", rare: time.Second, inject: func(c *stressClient, _ time.Duration) {
				if p, ok := c.backend().(*Client); ok {
					p.Kill()
				}
				s.startProcess(c)
			}},
			spoiler{name: "stop a process", rare: 100 * time.Millisecond, delays: 4, inject: func(c *stressClient, d time.Duration) {
				if p, ok := c.backend().(*Client); ok {
					during(8*d, p.Pause, p.Resume)
				}
			}})
	}
	for i := range all { // not at once
		all[i].last = time.Now().Add(-all[i].rare * 9 / 10)
	}
	return all
}

// moment is how long after a fault a call may still show it.
const moment = int64(20 * time.Millisecond)

// mark notes an instant of the fault that is injected now.
func (s *stress) mark(note func(f *stressFault, now int64)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	note(s.faults[len(s.faults)-1], s.now())
}

// recent returns the latest faults that may affect a client.
func (s *stress) recent(client int) (all []*stressFault) {
	for _, f := range s.faults[max(0, len(s.faults)-32):] {
		if f.client == allClients || f.client == client {
			all = append(all, f)
		}
	}
	return all
}

// effect notes that a call shows the effect of a fault: it failed, or took as long as the fault.
// since is the time of the call, or of the grant of the lease that the call found to be lost. A
// call beside several faults shows none of them, because any could be the cause.
func (s *stress) effect(client int, since, call, ret int64, v verdict, waits bool) {
	failed := v == unknown || v == later || v == lost
	if !failed && !waits {
		s.learn(ret - call)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var causes []*stressFault
	for _, f := range s.recent(client) {
		open := f.end == 0 || f.pending && f.settled == 0
		if f.pending && f.end != 0 && call > f.end && f.settled == 0 {
			f.settled = ret
		}
		from, until := call, max(f.end, f.settled)
		switch {
		case v == lost: // at any time since
			from, until = since, until+moment
		case failed:
			from, until = ret, until+moment
		}
		if ret >= f.begin && (open || from <= until) {
			causes = append(causes, f)
		}
	}
	if len(causes) == 1 && (failed || !waits && causes[0].slow > 0 && ret-call >= causes[0].slow) {
		causes[0].effective = true
	}
}

// refute notes the faults during which a lock was granted too soon: no server can have answered.
func (s *stress) refute(client int, call, ret int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.recent(client) {
		inside := f.inForce > 0 && call >= f.inForce && (f.healed == 0 || ret <= f.healed)
		if inside && ret-call < f.slow {
			f.refuted = true
		}
	}
}

// learn follows the median duration of the calls that do not wait.
func (s *stress) learn(took int64) {
	usual := s.usual.Load()
	if step := usual/16 + 1000; took > usual {
		s.usual.Add(step)
	} else {
		s.usual.Add(-min(step, usual))
	}
}

// faultCounts sums up the faults.
func (s *stress) faultCounts() (all []FaultCount) {
	for _, f := range s.faults {
		i := slices.IndexFunc(all, func(c FaultCount) bool { return c.Name == f.name })
		if i < 0 {
			i = len(all)
			all = append(all, FaultCount{Name: f.name, hidden: f.hidden})
		}
		all[i].Injected++
		if f.effective {
			all[i].Effective++
		}
		if f.refuted {
			all[i].refuted++
		}
	}
	slices.SortFunc(all, func(a, b FaultCount) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// A kind of fault must have had an effect if it was injected this often. Even on a machine with
// other busy programs, calls show at least one fault in four of each kind that drivers cannot hide:
// 60 faults of a sound harness have none with a probability of 0.75^60 < 1e-7.
const mustShow = 60

// withoutEffect says which of the faults have too little effect; empty: none. It is hopeless if a
// hook does nothing: more time would not help. Because a signal may take effect a moment after its
// hook has returned, a few grants during a fault prove nothing.
func withoutEffect(faults []FaultCount) (why string, hopeless bool) {
	injected, effective, shown, visible := 0, 0, 0, 0 // visible: that drivers cannot hide
	for _, f := range faults {
		switch {
		case f.refuted >= 3 && f.refuted > f.Effective:
			return fmt.Sprintf("during %d of %d × %s a lock was granted, and only %d had an effect on any call: the harness' hook does nothing", f.refuted, f.Injected, f.Name, f.Effective), true
		case f.Injected >= mustShow && f.Effective == 0 && !f.hidden:
			return fmt.Sprintf("none of %d × %s had an effect on any call: the harness' hook does nothing", f.Injected, f.Name), true
		case !f.hidden:
			visible, shown = visible+f.Injected, shown+f.Effective
		}
		injected, effective = injected+f.Injected, effective+f.Effective
	}
	if effective == 0 || shown < visible/10 {
		return fmt.Sprintf("of %d faults only %d had an effect on any call: either the harness' hooks do nothing, or no call was in their way", injected, effective), false
	}
	return "", false
}

// cutFrom returns when a fault may have ended the session of a lease that was requested at this
// time, before the lease was over; zero: no fault did. The client's next call reports the end
// of the session, a moment after the fault.
func (s *stress) cutFrom(client int, call, over int64) (from int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.client != client && f.client != allClients || f.begin > over {
			continue
		}
		end := max(f.end, f.settled)
		if end == 0 || f.pending && f.settled == 0 || end+moment >= call {
			if at := max(f.begin, call, 1); from == 0 || at < from {
				from = at
			}
		}
	}
	return from
}
