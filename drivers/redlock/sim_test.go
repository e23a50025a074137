package redlock

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/quorum"
)

var (
	schedules = flag.Int("redlock.schedules", 0, "how many schedules the simulation runs of each kind; 0: 30, or 300 in the deep depth (8,000 of each, with readers, were run without a failure)")
	firstFlag = flag.Uint64("redlock.first", 1, "the seed of the first of many schedules")
	seedFlag  = flag.Uint64("redlock.seed", 0, "the one schedule to run; 0: many")
)

// kind says which events may happen in a schedule, and so which promises must hold.
type kind struct {
	name string
	// wild schedules break every assumption about time: keys expire at any moment, and all
	// clocks step. Order and freshness (G2, G3) hold nevertheless. All other schedules stay
	// within the assumptions of exclusion (G1), with at most one clock that steps and stays.
	wild bool
	// lossless schedules lose no packet, so that clean-up (G4) is bounded.
	lossless bool
	// steps: one node's clock steps once and stays wrong.
	steps bool
	// dense worlds have short delays, many copies of requests that arrive late, and keys with
	// short lives.
	dense bool
	// forgets: any number of nodes lose their memory, or a part of it, and their scripts.
	forgets bool
	// clocks: the clocks of a minority are set, and set back after a contact; or they are wrong
	// at a start and set right later.
	clocks bool
	// crosses: servers restart with an old RDB file during handshakes.
	crosses bool
	// vanishes: keys expire at any moment, and counters are forgotten as well.
	vanishes bool
	// fresh: the servers are new, clients come and go, and some clients state that the servers
	// are new.
	fresh bool
	// mixed: some clients have a longer guard, and longer TTLs, than others.
	mixed bool
	// grows: the number of nodes changes, by the documented procedure.
	grows bool
	// changes: the terms change, by the documented procedure.
	changes bool
	// differing: all clients differ, sleeps are long, the clock of one node is wrong in any
	// way, and counters expire.
	differing bool
}

// volatile reports whether the schedules test the restart guard.
func (k kind) volatile() bool {
	return k.forgets || k.clocks || k.fresh || k.mixed || k.grows || k.changes
}

var kinds = []kind{
	{name: "timely", steps: true},
	{name: "wild", wild: true},
	{name: "lossless", lossless: true},
	{name: "dense", wild: true, dense: true},
	{name: "forgetful", forgets: true},
	{name: "set", clocks: true, forgets: true},
	{name: "vanishing", vanishes: true, forgets: true},
	{name: "crossing", crosses: true, forgets: true},
	{name: "fresh", fresh: true, forgets: true},
	{name: "mixed", mixed: true, clocks: true},
	{name: "growing", grows: true},
	{name: "changing", changes: true, forgets: true},
	{name: "differing", differing: true},
}

// sabotage says which parts a run of the simulation takes out.
type sabotage struct {
	engine mutation
	node   simBroken
	asleep bool // clients do not know how long their machines have slept
}

// world is one schedule: a few servers, a few clients, and the leases that they believe to have.
type world struct {
	kind    kind
	seed    uint64
	rng     *rand.Rand
	net     network
	servers []*simServer
	guard   time.Duration
	allow   time.Duration
	over    chan struct{}

	minority  []*simServer  // the servers whose clocks are set
	most      time.Duration // how far they are set at most
	orderly   bool          // G2 and G3 are promised
	stepper   *simServer    // the server whose clock steps
	stepped   bool          // a clock has stepped, or a server was flushed
	differ    bool          // every value is drawn separately for each client
	tick      time.Duration // clients round the tokens that they propose to whole ticks; zero: they do not
	life      time.Duration // lifetime of counters
	reads     int           // how many of ten bids are readers'
	ranged    bool          // a part of the bids asks for ranges of tokens
	machines  []*simMachine // guarded by mu
	changed   chan struct{} // closed when the number of nodes has changed
	before    int           // number of nodes before the change
	after     time.Duration // the guard after the change
	primed    bool          // the servers were used before; otherwise clients state that they are new
	claims    bool          // some clients do, in a fresh world
	reopen    atomic.Int64  // how often all clients had to begin anew
	habit     int           // how servers usually forget
	weak      *simServer    // the server that is often slow
	taken     chan struct{} // receives when a client has got the lock
	forgotten int

	mu        sync.Mutex
	active    map[*holder]time.Time // until when each holder believes that it has the lock
	ranges    []leased              // the first and last tokens of all leases: a holder may have used all when it dies
	largest   uint64                // largest token of the returned leases
	writers   uint64                // and of those of writers
	grants    int
	renewals  int
	problem   error
	leftovers time.Time // when the last key of an unreleased lease ends
}

