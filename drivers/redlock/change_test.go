package redlock

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
)

// The guard is shortened while a client has a lease of the longer one, on nodes 0 and 1. Nodes
// that forget forget the longer terms too, and take those of the others or of the statement. If
// these had the shorter quarantine, nodes 1 and 2 would vote before the lease ends. Each rule
// against that has a schedule with a second holder without it; the statement's is needed only where
// the other nodes' terms do not count in a quarantine. (The schedules are by hand: drawn ones have
// them too seldom.)
func TestALeaseOutlivesAShorterGuard(t *testing.T) {
	for _, c := range []struct {
		schedule string
		forgets  map[string][]int // the nodes that forget, by step
		repeated bool             // the change is stated again, while no node votes
		without  simBroken
	}{
		{"a node forgets before the change", map[string][]int{"before": {1}}, false, simBroken{shrinks: true, alone: true}},
		{"a node forgets during the change", map[string][]int{"during": {1}}, false, simBroken{shrinks: true, alone: true}},
		{"a node forgets after the change", map[string][]int{"after": {1}}, false, simBroken{shrinks: true, alone: true}},
		{"two nodes forget before the change", map[string][]int{"before": {1, 2}}, false, simBroken{alone: true, own: true}},
		{"two nodes forget during the change", map[string][]int{"during": {1, 2}}, false, simBroken{alone: true, own: true}},
		{"two nodes forget before the change is stated again", map[string][]int{"again": {1, 2}}, true, simBroken{alone: true, own: true}},
		{"a node forgets after the change was stated again", map[string][]int{"after": {1}}, true, simBroken{shrinks: true}},
	} {
		t.Run(c.schedule, func(t *testing.T) {
			run := func(broken simBroken) error {
				w := &world{active: map[*holder]time.Time{}, orderly: true}
				synctest.Test(t, func(t *testing.T) { w.shorten(t, broken, c.forgets, c.repeated) })
				return w.problem
			}
			if err := run(simBroken{}); err != nil {
				t.Error(err)
			}
			if run(c.without) == nil {
				t.Errorf("%+v: taken out, and nothing noticed", c.without)
			}
		})
	}
}

// shorten takes a lease, states a shorter guard, and takes the next lease.
func (w *world) shorten(t *testing.T, broken simBroken, forgets map[string][]int, repeated bool) {
	const before, after = 600 * time.Millisecond, 150 * time.Millisecond
	w.guard, w.allow, w.rng = before, 40*time.Millisecond, rand.New(rand.NewPCG(1, 1))
	for i := range 3 {
		w.servers = append(w.servers, newSimServer(i))
		w.servers[i].broken = broken
	}
	w.prime(3)
	m := newSimMachine(1, false)
	open := func(guard time.Duration, far int) *Backend { // no packet reaches the node far
		nodes := make([]driver.Backend, 3)
		for i, srv := range w.servers {
			net := &network{delay: time.Millisecond}
			if i == far {
				net.lose = 1
			}
			nodes[i] = &simNode{s: srv, net: net, machine: m, life: time.Hour, rng: rand.New(rand.NewPCG(1, uint64(i)))}
		}
		b, err := New(nodes, &Options{Guard: guard, ClockAllowance: w.allow, NodeTimeout: 50 * time.Millisecond})
		drivertest.Must(t, err)
		b.clock = m.clock
		t.Cleanup(func() { _ = b.Close() })
		return b
	}
	forget := func(step string) {
		for _, i := range forgets[step] {
			w.servers[i].restart(func(int) int { return 0 })
		}
	}
	take := func(b *Backend, owner string, ttl time.Duration) {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			l, err := b.Acquire(t.Context(), &driver.Request{Key: simKeyName, Owner: owner, TTL: ttl})
			if err == nil {
				w.granted(&holder{m: m}, l.Grant(), m.end(l.(*lease).expiry()), w.largest)
				return
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	take(open(before, 2), "a lease of the longer guard", before)
	forget("before")
	b := open(after, -1)
	time.AfterFunc(3*time.Millisecond, func() { forget("during") })
	state := func() {
		for { // it fails where a node was restarted just then
			if _, err := b.Bootstrap(t.Context(), &quorum.Bootstrap{Statement: quorum.StateChanged}); err == nil {
				return
			}
		}
	}
	state()
	if repeated {
		forget("again")
		state()
	}
	forget("after")
	take(open(after, -1), "a lease of the shorter guard", after)
}
