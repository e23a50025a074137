package redlocktest

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// stressFault is one fault that was injected.
type stressFault struct {
	name       string
	client     int // the client whose link or process it is, or allClients
	begin, end int64
	effective  bool
	// pending says that the fault affects the next request, which has not come yet. Later
	// settled is the end of the first call that began after the fault.
	pending bool
	settled int64
}

// A spoiler injects one kind of fault.
type spoiler struct {
	name   string
	global bool
	// quiet says that calls need not show the fault, even if it had an effect.
	quiet bool
	// next says that the fault affects the client's next request.
	next   bool
	rare   time.Duration // the least time between two of them
	inject func(c *stressClient, d time.Duration)
	last   time.Time
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
		sp.last = time.Now()
		var c *stressClient
		f := &stressFault{name: sp.name, client: allClients, pending: sp.next}
		if !sp.global {
			if c = s.target(sp, rng); c == nil {
				continue
			}
			f.client = c.id
		}
		d := 4*time.Millisecond + time.Duration(rng.Int64N(int64(30*time.Millisecond)))
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
// process.
func (s *stress) target(sp *spoiler, rng *rand.Rand) *stressClient {
	process := sp.name == "kill a process" || sp.name == "stop a process"
	var may []*stressClient
	for _, c := range s.clients {
		if c.remote == process {
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
		s.pause(d)
		heal()
		s.run.mu.Lock()
		s.cleanups = s.cleanups[:len(s.cleanups)-1]
		s.run.mu.Unlock()
	}
	if f.Partition != nil && f.Heal != nil {
		all = append(all, spoiler{name: "partition", inject: func(c *stressClient, d time.Duration) {
			during(d, func() error { return f.Partition(c.b) }, func() error { return f.Heal(c.b) })
		}})
	}
	if f.Slow != nil {
		all = append(all, spoiler{name: "slow", inject: func(c *stressClient, d time.Duration) {
			during(2*d, func() error { return f.Slow(c.b, d) }, func() error { return f.Slow(c.b, 0) })
		}})
	}
	if f.DropReply != nil {
		all = append(all, spoiler{name: "drop a reply", quiet: true, next: true, inject: func(c *stressClient, _ time.Duration) { s.drop(c.b) }})
	}
	if f.Reset != nil {
		all = append(all, spoiler{name: "break connections", quiet: true, rare: 50 * time.Millisecond, inject: func(c *stressClient, _ time.Duration) {
			if err := f.Reset(c.b); err != nil {
				s.note("the harness could not break connections: %v", err)
			}
		}})
	}
	if f.EndSession != nil && s.info.Features.Has(driver.FeatureSession) {
		all = append(all, spoiler{name: "end a session", quiet: true, rare: 50 * time.Millisecond, inject: func(c *stressClient, _ time.Duration) {
			if err := f.EndSession(c.b); err != nil {
				s.note("the harness could not end a session: %v", err)
			}
		}})
	}
	if f.Pause != nil && f.Resume != nil {
		all = append(all, spoiler{name: "pause the servers", global: true, rare: 200 * time.Millisecond, inject: func(_ *stressClient, d time.Duration) { during(d, f.Pause, f.Resume) }})
	}
	if f.Kill != nil && f.Restart != nil {
		all = append(all, spoiler{name: "kill the servers", global: true, rare: 5 * time.Second, inject: func(_ *stressClient, d time.Duration) {
			during(d, f.Kill, func() error { return f.Restart(true) })
		}})
	}
	if s.o.Processes > 0 && h.Process != nil {
		all = append(all,
			spoiler{name: "kill a process", quiet: true, rare: time.Second, inject: func(c *stressClient, _ time.Duration) {
				if p, ok := c.backend().(*Client); ok {
					p.Kill()
				}
				s.startProcess(c)
			}},
			spoiler{name: "stop a process", rare: 100 * time.Millisecond, inject: func(c *stressClient, d time.Duration) {
				if p, ok := c.backend().(*Client); ok {
					during(8*d, p.Pause, p.Resume)
				}
			}})
	}
	for i := range all { // not at once
		all[i].last = time.Now().Add(-all[i].rare * 3 / 4)
	}
	return all
}

// effect notes the faults whose effect a call shows: it has no answer, or took as long as the
// fault.
func (s *stress) effect(client int, call, ret int64, v verdict, waits bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.faults) - 1; i >= 0 && i >= len(s.faults)-16; i-- {
		f := s.faults[i]
		end := f.end
		if end == 0 {
			end = ret
		}
		if f.pending && f.client == client && f.end != 0 && call > f.end && f.settled == 0 {
			f.settled = ret
		}
		if f.pending && f.settled == 0 {
			end = ret
		}
		if f.effective || f.client != allClients && f.client != client || call > end && v != lost || ret < f.begin {
			continue
		}
		if v == unknown || v == later || v == lost || !waits && ret-call >= max((end-f.begin)/2, int64(time.Millisecond)) {
			f.effective = true
		}
	}
}

// faultCounts sums up the faults. Quiet faults count only if a call shows one.
func (s *stress) faultCounts() (all []FaultCount) {
	quiet := []string{"drop a reply", "break connections", "end a session", "kill a process"}
	for _, f := range s.faults {
		i := slices.IndexFunc(all, func(c FaultCount) bool { return c.Name == f.name })
		if i < 0 {
			i = len(all)
			all = append(all, FaultCount{Name: f.name})
		}
		if f.effective || !slices.Contains(quiet, f.name) {
			all[i].Injected++
		}
		if f.effective {
			all[i].Effective++
		}
	}
	slices.SortFunc(all, func(a, b FaultCount) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// cutFrom returns when a fault may have ended the session of a lease that was requested at this
// time, before the lease was over; zero: no fault did. The client's next call reports the end
// of the session, a moment after the fault.
func (s *stress) cutFrom(client int, call, over int64) (from int64) {
	const moment = int64(20 * time.Millisecond)
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