type holder struct {
	token uint64
	m     *simMachine
	reads bool
}

// leased is the first and the last token of a lease.
type leased struct {
	first, last uint64
	reads       bool
}

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
		active: map[*holder]time.Time{}, guard: 2 * time.Second, allow: DefaultClockAllowance, orderly: true, changed: make(chan struct{}), taken: make(chan struct{}, 1),
	}
	w.net = network{delay: []time.Duration{time.Millisecond, 5 * time.Millisecond, 20 * time.Millisecond}[w.rng.IntN(3)], slow: 0.1 * w.rng.Float64(), twice: 0.2 * w.rng.Float64()}
	if k.lossless {
		w.net.twice = 0 // because a copy of a request may arrive after the release
	} else {
		w.net.lose = 0.15 * w.rng.Float64()
	}
	if k.dense {
		w.net = network{delay: time.Millisecond, twice: 0.7, lag: 45 * time.Millisecond}
	}
	if k.volatile() { // because many other events happen
		w.net.delay = []time.Duration{time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond}[w.rng.IntN(3)]
		w.net.slow, w.net.lose, w.net.twice = w.net.slow/2, w.net.lose/3, w.net.twice/4
	}
	if k.wild && seed%4 != 0 {
		w.guard = -1
	}
	w.differ = k.differing || w.rng.IntN(2) == 0
	if w.rng.IntN(3) == 0 {
		w.tick = []time.Duration{time.Millisecond, 20 * time.Millisecond, 200 * time.Millisecond}[w.rng.IntN(3)]
	}
	n := []int{3, 3, 4, 5, 5}[w.rng.IntN(5)]
	if k.volatile() {
		w.guard, w.allow = 600*time.Millisecond, 40*time.Millisecond
		n = []int{3, 3, 3, 4, 5}[w.rng.IntN(5)]
	}
	if k.differing {
		w.guard, w.allow = time.Duration(200+w.rng.IntN(1500))*time.Millisecond, time.Duration(float64(time.Millisecond)*math.Pow(60, w.rng.Float64()))
	}
	if k.grows {
		w.before, n = 3, 5
		if w.rng.IntN(2) == 0 {
			w.before, n = 5, 3
		}
	}
	if w.after = w.guard * 2; seed%2 == 0 {
		w.after = w.guard / 4
	}
	for i := range max(n, w.before) {
		srv := newSimServer(i)
		srv.broken = s.node
		spread := w.allow / 5
		if k.wild {
			spread *= 4
		}
		srv.offset = time.Duration(w.rng.Int64N(int64(spread)))
		srv.right = srv.offset
		srv.rate = (w.rng.Float64() - 0.5) / 100
		if k.differing { // the good clocks stay this close for the whole schedule
			srv.rate = 0
			srv.offset = time.Duration(w.rng.Int64N(int64(w.allow)))
			srv.right = srv.offset
		}
		w.servers = append(w.servers, srv)
	}
	if k.volatile() {
		w.unsettle()
	}
	w.stepper = w.servers[w.rng.IntN(len(w.servers))]
	if w.primed = w.guard > 0 && !k.fresh && (k.volatile() || w.rng.IntN(4) > 0); w.primed {
		w.prime(cmp.Or(w.before, n))
	}
	if s == (sabotage{}) || s.node.first { // the known schedules without another part have none
		w.ranged = rand.New(rand.NewPCG(seed, 4)).IntN(2) == 0
	}
	if s == (sabotage{}) {
		w.reads = []int{0, 0, 5, 9}[rand.New(rand.NewPCG(seed, 5)).IntN(4)]
	}
	if s.node.new { // a statement that arrives when its node was used and has forgotten: seldom in other draws
		w.claims, w.habit, w.net.twice, w.net.lag = true, emptied, 0.7, w.guard/2
	}
	w.life = shortestLife + 4*max(w.guard, mostGuard) + time.Duration(w.rng.Int64N(int64(time.Minute)))
	return w
}

const (
	// A counter must live longer than the longest step back of a clock between two checks, plus
	// the interval in lua/counter.lua.
	shortestLife = 15 * time.Second
	// mostGuard is the longest guard of a client of a differing world.
	mostGuard = 1700 * time.Millisecond
)

// prime makes the first n servers ones that were used before.
func (w *world) prime(n int) {
	guard := w.guard
	if w.kind.mixed && w.rng.IntN(2) == 0 {
		guard /= 3
	}
	t := derive(n, guard, w.allow, 1+w.rng.IntN(4))
	for _, srv := range w.servers[:n] {
		srv.handshake(simShake{text: simText{run: srv.name(), terms: t}, terms: t, mode: "bootstrap", until: simPending, check: true})
		srv.mark()
	}
}

