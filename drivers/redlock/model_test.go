package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// The simulated node answers like the real scripts on real servers. Otherwise the simulation
// would test another algorithm.
func TestTheSimulatedNodeIsTheRealOne(t *testing.T) {
	t.Parallel()
	for kind, s := range map[string]*server.Server{"redis": server.Redis(t), "valkey": server.Valkey(t)} {
		t.Run(kind, func(t *testing.T) {
			c := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: 10 * time.Second, MaxRetries: -1}) // else no vote is given back
			defer func() { _ = c.Close() }()
			plain, guarded := uint64(Amount(20, 60)), uint64(Amount(6, 12))
			switch {
			case testing.Short() && kind == "valkey": // with the seeds of Redis
				plain, guarded = 2, 1
			case testing.Short():
				plain, guarded = 6, 2
			}
			for seed := range plain + guarded {
				guard := time.Duration(0)
				if seed >= plain {
					seed, guard = seed-plain, 10*time.Minute
				}
				for try := 0; !duelWith(t, c, s, seed, guard, try); try++ {
					t.Logf("seed %d: the machine stood still: again", seed)
				}
			}
		})
	}
}

// duelWith makes the same calls on a server and on its model, with a restart guard if guard is
// set. The guard is long, so that no answer depends on how long a step took; only the statement
// that the server is new ends a quarantine. It returns false if a step took so long that a proposed
// token was too old.
func duelWith(t *testing.T, c *redis.Client, s *server.Server, seed uint64, guard time.Duration, try int) bool {
	prefix := fmt.Sprint(guard, seed, "/", try, ":")
	real, err := goredis.New(c, &goredis.Options{Prefix: prefix, CallTimeout: 10 * time.Second})
	drivertest.Must(t, err)
	defer func() { _ = real.Close() }()
	d := &duel{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), key: "model", name: prefix + "model", real: real, redis: s}
	d.quorum = quorum.Info{Terms: derive(3, guard, time.Second, 1), OtherClocks: d.others}
	d.sim = &simNode{s: newSimServer(0), net: &network{}, rng: d.rng}
	return d.run()
}

// duelTTL is so long that nothing ends meanwhile.
const duelTTL = 5 * time.Minute

// duel makes the same calls on both, and compares them.
type duel struct {
	t       *testing.T
	seed    uint64
	rng     *rand.Rand
	key     string
	name    string // the lock's key on the server
	real    *goredis.Backend
	redis   *server.Server
	sim     *simNode
	quorum  quorum.Info
	reads   bool     // readers come
	readers []string // have come
	blind   bool     // the other nodes' clocks are not known
	pairs   []pair
	last    uint64 // the largest token so far
	log     []string
	wrong   string // how the two differ
}

func (d *duel) others() time.Time {
	if d.blind {
		return time.Time{}
	}
	return time.Now()
}

type pair struct {
	real, sim driver.Lease
	what      string
}

func (d *duel) run() bool {
	for range 50 {
		began := time.Now()
		ctx, cancel := context.WithTimeout(d.t.Context(), 10*time.Second)
		what := d.step(ctx)
		cancel()
		d.log = append(d.log, what)
		d.compare()
		if time.Since(began) > driver.FenceLag {
			return false
		}
		if d.wrong != "" {
			d.t.Fatalf("seed %d: %v: %s", d.seed, d.log, d.wrong)
		}
	}
	return true
}

func (d *duel) step(ctx context.Context) string {
	if d.quorum.Guard > 0 && d.rng.IntN(3) == 0 {
		return d.befall(ctx)
	}
	switch op := d.rng.IntN(10); {
	case op < 4 || len(d.pairs) == 0:
		return d.acquire(ctx)
	case op < 6:
		p := d.pairs[d.rng.IntN(len(d.pairs))]
		r := driver.Renewal{TTL: duelTTL, MinFence: d.last + uint64(d.rng.IntN(20)) - 10}
		a, errA := p.real.Renew(ctx, &r)
		b, errB := p.sim.Renew(ctx, &r)
		return fmt.Sprintf("renew at least %d: %s", r.MinFence, d.same(errA, errB, a.Fence, b.Fence))
	case op < 8:
		i := d.rng.IntN(len(d.pairs))
		p := d.pairs[i]
		d.pairs = append(d.pairs[:i], d.pairs[i+1:]...)
		back := d.rng.IntN(2) == 0
		if back {
			p.real.(async.Vote).GiveBack(true)
			p.sim.(async.Vote).GiveBack(true)
		}
		errA, errB := p.real.Release(ctx), p.sim.Release(ctx)
		if errors.Is(errA, driver.ErrLost) || errors.Is(errB, driver.ErrLost) {
			errA, errB = nil, nil // drivers may report it, but need not
		}
		return fmt.Sprintf("release %s, given back: %v: %s", p.what, back, d.same(errA, errB, 0, 0))
	}
	d.do("DEL", d.name)
	d.sim.s.expire()
	return "expire"
}

