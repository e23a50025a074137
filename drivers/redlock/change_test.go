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
				w := &changeWorld{world: &world{active: map[*holder]time.Time{}, orderly: true}}
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

// The guard was lengthened, and a client has a lease of the longer one, on nodes 0 and 1. Nodes come back with a
// memory of before the change, and with it the shorter quarantine, which ends before the lease.
func TestALeaseOutlivesAForgottenLongerGuard(t *testing.T) {
	for _, forget := range [][]int{{1}, {1, 2}} {
		run := func(broken simBroken) error {
			c := &changeWorld{world: &world{active: map[*holder]time.Time{}, orderly: true}}
			synctest.Test(t, func(t *testing.T) { c.lengthen(t, broken, forget) })
			return c.problem
		}
		if err := run(simBroken{}); err != nil {
			t.Errorf("%v: %v", forget, err)
		}
		if run(simBroken{own: true}) == nil {
			t.Errorf("%v: the quarantine of the others' terms is taken out, and nothing noticed", forget)
		}
	}
}

// changeWorld is a world of three servers whose guard changes.
type changeWorld struct {
	*world
	t *testing.T
	m *simMachine
}

func (c *changeWorld) begin(t *testing.T, broken simBroken, guard time.Duration) {
	c.t, c.m = t, newSimMachine(1, false)
	c.guard, c.allow, c.rng = guard, 40*time.Millisecond, rand.New(rand.NewPCG(1, 1))
	for i := range 3 {
		c.servers = append(c.servers, newSimServer(i))
		c.servers[i].broken = broken
	}
	c.prime(3)
}

// open opens a client of a guard. No packet reaches the node far.
func (c *changeWorld) open(guard time.Duration, far int) *Backend {
	nodes := make([]driver.Backend, 3)
	for i, srv := range c.servers {
		net := &network{delay: time.Millisecond}
		if i == far {
			net.lose = 1
		}
		nodes[i] = &simNode{s: srv, net: net, machine: c.m, life: time.Hour, rng: rand.New(rand.NewPCG(1, uint64(i)))}
	}
	b, err := New(nodes, &Options{Guard: guard, ClockAllowance: c.allow, NodeTimeout: 50 * time.Millisecond})
	drivertest.Must(c.t, err)
	b.clock = c.m.clock
	c.t.Cleanup(func() { _ = b.Close() })
	return b
}

func (c *changeWorld) take(b *Backend, owner string, ttl time.Duration) {
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		l, err := b.Acquire(c.t.Context(), &driver.Request{Key: simKeyName, Owner: owner, TTL: ttl})
		if err == nil {
			c.granted(&holder{m: c.m}, l.Grant(), c.m.end(l.(*lease).expiry()), c.largest)
			return
		}
		if time.Now().After(end) {
			c.t.Fatal(err)
		}
	}
}

// state states a change. It fails where a node was restarted just then.
func (c *changeWorld) state(b *Backend) {
	for {
		if _, err := b.Bootstrap(c.t.Context(), &quorum.Bootstrap{Statement: quorum.StateChanged}); err == nil {
			return
		}
	}
}

func (c *changeWorld) lengthen(t *testing.T, broken simBroken, forget []int) {
	const before, after = 150 * time.Millisecond, 600 * time.Millisecond
	c.begin(t, broken, before)
	known := make([]int, 3) // what each node had written before the change
	for i, srv := range c.servers {
		known[i] = len(srv.written) - 1
	}
	c.state(c.open(after, -1))
	c.take(c.open(after, 2), "a lease of the longer guard", after)
	for _, i := range forget {
		c.servers[i].restart(func(int) int { return known[i] })
	}
	c.take(c.open(before, -1), "a lease of the shorter guard", before)
}

// shorten takes a lease, states a shorter guard, and takes the next lease.
func (c *changeWorld) shorten(t *testing.T, broken simBroken, forgets map[string][]int, repeated bool) {
	const before, after = 600 * time.Millisecond, 150 * time.Millisecond
	c.begin(t, broken, before)
	forget := func(step string) {
		for _, i := range forgets[step] {
			c.servers[i].restart(func(int) int { return 0 })
		}
	}
	c.take(c.open(before, 2), "a lease of the longer guard", before)
	forget("before")
	b := c.open(after, -1)
	time.AfterFunc(3*time.Millisecond, func() { forget("during") })
	c.state(b)
	if repeated {
		forget("again")
		c.state(b)
	}
	forget("after")
	c.take(c.open(after, -1), "a lease of the shorter guard", after)
}