// unsettle decides which events will disturb the servers.
func (w *world) unsettle() {
	w.claims = w.kind.fresh && w.rng.IntN(2) == 0
	w.orderly = !w.kind.grows
	w.habit = w.rng.IntN(ways)
	w.weak = w.servers[w.rng.IntN(len(w.servers))]
	switch {
	case w.kind.crosses:
		w.net.delay = 20 * time.Millisecond
	case w.kind.vanishes:
		w.net.lose = 0.1 + 0.1*w.rng.Float64()
	case w.kind.clocks && w.rng.IntN(3) == 0:
		w.forgotten = mostForgotten
	case w.rng.IntN(3) == 0:
		w.net.lag = w.guard / 2
	}
	if w.kind.clocks {
		w.most = w.guard/4 - w.allow // clocks agree to within a quarter of the guard
		if w.rng.IntN(3) > 0 {
			w.most, w.orderly = 3*time.Second, false
		}
		for _, i := range w.rng.Perm(len(w.servers))[:(len(w.servers)-1)/2] {
			w.minority = append(w.minority, w.servers[i])
		}
	}
	for _, srv := range w.servers {
		srv.rate /= 2
		srv.durable = w.kind.forgets && w.rng.IntN(8) == 0
	}
}

// trace notes an event if only one schedule runs.
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
	if w.kind.grows || w.kind.changes {
		clients.Go(func() { w.change(s) })
	}
	if w.kind.volatile() {
		chaos.Go(w.storms)
	} else {
		chaos.Go(w.chaos)
	}
	clients.Wait()
	close(w.over)
	chaos.Wait()
	w.cleanup()
}

// pace is how long clients and disturbances pause, at most.
func (w *world) pace() time.Duration {
	if w.kind.dense {
		return 12 * time.Millisecond
	}
	if w.kind.volatile() || w.kind.differing {
		return 60 * time.Millisecond
	}
	return 150 * time.Millisecond
}

// client takes and releases the lock a few times, with variations.
func (w *world) client(id int, s sabotage) {
	rng := rand.New(rand.NewPCG(w.seed, uint64(100+id)))
	servers := w.servers
	switch {
	case w.kind.grows && id%2 == 0:
		servers = servers[:w.before]
	case w.kind.grows:
		<-w.changed
		servers = servers[:8-w.before]
	case w.kind.changes && id%2 == 1:
		<-w.changed
	}
	b := w.open(id, servers, rng, s)
	programs := int64(0)
	bids, most := 5, 5
	if w.kind.volatile() {
		most = 24 // because many bids are refused
	}
	if w.kind.differing {
		bids, most = 12, 24
	}
	for op := 0; op < most && bids > 0; op++ {
		if op > 0 || !w.kind.fresh { // there all clients begin at once
			time.Sleep(time.Duration(rng.Int64N(int64(w.pace()))))
		}
		if w.kind.differing && rng.IntN(40) == 0 { // waits until the counters have ended
			time.Sleep(w.life/2 + time.Duration(rng.Int64N(int64(w.life))))
		}
		anew := w.reopen.Load()
		if (w.kind.fresh || w.kind.forgets && w.kind.clocks) && (rng.IntN(4) == 0 || anew > programs) { // another program
			programs = anew
			_ = b.Close()
			b = w.open(id, servers, rng, s)
		}
		if w.bid(b, rng, fmt.Sprintf("c%d/%d", id, op)) || !w.kind.volatile() && !w.kind.differing {
			bids--
		}
	}
	_ = b.Close() // the nodes' Close never fails
}

const operator = -1

