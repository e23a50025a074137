package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// simServer is the model of one node's server: a handful of keys, a clock of its own
// that may drift and step, and what the scripts of a real one do. Its parts can be taken
// out, so that the simulation can show that it notices.
type simServer struct {
	id     int
	broken simBroken

	mu      sync.Mutex
	run     int // how often it was started
	keys    map[string]*simKey
	began   time.Time
	offset  time.Duration
	rate    float64   // of its clock, minus one
	paused  time.Time // it answers nothing until then
	refuses time.Time // quarantined until then, after it lost its memory
}

// simBroken are the parts of a node's scripts that protect tokens.
type simBroken struct {
	owner      bool // a raise is not owner-checked
	instance   bool // a raise or a renewal matches the owner, not the acquisition
	join       bool // a join takes the key whatever the counter is
	perishable bool // a request that arrives late takes effect
}

type simKey struct {
	owner   string // empty: free
	fence   uint64
	until   time.Time // by the server's clock
	counter uint64
}

func newSimServer(id int) *simServer {
	return &simServer{id: id, keys: map[string]*simKey{}, began: time.Now()}
}

// clock is the server's. s.mu is held.
func (s *simServer) clock() time.Time {
	now := time.Now()
	return now.Add(s.offset + time.Duration(float64(now.Sub(s.began))*s.rate)).Round(0)
}

// key returns a key as of now. s.mu is held.
func (s *simServer) key(name string) *simKey {
	k := s.keys[name]
	if k == nil {
		k = &simKey{}
		s.keys[name] = k
	}
	if k.owner != "" && !s.clock().Before(k.until) {
		k.owner = ""
	}
	return k
}

// simReply is what every operation answers.
type simReply struct {
	err    error
	fence  uint64
	clock  time.Time
	server string
}

func (s *simServer) reply(fence uint64, err error) simReply {
	return simReply{err: err, fence: fence, clock: s.clock(), server: s.name()}
}

func (s *simServer) name() string { return fmt.Sprintf("sim-%d.%d", s.id, s.run) }

// late is the refusal of a request that arrived after its end.
func (s *simServer) late(notAfter time.Time) bool {
	return !s.broken.perishable && !notAfter.IsZero() && s.clock().After(notAfter)
}

func (s *simServer) acquire(req *driver.Request, notAfter time.Time) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, now := s.key(req.Key), s.clock()
	switch {
	case s.late(notAfter):
		return s.reply(0, context.DeadlineExceeded)
	case time.Now().Before(s.refuses):
		return s.reply(0, &driver.RefusedError{RetryAfter: time.Until(s.refuses), Reason: "quarantined"})
	case k.owner == req.Owner:
		k.until = now.Add(req.TTL + req.Quorum.Grace)
		return s.reply(k.fence, nil)
	case k.owner != "":
		return s.reply(0, &driver.HeldError{Holder: k.owner, RetryAfter: k.until.Sub(now), Server: s.name(), Clock: now})
	case req.Join != 0 && k.counter > req.Join && !s.broken.join:
		return s.reply(0, &driver.RefusedError{Reason: "the counter is above the token"})
	}
	k.fence = driver.NextFence(k.counter, req.FenceFloor, now)
	if req.Join != 0 {
		k.fence = req.Join
	}
	k.counter = max(k.counter, k.fence)
	k.owner, k.until = req.Owner, now.Add(req.TTL+req.Quorum.Grace)
	return s.reply(k.fence, nil)
}

func (s *simServer) renew(key, owner string, fence, least uint64, ttl time.Duration, notAfter time.Time) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.key(key)
	switch {
	case s.late(notAfter):
		return s.reply(0, context.DeadlineExceeded)
	case s.broken.owner && k.owner != owner:
		k.counter = max(k.counter, least)
		return s.reply(fence, nil)
	case k.owner != owner, k.fence != fence && !s.broken.instance:
		return s.reply(0, driver.ErrLost)
	}
	k.until = s.clock().Add(ttl)
	k.counter = max(k.counter, least)
	return s.reply(fence, nil)
}

// release frees exactly this attempt's lock; fence 0: whatever it got.
func (s *simServer) release(key, owner string, fence uint64) simReply {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.key(key)
	if k.owner != owner || fence != 0 && k.fence != fence {
		return s.reply(0, driver.ErrLost)
	}
	k.owner = ""
	return s.reply(0, nil)
}

// network is what may happen to a packet.
type network struct {
	delay       time.Duration // up to this, as a rule
	slow        float64       // how probable it is that one takes longer: up to ten times
	lose, twice float64       // how probable each is
	lag         time.Duration // a copy arrives up to so much later; zero: a delay or two
}

// simNode is one client's way to one server.
type simNode struct {
	s   *simServer
	net *network

	mu  sync.Mutex
	rng *rand.Rand
}

