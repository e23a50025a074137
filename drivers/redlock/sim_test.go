package redlock

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var (
	schedules = flag.Int("redlock.schedules", defaultSchedules, "how many schedules the simulation runs of each kind")
	seedFlag  = flag.Uint64("redlock.seed", 0, "the one schedule to run; 0: many")
)

// kind is what may happen in a schedule, and so what has to hold.
type kind struct {
	name string
	// wild schedules break every assumption on time: keys expire at any moment, all
	// clocks step. Order and freshness (G2, G3) hold nevertheless. Others stay within
	// the assumptions of exclusion (G1), with one clock that steps and stays.
	wild bool
	// lossless schedules lose no packet, so that clean-up (G4) has its bound.
	lossless bool
	// forgetful ones restart nodes without their memory, into a quarantine.
	forgetful bool
	// steps: one node's clock steps, and stays.
	steps bool
	// dense ones have short ways, many copies of requests that arrive late, and
	// keys that hardly stay.
	dense bool
}

var kinds = []kind{
	{name: "timely", steps: true},
	{name: "wild", wild: true},
	{name: "lossless", lossless: true},
	{name: "dense", wild: true, dense: true},
	{name: "forgetful", forgetful: true},
}

// sabotage is what a run of the simulation takes out.
type sabotage struct {
	engine mutation
	node   simBroken
}

const simGuard = 2 * time.Second

// world is one schedule: a few servers, a few clients, and what they believe.
type world struct {
	kind    kind
	seed    uint64
	rng     *rand.Rand
	net     network
	servers []*simServer
	over    chan struct{}

	mu        sync.Mutex
	active    map[*holder]time.Time // until when each believes to hold the lock
	tokens    map[uint64]bool
	largest   uint64 // of the leases that were returned
	grants    int
	renewals  int
	problem   error
	leftovers time.Time // when the last key of an unreleased lease ends
}

type holder struct{ token uint64 }

const simKeyName = "k"

// simulate runs one schedule and returns the first promise that it broke.
func simulate(t *testing.T, k kind, seed uint64, s sabotage) (w *world) {
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(k, seed, s)
		w.run(s)
	})
	return w
}

func newWorld(k kind, seed uint64, s sabotage) *world {
	w := &world{
		kind: k, seed: seed, rng: rand.New(rand.NewPCG(seed, 1)), over: make(chan struct{}),
		active: map[*holder]time.Time{}, tokens: map[uint64]bool{},
	}
	w.net = network{delay: []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}[w.rng.IntN(3)], slow: 0.1 * w.rng.Float64(), twice: 0.2 * w.rng.Float64()}
	if k.lossless {
		w.net.twice = 0 // a copy of a request may arrive after the release
	} else {
		w.net.lose = 0.15 * w.rng.Float64()
	}
	if k.dense {
		w.net = network{delay: time.Millisecond, twice: 0.7, lag: 45 * time.Millisecond}
	}
	n := []int{3, 3, 4, 5, 5}[w.rng.IntN(5)]
	for i := range n {
		srv := newSimServer(i)
		srv.broken = s.node
		srv.offset = time.Duration(w.rng.Int64N(int64(20 * time.Millisecond)))
		srv.rate = (w.rng.Float64() - 0.5) / 100
		w.servers = append(w.servers, srv)
	}
	return w
}

// trace says what happens, where a single schedule is run.
func (w *world) trace(format string, args ...any) {
	if *seedFlag != 0 {
		fmt.Printf("%v %s\n", time.Now().Format("05.000000"), fmt.Sprintf(format, args...))
	}
}

func (w *world) fail(format string, args ...any) {
	if w.problem == nil {
		w.problem = fmt.Errorf(format, args...)
	}
}

func (w *world) run(s sabotage) {
	var clients, chaos sync.WaitGroup
	for i := range 2 + w.rng.IntN(3) {
		clients.Go(func() { w.client(i, s) })
	}
	chaos.Go(w.chaos)
	clients.Wait()
	close(w.over)
	chaos.Wait()
	w.cleanup()
}

// pace is how long clients and trouble rest, at most.
func (w *world) pace() time.Duration {
	if w.kind.dense {
		return 12 * time.Millisecond
	}
	return 150 * time.Millisecond
}