// open returns a client's quorum over the servers.
func (w *world) open(id int, servers []*simServer, rng *rand.Rand, s sabotage) *Backend {
	nodes := make([]driver.Backend, len(servers))
	o, net, rate := &Options{Guard: w.guard, ClockAllowance: w.allow}, &w.net, 1.0
	switch {
	case id == operator:
		net = &network{delay: w.guard / 2} // from far away
	case w.differ:
		net, rate = w.draw(o, rng)
	}
	m := newSimMachine(rate, s.asleep)
	if id != operator {
		w.mu.Lock()
		w.machines = append(w.machines, m)
		w.mu.Unlock()
	}
	for i, srv := range servers {
		net := net
		if w.differ && !w.kind.lossless && rng.IntN(3) == 0 { // the links of a client differ
			own := *net
			own.delay *= time.Duration(1 + rng.IntN(4))
			net = &own
		}
		nodes[i] = &simNode{s: srv, net: net, durable: srv.durable, machine: m, life: w.life, rng: rand.New(rand.NewPCG(rng.Uint64(), uint64(i)))}
	}
	if w.kind.changes && (id == operator || id%2 == 1) {
		o.Guard = w.after
		o.NodeTimeout = min(o.NodeTimeout, o.Guard)
	}
	if o.NodeTimeout == 0 && rng.IntN(3) > 0 {
		o.NodeTimeout = 50 * time.Millisecond // a short one makes room for more events
	}
	if w.kind.crosses {
		o.NodeTimeout = 10 * w.net.delay
	}
	if w.kind.mixed && id%2 == 0 {
		o.Guard /= 3
		o.NodeTimeout = min(o.NodeTimeout, o.Guard)
	}
	switch {
	case w.guard < 0:
	case w.primed:
		o.Bootstrap = w.kind.differing
	default:
		o.Bootstrap = !w.kind.fresh || w.claims && rng.IntN(2) == 0
	}
	b, err := New(nodes, o)
	if err != nil {
		panic(err)
	}
	mutate(b, s.engine)
	b.clock = m.clock
	b.random = func(d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
	return b
}

// draw draws the properties of one client: its options, its link, and the rate of its clocks.
func (w *world) draw(o *Options, rng *rand.Rand) (*network, float64) {
	own := w.net
	if w.kind.volatile() {
		own.delay = own.delay * time.Duration(1+rng.IntN(4)) / 2
	} else if !w.kind.dense {
		own.delay = []time.Duration{time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond}[rng.IntN(3)]
	}
	if rng.IntN(2) == 0 && w.guard > 0 && !w.kind.volatile() { // the client adopts the nodes' terms, or sets them
		o.Guard = 200*time.Millisecond + time.Duration(rng.Int64N(int64(mostGuard-200*time.Millisecond)))
		o.ClockAllowance = w.allow * time.Duration(1+rng.IntN(3))
		o.ClockAllowance = min(o.ClockAllowance, o.Guard-time.Millisecond)
	}
	if rng.IntN(2) == 0 {
		o.NodeTimeout = time.Duration(5+rng.IntN(200)) * time.Millisecond
		if w.guard > 0 {
			o.NodeTimeout = min(o.NodeTimeout, o.Guard)
		}
	}
	o.DriftPercent = 1 + rng.IntN(8)
	most := float64(o.DriftPercent) / 100
	rate := []float64{1 / (1 + most), 1, 1 + most, 1 + (rng.Float64()-0.5)*most}[rng.IntN(4)]
	return &own, rate
}

// change changes the number of nodes by the documented procedure: clients with the new list
// begin only when all its nodes know of the change.
func (w *world) change(s sabotage) {
	defer close(w.changed)
	rng := rand.New(rand.NewPCG(w.seed, 3))
	time.Sleep(time.Duration(rng.Int64N(int64(time.Second))))
	servers := w.servers
	if w.kind.grows {
		servers = servers[:8-w.before]
	}
	state := func(servers []*simServer) error {
		b := w.open(operator, servers, rng, s)
		defer func() { _ = b.Close() }()
		for {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			_, err := b.Bootstrap(ctx, &quorum.Bootstrap{Statement: quorum.StateChanged})
			cancel()
			if err == nil || errors.Is(err, driver.ErrRefused) {
				return err
			}
		}
	}
	for state(servers) != nil { // too few nodes remember the old list
		_ = state(w.servers[:w.before])
	}
}

// drawTTL draws the TTL of a bid.
func (w *world) drawTTL(b *Backend, rng *rand.Rand) time.Duration {
	ttl := time.Duration(150+rng.IntN(400)) * time.Millisecond
	if rng.IntN(6) == 0 {
		ttl = time.Duration(10+rng.IntN(30)) * time.Millisecond
	}
	longest := b.Info().MaxTTL
	if w.kind.volatile() && rng.IntN(2) == 0 || ttl > longest {
		ttl = longest
	}
	if w.kind.differing {
		ttl = time.Duration(float64(10*time.Millisecond) * math.Pow(float64(longest)/float64(10*time.Millisecond), rng.Float64()))
		ttl = max(ttl, b.Info().MinTTL)
	}
	return max(ttl, b.opts.NodeTimeout)
}

// bid takes one lease and keeps it until its end. It returns false if the lease is not granted.
func (w *world) bid(b *Backend, rng *rand.Rand, owner string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if rng.IntN(5) == 0 && (!w.kind.volatile() || rng.IntN(3) == 0) {
		time.AfterFunc(time.Duration(rng.Int64N(int64(4*w.net.delay))), cancel)
	}
	ttl := w.drawTTL(b, rng)
	if rng.IntN(2) == 0 { // it waits in the queue
		b.waits.enter(simKeyName)
		defer w.leave(b, rng.IntN(4) == 0)
	}
	req := &driver.Request{Key: simKeyName, Owner: owner, TTL: ttl}
	if w.tick > 0 {
		req.FenceFloor = uint64(time.Now().Truncate(w.tick).Add(w.tick).UnixMicro())
	}
	if w.ranged && rng.IntN(3) > 0 {
		req.Tokens = uint32(math.Pow(driver.MaxTokens, rng.Float64()))
	}
	if w.reads > 0 && rng.IntN(10) < w.reads {
		req.Mode = driver.Shared
	}
	m := b.nodes[0].backend.(*simNode).machine
	m.thaw()
	w.mu.Lock()
	before := w.largest
	w.mu.Unlock()
	l, err := b.Acquire(context.WithValue(ctx, callerKey{}, ctx), req)
	if err != nil {
		w.trace("%s: %v", owner, err)
		return false
	}
	w.trace("%s has the lock: %s", owner, l.(*lease))
	h := w.granted(&holder{m: m, reads: req.Mode == driver.Shared}, l.Grant(), m.end(l.(*lease).expiry()), before)
	for range rng.IntN(4) {
		time.Sleep(time.Duration(rng.Int64N(int64(min(w.pace(), ttl*2/3)))))
		m.thaw()
		if (w.kind.clocks || w.kind.vanishes) && !time.Now().Before(m.end(l.(*lease).expiry())) {
			break // callers must not renew after the deadline, which matters if nodes forget
		}
		if !w.renew(m, l, h, ttl) {
			break
		}
	}
	m.thaw()
	if rng.IntN(6) == 0 || w.kind.volatile() && rng.IntN(2) == 0 { // the client dies: its lease expires
		w.leaves(ttl + w.mostGrace() + b.timeout(ttl)*3)
		return true
	}
	w.mu.Lock()
	delete(w.active, h)
	w.mu.Unlock()
	rctx, rcancel := context.WithTimeout(context.Background(), time.Minute)
	defer rcancel()
	_ = l.Release(rctx) // it may fail if packets are lost
	return true
}

// leaves notes that a lease is not released, and ends within d.
func (w *world) leaves(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if end := time.Now().Add(d); end.After(w.leftovers) {
		w.leftovers = end
	}
}

// leave ends a wait. If the client dies instead, its place in the queue stays, and nobody
// reacts to a wake-up.
func (w *world) leave(b *Backend, dies bool) {
	b.waits.leave(simKeyName)
	for _, n := range b.nodes {
		sn := n.backend.(*simNode)
		if dies {
			sn.s.lose(sn)
		}
		sn.leave(!dies)
	}
}

// granted checks a grant when it is returned.
func (w *world) granted(h *holder, g driver.Grant, end time.Time, before uint64) *holder {
	w.mu.Lock()
	defer w.mu.Unlock()
	now, token := time.Now(), g.Fence
	first := token - uint64(max(g.Tokens, 1)) + 1
	w.grants++
	switch {
	case w.orderly && slices.ContainsFunc(w.ranges, func(r leased) bool { return first <= r.last && r.first <= token && !(r.reads && h.reads) }):
		w.fail("G2: a token of %d to %d was granted twice", first, token)
	case w.orderly && first <= before:
		w.fail("G2: token %d was granted after %d had been returned", first, before)
	case !now.Before(end):
		w.fail("G1: a lease was returned %v after its end", now.Sub(end))
	}
	w.ranges = append(w.ranges, leased{first, token, h.reads})
	w.largest = max(w.largest, token)
	select {
	case w.taken <- struct{}{}:
	default:
	}
	if !h.reads {
		w.writers = max(w.writers, token)
	}
	h.token = token
	w.believe(h, end, now)
	return h
}

// believe notes that h believes that it has the lock from now until end.
func (w *world) believe(h *holder, end, now time.Time) {
	for other, until := range w.active {
		if other != h && !(other.reads && h.reads) && now.Before(until) && now.Before(end) && !w.kind.wild && !w.kind.vanishes {
			w.fail("G1: token %d is valid for another %v, and token %d was granted beside it", other.token, until.Sub(now), h.token)
		}
	}
	w.active[h] = end
}

func (w *world) renew(m *simMachine, l driver.Lease, h *holder, ttl time.Duration) bool {
	w.mu.Lock()
	before := w.largest
	if h.reads {
		before = w.writers
	}
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_, err := l.Renew(ctx, &driver.Renewal{TTL: ttl})
	w.mu.Lock()
	defer w.mu.Unlock()
	w.trace("renewal: %v %s", err, l.(*lease))
	if errors.Is(err, driver.ErrLost) {
		delete(w.active, h) // the holder knows that it lost the lease
		return false
	}
	if err == nil {
		w.extended(h, m.end(l.(*lease).expiry()), before)
	}
	return true
}

// extended checks a renewal.
func (w *world) extended(h *holder, end time.Time, before uint64) {
	w.renewals++
	if before > h.token && w.orderly {
		w.fail("G3: the lease of token %d was renewed after %d had been returned", h.token, before)
	}
	w.believe(h, end, time.Now())
}

// chaos disturbs the servers until the clients are done.
func (w *world) chaos() {
	rng := rand.New(rand.NewPCG(w.seed, 2))
	for {
		t := time.NewTimer(w.calm(rng))
		taken := w.taken
		if !w.kind.differing || rng.IntN(2) == 0 {
			taken = nil
		}
		select {
		case <-w.over:
			t.Stop()
			return
		case <-taken: // right then
			t.Stop()
		case <-t.C:
		}
		w.disturb(rng)
	}
}

// calm is how long nothing is disturbed.
func (w *world) calm(rng *rand.Rand) time.Duration {
	return time.Duration(1 + rng.Int64N(int64(w.pace()*2/3)))
}

// disturb disturbs the world once.
func (w *world) disturb(rng *rand.Rand) {
	s := w.servers[rng.IntN(len(w.servers))]
	what := rng.IntN(10)
	if rng.IntN(8) == 0 {
		w.startle(rng)
		return
	}
	if w.kind.differing {
		w.disturbClock(s, rng, what)
		return
	}
	w.trace("chaos %d on %d or %d", what, s.id, w.stepper.id)
	step := time.Duration(rng.Int64N(int64(4*time.Second))) - 2*time.Second
	pause := time.Duration(rng.Int64N(int64(150 * time.Millisecond)))
	switch {
	case what == 0:
		s.pause(pause)
	case w.kind.wild && what < 5 || w.kind.dense:
		s.expire()
	case w.kind.wild && what == 5:
		s.step(step)
	case w.kind.steps && what == 1 && !w.stepped:
		w.stepped = true // the clock stays wrong: see G1
		w.stepper.step(step)
	case what == 2:
		w.unload(s, rng)
	case w.kind.lossless && what == 3 && !w.stepped && !s.isStated():
		w.stepped = true
		s.flush()
	}
}

// startle usually makes a client's machine sleep, and sometimes sets its wall clock.
func (w *world) startle(rng *rand.Rand) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.machines) == 0 || !w.differ {
		return
	}
	m := w.machines[rng.IntN(len(w.machines))]
	if rng.IntN(4) == 0 {
		m.setWall(time.Duration(rng.Int64N(int64(4*time.Second))) - 2*time.Second)
		return
	}
	d := time.Duration(1+rng.IntN(300)) * time.Millisecond
	if w.kind.differing {
		d *= time.Duration(1 + rng.IntN(10))
	}
	if w.kind.lossless { // a lease that it was about to release may expire instead
		if w.seed%3 > 0 {
			return
		}
		w.leftovers = time.Now().Add(d + mostGuard + w.guard + w.mostGrace())
	}
	w.trace("a machine sleeps for %v", d)
	if !m.sleep(d) || !m.deaf {
		return
	}
	for h, until := range w.active {
		if h.m == m {
			w.active[h] = until.Add(d)
		}
	}
}