// befall restarts, flushes or restores both in the same way, for the restart guard.
func (d *duel) befall(ctx context.Context) string {
	q := d.quorum
	switch d.rng.IntN(16) {
	case 0:
		d.must(d.redis.Restart())
		d.sim.s.restart(func(last int) int { return last })
		return "restart"
	case 1:
		d.must(d.redis.RestartEmpty())
		d.sim.s.restart(func(int) int { return 0 })
		return "restart empty"
	case 2:
		d.do("FLUSHALL")
		d.sim.s.flush()
		return "flush"
	case 3, 4:
		d.do("SCRIPT", "FLUSH")
		d.sim.s.unload()
		return "flush scripts"
	case 5:
		d.quorum.Terms = derive(3+2*d.rng.IntN(2), time.Duration(10+5*d.rng.IntN(2))*time.Minute, time.Duration(1+d.rng.IntN(2))*time.Second, 1+d.rng.IntN(2))
		return fmt.Sprintf("clients with terms %+v", d.quorum.Terms)
	case 6:
		d.blind = d.rng.IntN(2) == 0
		return fmt.Sprintf("the other clocks are unknown: %v", d.blind)
	case 7:
		return d.state(ctx, "change", &quorum.Bootstrap{Quorum: &q, Statement: quorum.StateChanged})
	case 8, 9, 10:
		return d.state(ctx, "look", &quorum.Bootstrap{Quorum: &q, DryRun: true})
	case 11:
		return d.state(ctx, "bootstrap", &quorum.Bootstrap{Quorum: &q})
	}
	d.do("FLUSHALL")
	d.sim.s.flush()
	return "flush and " + d.state(ctx, "bootstrap", &quorum.Bootstrap{Quorum: &q})
}

func (d *duel) state(ctx context.Context, what string, b *quorum.Bootstrap) string {
	r, errA := d.real.Bootstrap(ctx, b)
	s, errB := d.sim.Bootstrap(ctx, b)
	if errA == nil && errB == nil && (r.Memory != s.Memory || r.Terms != nil && *r.Terms != *s.Terms) {
		d.wrong = fmt.Sprintf("the real node is %v with %v, the simulated one %v with %v", r.Memory, r.Terms, s.Memory, s.Terms)
	}
	return what + ": " + d.same(errA, errB, 0, 0)
}

func (d *duel) do(command ...string) {
	_, err := d.redis.Do(command...)
	d.must(err)
}

func (d *duel) must(err error) {
	drivertest.Must(d.t, err)
}

func (d *duel) acquire(ctx context.Context) string {
	q := d.quorum
	owner, attempt := d.rng.IntN(2), d.rng.IntN(2)
	req := driver.Request{Key: d.key, Owner: fmt.Sprintf("o%d/%d", owner, attempt), TTL: duelTTL, Quorum: &q}
	req.Tokens = uint32(attempt) * 5000
	req.FenceFloor = uint64(time.Now().Add(driver.FenceSlack/2).UnixMicro()) + uint64(d.rng.IntN(5))
	if d.last != 0 && d.rng.IntN(3) == 0 {
		req.ExactFence = d.last + uint64(d.rng.IntN(20)) - 10
	}
	if d.reads = d.reads != (d.rng.IntN(4) == 0); d.reads { // in phases, so that there are many readers
		// An owner has one mode, and asks again only if it joins.
		if req.Mode = driver.Shared; req.ExactFence == 0 || d.readers == nil || d.rng.IntN(2) == 0 {
			d.readers = append(d.readers, fmt.Sprintf("r%d/1", len(d.log)))
		}
		req.Owner = d.readers[len(d.readers)-1]
	}
	what := fmt.Sprintf("acquire %s %v from %d join %d: ", req.Owner, req.Mode, req.FenceFloor, req.ExactFence)
	a, errA := d.real.Acquire(ctx, &req)
	b, errB := d.sim.Acquire(ctx, &req)
	var fa, fb uint64
	if errA == nil && errB == nil {
		fa, fb = a.Grant().Fence, b.Grant().Fence
		d.last = max(d.last, fa)
		d.pairs = append(d.pairs, pair{a, b, what})
	}
	return what + d.same(errA, errB, fa, fb)
}