// client takes and gives the lock a few times, in one way or another.
func (w *world) client(id int, s sabotage) {
	rng := rand.New(rand.NewPCG(w.seed, uint64(100+id)))
	nodes := make([]driver.Backend, len(w.servers))
	for i, srv := range w.servers {
		nodes[i] = &simNode{s: srv, net: &w.net, rng: rand.New(rand.NewPCG(w.seed, uint64(1000+100*id+i)))}
	}
	b, err := New(nodes, &Options{Guard: simGuard})
	if err != nil {
		panic(err)
	}
	b.mutation = s.engine
	b.random = func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	for op := range 5 {
		time.Sleep(time.Duration(rng.Int64N(int64(w.pace()))))
		w.bid(b, rng, fmt.Sprintf("c%d/%d", id, op))
	}
	_ = b.Close() // the nodes' Close has no error
}

// bid is one lease, from the request to its end.
func (w *world) bid(b *Backend, rng *rand.Rand, owner string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if rng.IntN(5) == 0 {
		time.AfterFunc(time.Duration(rng.Int64N(int64(4*w.net.delay))), cancel)
	}
	ttl := time.Duration(150+rng.IntN(400)) * time.Millisecond
	if rng.IntN(6) == 0 {
		ttl = time.Duration(10+rng.IntN(30)) * time.Millisecond
	}
	w.mu.Lock()
	before := w.largest
	w.mu.Unlock()
	l, err := b.Acquire(ctx, &driver.Request{Key: simKeyName, Owner: owner, TTL: ttl})
	if err != nil {
		return
	}
	w.trace("%s has the lock: %s", owner, l.(*lease))
	h := w.granted(l.Grant(), before)
	for range rng.IntN(4) {
		time.Sleep(time.Duration(rng.Int64N(int64(min(w.pace(), ttl*2/3)))))
		if !w.renew(l, h, ttl) {
			break
		}
	}
	if rng.IntN(6) == 0 { // a client that dies: its lease runs out
		w.mu.Lock()
		defer w.mu.Unlock()
		end := time.Now().Add(ttl + b.grace(ttl) + b.timeout(ttl)*3)
		if end.After(w.leftovers) {
			w.leftovers = end
		}
		return
	}
	w.mu.Lock()
	delete(w.active, h)
	w.mu.Unlock()
	rctx, rcancel := context.WithTimeout(context.Background(), time.Minute)
	defer rcancel()
	_ = l.Release(rctx) // it may fail where packets are lost
}

// granted checks a grant that is being returned.
func (w *world) granted(g driver.Grant, before uint64) *holder {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.grants++
	switch {
	case w.tokens[g.Fence]:
		w.fail("G2: token %d was granted twice", g.Fence)
	case g.Fence <= before:
		w.fail("G2: token %d was granted after %d had been returned", g.Fence, before)
	case !now.Before(g.Expires):
		w.fail("G1: a lease was returned %v after its end", now.Sub(g.Expires))
	}
	w.tokens[g.Fence] = true
	w.largest = max(w.largest, g.Fence)
	h := &holder{token: g.Fence}
	w.believe(h, g.Expires, now)
	return h
}

// believe notes that h has the lock until end, as from now.
func (w *world) believe(h *holder, end, now time.Time) {
	for other, until := range w.active {
		if other != h && now.Before(until) && now.Before(end) && !w.kind.wild {
			w.fail("G1: token %d is valid for another %v, and token %d was granted beside it", other.token, until.Sub(now), h.token)
		}
	}
	w.active[h] = end
}

func (w *world) renew(l driver.Lease, h *holder, ttl time.Duration) bool {
	w.mu.Lock()
	before := w.largest
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	g, err := l.Renew(ctx, &driver.Renewal{TTL: ttl})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace("renewal: %v %s", err, l.(*lease))
	if errors.Is(err, driver.ErrLost) {
		delete(w.active, h) // it knows
		return false
	}
	if err != nil {
		return true
	}
	w.renewals++
	if before > h.token {
		w.fail("G3: the lease of token %d was renewed after %d had been returned", h.token, before)
	}
	w.believe(h, g.Expires, time.Now())
	return true
}