// disturbClock disturbs a world with differing clients. It sets the one wrong clock, but only if a
// client has seen its last setting; or it lets a node forget its scripts, or pause.
func (w *world) disturbClock(s *simServer, rng *rand.Rand, what int) {
	switch {
	case what < 7:
		w.stepper.mu.Lock()
		if w.stepper.contacts > w.stepper.steppedAt {
			most := 8*float64(w.allow) + rng.Float64()*120e6 // the one-way times of packets may hide this much
			if rng.IntN(6) == 0 {
				most *= 10
			}
			off := time.Duration(rng.Float64() * most)
			if w.stepper.offset > w.stepper.right || rng.IntN(4) == 0 {
				off = -off
			}
			w.stepper.setClock(w.stepper.right + off)
			w.trace("the clock of %d is set to %v", w.stepper.id, w.stepper.offset-w.stepper.right)
		}
		w.stepper.mu.Unlock()
	case what < 9:
		s.pause(time.Duration(rng.Int64N(int64(150 * time.Millisecond))))
	default:
		w.unload(s, rng)
	}
}

// mostGrace is the longest grace of any client's terms.
func (w *world) mostGrace() time.Duration { return derive(3, mostGuard, 3*w.allow, 1).Grace }

// storms disturbs the servers, usually when a client has just got the lock.
func (w *world) storms() {
	rng := rand.New(rand.NewPCG(w.seed, 2))
	for {
		select {
		case <-w.over:
			return
		case <-w.taken:
		}
		if rng.IntN(3) == 0 {
			continue
		}
		strikes := 1 + rng.IntN(8)
		if w.kind.clocks {
			strikes *= 2
		}
		for range strikes {
			if !w.rest(time.Duration(rng.Int64N(int64(30 * time.Millisecond)))) {
				return
			}
			w.strike(rng)
		}
		if !w.rest(time.Duration(rng.Int64N(int64(w.guard)))) {
			return
		}
		select {
		case <-w.taken: // drops an old signal
		default:
		}
	}
}