// same fails the test if two answers differ.
func (d *duel) same(real, sim error, realFence, simFence uint64) string {
	a, b := fmt.Sprint(verdictOf(real), " ", realFence), fmt.Sprint(verdictOf(sim), " ", simFence)
	if a != b {
		d.wrong = fmt.Sprintf("the real node says %s (%v), the simulated one %s (%v)", a, real, b, sim)
	}
	return a
}

func verdictOf(err error) string {
	var held *driver.HeldError
	var refused *driver.RefusedError
	switch {
	case err == nil:
		return "yes"
	case errors.As(err, &held):
		return "held by " + requester(held.Holder)
	case !errors.As(err, &refused):
	case refused.RetryAfter == 0:
		return "refused for good"
	case refused.RetryAfter > time.Second:
		return "refused for one guard"
	default:
		return "refused for now"
	}
	switch {
	case errors.Is(err, driver.ErrLost):
		return "lost"
	}
	return err.Error()
}

// compare compares the stored data.
func (d *duel) compare() {
	var s *driver.State
	drivertest.Known(d.t, func() (err error) {
		s, err = d.real.Lookup(d.t.Context(), d.key)
		return err
	})
	d.sim.s.mu.Lock()
	defer d.sim.s.mu.Unlock()
	k := d.sim.s.key()
	var a, b []string
	for _, h := range s.Holders {
		a = append(a, fmt.Sprint(requester(h.Owner), " ", h.Fence))
	}
	if k.owner != "" {
		b = append(b, fmt.Sprint(requester(k.owner), " ", k.fence))
	}
	if k.readers != nil {
		for _, r := range k.readers.all {
			b = append(b, fmt.Sprint(requester(r.owner), " ", r.fence))
		}
	}
	slices.Sort(a)
	slices.Sort(b)
	if !slices.Equal(a, b) || s.Fence != k.counter {
		d.wrong = fmt.Sprintf("the real node has %s, counter %d; the simulated one %s, counter %d", a, s.Fence, b, k.counter)
	}
}

// A vote without a proposed token can be given back, though many ask at once, or there is a guard.
func TestAVoteWithoutAProposedTokenIsGivenBack(t *testing.T) {
	t.Parallel()
	for kind, s := range map[string]*server.Server{"redis": server.Redis(t), "valkey": server.Valkey(t)} {
		for _, guard := range []time.Duration{0, time.Minute} {
			t.Run(fmt.Sprint(kind, guard), func(t *testing.T) {
				c := redis.NewClient(&redis.Options{Addr: s.Addr(), ReadTimeout: time.Minute, MaxRetries: -1}) // else no vote is given back
				defer func() { _ = c.Close() }()
				node, err := goredis.New(c, &goredis.Options{Prefix: fmt.Sprint(guard, ":"), CallTimeout: time.Minute})
				drivertest.Must(t, err)
				defer func() { _ = node.Close() }()
				q := quorum.Info{Terms: derive(3, guard, time.Second, 1), OtherClocks: time.Now}
				calls := 40
				if guard > 0 { // a batch does not tell the counter before a grant
					calls = 1
					_, err := node.Bootstrap(t.Context(), &quorum.Bootstrap{Quorum: &q})
					drivertest.Must(t, err)
				}
				var all sync.WaitGroup
				for i := range calls {
					all.Go(func() {
						req := &driver.Request{Key: fmt.Sprint("k", i), Owner: "o/1", TTL: time.Minute, Quorum: &q}
						l, err := node.Acquire(t.Context(), req)
						if err != nil {
							t.Error(err)
							return
						}
						l.(async.Vote).GiveBack(true)
						if err := l.Release(t.Context()); err != nil {
							t.Error(err)
						}
						if st, err := node.Lookup(t.Context(), req.Key); err != nil || st.Fence != 0 {
							t.Errorf("vote %d leaves the counter at %d, %v", i, st.Fence, err)
						}
					})
				}
				all.Wait()
			})
		}
	}
}