// chaos makes trouble until the clients are done.
func (w *world) chaos() {
	rng := rand.New(rand.NewPCG(w.seed, 2))
	stepper := w.servers[rng.IntN(len(w.servers))]
	stepped := false
	forgot := false
	for {
		t := time.NewTimer(time.Duration(1 + rng.Int64N(int64(w.pace()*2/3))))
		select {
		case <-w.over:
			t.Stop()
			return
		case <-t.C:
		}
		s := w.servers[rng.IntN(len(w.servers))]
		what := rng.IntN(10)
		w.trace("chaos %d on %d or %d", what, s.id, stepper.id)
		step := time.Duration(rng.Int64N(int64(4*time.Second))) - 2*time.Second
		pause := time.Duration(rng.Int64N(int64(150 * time.Millisecond)))
		switch {
		case what == 0:
			s.pause(pause)
		case w.kind.wild && what < 5 || w.kind.dense:
			s.expire()
		case w.kind.wild && what == 5:
			s.step(step)
		case w.kind.steps && what == 1 && !stepped:
			stepped = true // and stays: see G1
			stepper.step(step)
		case w.kind.forgetful && what < 3 && !forgot:
			forgot = true
			stepper.forget()
		}
	}
}

func (s *simServer) pause(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = time.Now().Add(d)
}

func (s *simServer) step(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offset += d
}

// expire drops the lock, and keeps the counter.
func (s *simServer) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys {
		k.owner = ""
	}
}

// forget restarts the server without its memory, into the quarantine of the guard.
func (s *simServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run++
	s.keys = map[string]*simKey{}
	s.refuses = time.Now().Add(simGuard + simGuard/2)
}

// cleanup checks G4: when nobody bids any longer, only the leases that ended without a
// release are left, and they not for longer than TTL and grace.
func (w *world) cleanup() {
	if !w.kind.lossless {
		return
	}
	// Close has waited for every request; what is left is one way of a packet.
	time.Sleep(20*w.net.delay + 200*time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.servers {
		s.mu.Lock()
		k := s.key(simKeyName)
		if k.owner != "" && time.Now().After(w.leftovers) {
			w.fail("G4: %s has node %d for another %v", k.owner, s.id, k.until.Sub(s.clock()))
		}
		s.mu.Unlock()
	}
}

// hunt runs schedules until one breaks a promise, and returns it; nil: none of n did.
func hunt(t *testing.T, k kind, n int, s sabotage) (*world, *atomic.Int64) {
	t.Helper()
	var next, grants atomic.Int64
	var found atomic.Pointer[world]
	var hunters sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		hunters.Go(func() {
			for found.Load() == nil {
				i := next.Add(1)
				if i > int64(n) {
					return
				}
				w := simulate(t, k, uint64(i), s)
				grants.Add(int64(w.grants))
				if w.problem != nil {
					found.Store(w)
				}
			}
		})
	}
	hunters.Wait()
	return found.Load(), &grants
}

// The engine keeps its promises in every schedule.
func TestSimulation(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			if *seedFlag != 0 {
				if w := simulate(t, k, *seedFlag, sabotage{}); w.problem != nil {
					t.Fatal(w.problem)
				}
				return
			}
			w, grants := hunt(t, k, *schedules, sabotage{})
			if w != nil {
				t.Fatalf("%v\nto run this schedule again: -run 'TestSimulation/%s' -redlock.seed=%d", w.problem, k.name, w.seed)
			}
			if grants.Load() < int64(*schedules) {
				t.Errorf("only %d grants in %d schedules: nothing was tried", grants.Load(), *schedules)
			}
			t.Logf("%d schedules, %d grants", *schedules, grants.Load())
		})
	}
}

// String shows the legs of a lease.
func (l *lease) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := fmt.Sprintf("%s token %d until %s", l.req.Owner, l.fence, l.expires.Format("05.000000"))
	for i := range l.legs {
		g := &l.legs[i]
		s += fmt.Sprintf(" [%d: %d x%d busy=%v %v±%v]", i, g.state, g.fence, g.busy, g.clock.mid, g.clock.half)
	}
	return s
}