// mostForgotten is how often servers forget in one schedule. If they forgot more often, no
// client would get the lock.
const mostForgotten = 3

// rest waits, and reports whether the clients are still working.
func (w *world) rest(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-w.over:
		return false
	case <-t.C:
		return true
	}
}

// strike disturbs the servers once.
func (w *world) strike(rng *rand.Rand) {
	s := w.servers[rng.IntN(len(w.servers))]
	pause := time.Duration(rng.Int64N(int64(200 * time.Millisecond)))
	if rng.IntN(8) == 0 {
		w.startle(rng)
		return
	}
	switch what := rng.IntN(10); {
	case what == 0:
		s.pause(pause)
	case what == 1:
		w.weak.pause(pause)
	case what == 2:
		w.unload(s, rng)
	case what < 6 && w.kind.vanishes:
		s.expire()
	case what < 6 && w.kind.mixed:
		s.restart(w.recent(s, rng))
	case what < 8 && w.kind.clocks:
		w.setClock(rng)
	case w.kind.forgets && w.forgotten < mostForgotten:
		w.forgotten++
		w.forget(rng)
	}
}

// unload makes a server forget only scripts.
func (w *world) unload(s *simServer, rng *rand.Rand) {
	if rng.IntN(2) == 0 {
		s.unload()
		return
	}
	s.evict(func() bool { return rng.IntN(2) == 0 })
}