func (n *simNode) Info() driver.Info {
	return driver.Info{Name: "sim", Features: driver.Node | driver.Fencing, MinTTL: driver.MinTTL, MaxTTL: time.Hour}
}
func (n *simNode) Close() error   { return nil }
func (n *simNode) String() string { return fmt.Sprintf("sim-%d", n.s.id) }

// fate is what happens to one request and its answer.
type fate struct {
	there, back     time.Duration
	lost, lostReply bool
	again           time.Duration // a duplicate arrives so much later; zero: none
}

func (n *simNode) fate() fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	f := fate{there: n.draw(), back: n.draw()}
	f.lost = n.rng.Float64() < n.net.lose
	f.lostReply = n.rng.Float64() < n.net.lose
	if n.rng.Float64() < n.net.twice {
		f.again = 2*n.draw() + time.Duration(n.rng.Int64N(int64(n.net.lag)+1))
	}
	return f
}

func (n *simNode) draw() time.Duration {
	d := n.net.delay
	if n.rng.Float64() < n.net.slow {
		d *= 10
	}
	return 1 + time.Duration(n.rng.Int64N(int64(d)+1))
}

// call sends a request. What arrives takes effect even if nobody waits any longer.
func (n *simNode) call(ctx context.Context, apply func() simReply) simReply {
	if err := ctx.Err(); err != nil {
		return simReply{err: err}
	}
	f := n.fate()
	n.s.mu.Lock()
	if p := time.Until(n.s.paused); p > f.there {
		f.there = p + 1
	}
	n.s.mu.Unlock()
	if f.lost {
		<-ctx.Done()
		return simReply{err: ctx.Err()}
	}
	if f.again > 0 {
		time.AfterFunc(f.there+f.again, func() { apply() })
	}
	start := time.Now()
	if err := sleep(ctx, f.there); err != nil {
		time.AfterFunc(f.there-time.Since(start), func() { apply() })
		return simReply{err: err}
	}
	r := apply()
	if f.lostReply {
		<-ctx.Done()
		return simReply{err: ctx.Err()}
	}
	if err := sleep(ctx, f.back); err != nil {
		return simReply{err: err}
	}
	return r
}

func sleep(ctx context.Context, d time.Duration) error {
	if end, ok := ctx.Deadline(); ok && ctx.Err() == nil && time.Until(end) > d && ctx.Done() != nil {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	<-ctx.Done()
	return ctx.Err()
}

// notAfter is the end of a request in the server's time, which a driver knows well.
func (n *simNode) notAfter(ctx context.Context) time.Time {
	end, ok := ctx.Deadline()
	if !ok {
		return time.Time{}
	}
	n.s.mu.Lock()
	defer n.s.mu.Unlock()
	return n.s.clock().Add(time.Until(end))
}

func (n *simNode) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	if err := n.Info().Check("", r); err != nil {
		return nil, err
	}
	req, end, start := *r, n.notAfter(ctx), time.Now()
	req.Quorum = &driver.Quorum{N: r.Quorum.N, Guard: r.Quorum.Guard, Grace: r.Quorum.Grace}
	a := n.call(ctx, func() simReply { return n.s.acquire(&req, end) })
	switch {
	case a.err == nil:
		return &simLease{n: n, req: req, grant: grantOf(a, start, req.TTL)}, nil
	case definite(a.err):
		return nil, a.err
	}
	n.undo(ctx, req.Key, req.Owner)
	return nil, a.err
}

// undo releases an attempt whose outcome is unknown: at once, and again when nothing of
// it can arrive any longer (rule 2 of the contract).
func (n *simNode) undo(ctx context.Context, key, owner string) {
	free := func() { n.s.release(key, owner, 0) }
	rest := time.Duration(0)
	if end, ok := ctx.Deadline(); ok {
		rest = max(0, time.Until(end))
	}
	for _, d := range []time.Duration{0, rest + time.Millisecond} {
		if f := n.fate(); !f.lost {
			time.AfterFunc(d+f.there, free)
		}
	}
}

func grantOf(a simReply, start time.Time, ttl time.Duration) driver.Grant {
	return driver.Grant{Expires: driver.Expires(start, ttl), Fence: a.fence, Clock: a.clock, Server: a.server}
}

type simLease struct {
	n     *simNode
	req   driver.Request
	grant driver.Grant // as it was granted
}

func (l *simLease) Grant() driver.Grant { return l.grant }

func (l *simLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	end, start, ttl := l.n.notAfter(ctx), time.Now(), r.TTL+l.req.Quorum.Grace
	a := l.n.call(ctx, func() simReply {
		return l.n.s.renew(l.req.Key, l.req.Owner, l.grant.Fence, r.MinFence, ttl, end)
	})
	return grantOf(a, start, r.TTL), a.err
}

func (l *simLease) Release(ctx context.Context) error {
	return l.n.call(ctx, func() simReply {
		return l.n.s.release(l.req.Key, l.req.Owner, l.grant.Fence)
	}).err
}