// recent chooses one of the last writes, as the latest that reached the disk. The current terms
// have always reached it.
func (w *world) recent(s *simServer, rng *rand.Rand) func(int) int {
	return func(last int) int {
		i := last - rng.IntN(4)
		if i < 0 || s.written[i].meta.terms != s.written[last].meta.terms {
			return last
		}
		return i
	}
}

// setClock sets the clock of a server of the minority, if a client has contacted the server
// since it was last set: G1 does not cover a clock that steps there and back between two
// contacts.
func (w *world) setClock(rng *rand.Rand) {
	s := w.minority[rng.IntN(len(w.minority))]
	ahead := time.Duration(rng.Int64N(int64(w.most)))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch was := s.offset - s.right; {
	case was > 0 && rng.IntN(2) == 0:
		ahead = -ahead
	case was != 0:
		ahead = 0
	case rng.IntN(4) == 0:
		ahead = -ahead
	}
	if s.contacts > s.steppedAt {
		w.trace("the clock of %d is set to %v", s.id, ahead)
		s.setClock(s.right + ahead)
	}
}

// forget lets one server, or several at once, lose memory.
func (w *world) forget(rng *rand.Rand) {
	n := 1
	if rng.IntN(2) == 0 {
		n += rng.IntN(len(w.servers))
	}
	how := w.habit
	if rng.IntN(3) == 0 {
		how = rng.IntN(ways)
	}
	if w.kind.crosses {
		how, n = unloaded, len(w.servers)
	}
	if w.kind.vanishes && how != flushed {
		// A lock that had ended too early and comes back with an old file could be renewed,
		// because a quarantine concerns only votes.
		how = emptied
	}
	victims := rng.Perm(len(w.servers))
	// If all servers forget together, a client's statement that they are new is wrong; and if
	// all look unused, they count as new without a statement.
	if w.claims || how == flushed || how == promoted {
		others := victims[n:]
		if !slices.ContainsFunc(others, func(i int) bool { return w.servers[i].remembers() }) {
			return
		}
	}
	if how == unloaded {
		for _, i := range victims[:n] {
			w.servers[i].unload()
		}
		w.rest(time.Duration(1 + rng.Int64N(int64(5*w.net.delay))))
	}
	for _, i := range victims[:n] {
		w.trace("server %d forgets: %d", i, how)
		w.forgetOn(w.servers[i], how, rng)
	}
}

// These are the ways in which a server forgets.
const (
	emptied  = iota // restarted without data
	snapshot        // restarted with an old RDB file
	lagging         // restarted with an AOF that lacks the last writes
	promoted        // replaced by a replica that lagged a little behind
	flushed         // FLUSHALL
	unloaded        // SCRIPT FLUSH, then restarted with an old RDB file, during handshakes
	early           // restarted with an RDB file or AOF from the time of the last handshakes
	ways
)

func (w *world) forgetOn(s *simServer, how int, rng *rand.Rand) {
	last := rng.IntN(4)
	r := rng.Float64()
	back := map[int]func(int) int{
		emptied:  func(int) int { return 0 },
		snapshot: func(n int) int { return int(r * float64(n+1)) },
		lagging:  func(n int) int { return n - 1 - last },
		promoted: func(n int) int { return n - last },
		unloaded: func(n int) int { return n - int(r*r*float64(n+1)) },
		early:    func(n int) int { return n - int(r*20) },
	}[how]
	switch {
	case how == flushed && s.isStated():
		return
	case how == flushed:
		s.flush()
		return
	case s.durable:
		back = func(n int) int { return n }
	}
	s.restart(back)
	if slices.Contains(w.minority, s) && !s.durable && rng.IntN(2) == 0 {
		w.bootWrong(s, rng)
		if rng.IntN(2) == 0 { // the others do not answer for a while
			most := 150 * time.Millisecond
			if rng.IntN(2) == 0 { // new clients begin, which do not know the other nodes' clocks
				most = w.guard / 2
				w.reopen.Add(1)
			}
			for _, other := range w.servers {
				if other != s {
					other.pause(time.Duration(rng.Int64N(int64(most))))
				}
			}
			return
		}
	}
	s.pause(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
}

// bootWrong gives a server that is starting a wrong clock, which a later step sets right.
func (w *world) bootWrong(s *simServer, rng *rand.Rand) {
	behind := time.Duration(rng.Int64N(int64(w.most)))
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setClock(s.right - behind)
	process := s.process
	time.AfterFunc(time.Duration(rng.Int64N(int64(w.guard))), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.process == process {
			w.trace("the clock of %d is put right", s.id)
			s.setClock(s.right)
		}
	})
}

// cleanup checks G4: after the last bid only leases that ended without a release are left, and
// for no longer than TTL and grace.
func (w *world) cleanup() {
	if !w.kind.lossless {
		return
	}
	// Close has waited for every request; only one-way transits of packets are left.
	time.Sleep(20*max(w.net.delay, 50*time.Millisecond) + 200*time.Millisecond)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.servers {
		s.mu.Lock()
		k := s.key()
		if k.owner != "" && time.Now().After(w.leftovers) {
			w.fail("G4: %s has node %d for another %v", k.owner, s.id, k.until.Sub(s.clock()))
		}
		if k.readers != nil && time.Now().After(w.leftovers) {
			w.fail("G4: readers have node %d for another %v: %+v", s.id, k.until.Sub(s.clock()), k.readers.all)
		}
		if k.next != "" {
			w.fail("G4: node %d is kept for the first waiter for another %v", s.id, k.until.Sub(s.clock()))
		}
		s.mu.Unlock()
	}
}

// hunt runs n schedules, or until one breaks a promise, and returns that one, if any, and the
// number of grants.
func hunt(n int, run func(seed uint64) *world) (*world, int64) {
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
				w := run(uint64(i))
				grants.Add(int64(w.grants))
				if w.problem != nil {
					found.Store(w)
				}
			}
		})
	}
	hunters.Wait()
	return found.Load(), grants.Load()
}

// The engine keeps its promises in every schedule.
func TestSimulation(t *testing.T) {
	n := cmp.Or(*schedules, Amount(30, 300))
	switch {
	case Race:
		n = min(n, 1)
	case testing.Short():
		n = min(n, 2)
	}
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			if *seedFlag != 0 {
				if w := simulate(t, k, *seedFlag, sabotage{}); w.problem != nil {
					t.Fatal(w.problem)
				}
				return
			}
			var reads atomic.Int64
			w, grants := hunt(n, func(i uint64) *world {
				w := simulate(t, k, *firstFlag+i-1, sabotage{})
				if w.reads > 0 {
					reads.Add(1)
				}
				return w
			})
			if w != nil {
				t.Fatalf("%v\nto run this schedule again: -run 'TestSimulation/%s' -redlock.seed=%d", w.problem, k.name, w.seed)
			}
			if grants < int64(n)/2 {
				t.Errorf("only %d grants in %d schedules: nothing was tried", grants, n)
			}
			t.Logf("%d schedules, %d of them with readers, %d grants", n, reads.Load(), grants)
		})
	}
}

func (l *lease) expiry() boot.Instant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bid.expires
}

// String describes the lease and its nodes.
func (l *lease) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := fmt.Sprintf("%s token %d until %s", l.owner, l.bid.fence, l.b.clock.Time(l.bid.expires).Format("05.000000"))
	for i := range l.requests {
		g := &l.bid.parts[i]
		mid, half := g.clock.offset()
		s += fmt.Sprintf(" [%d: %d x%d call=%v %v±%v]", i, g.state, g.fence, g.call, mid, half)
	}
	return s
}
