package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
)

// generous is the client of a slow server that grants and frees everything. Like a real client,
// it returns at the deadline.
type generous struct {
	run    string
	takes  atomic.Int64
	before atomic.Pointer[func()]
	fails  atomic.Pointer[func() error] // nil, or its result is the answer to every call
	// The calls that it granted.
	acquired, renewed, freed atomic.Int64
}

func (g *generous) Exec(ctx context.Context, calls []*redisnode.Call) {
	if before := g.before.Load(); before != nil {
		(*before)()
	}
	if fails := g.fails.Load(); fails != nil {
		if err := (*fails)(); err != nil {
			for _, c := range calls {
				c.Err = err
			}
			return
		}
	}
	end, _ := ctx.Deadline()
	if takes := time.Duration(g.takes.Load()); takes < time.Until(end) {
		time.Sleep(takes)
	} else {
		time.Sleep(time.Until(end))
		for _, c := range calls {
			c.Err = context.DeadlineExceeded
		}
		return
	}
	now := time.Now().UnixMicro()
	for _, c := range calls {
		switch {
		case c.Text != "": // who are you?
			c.Reply = []any{g.run, now}
		case len(c.Args[0]) == 1: // release
			c.Number = 1
			g.freed.Add(1)
		case len(c.Args) == 6: // renew
			c.Reply = []any{int64(1), now}
			g.renewed.Add(1)
		default:
			c.Number = now
			g.acquired.Add(1)
		}
	}
}

func (*generous) Servers(context.Context) ([]redisnode.Server, error) { return nil, nil }

func (*generous) Subscribe(context.Context, redisnode.Sink, []string) (redisnode.Subscription, error) {
	return nil, errors.New("no")
}

func (*generous) Close() error { return nil }

// starting returns a quorum of three nodes that start calls, after its first contact with them.
func starting(t *testing.T, o *Options) (*Backend, []*generous) {
	t.Helper()
	return startingIn(t, o, func(n *redisnode.Node) driver.Backend { return n })
}

// startingIn is starting with each node wrapped by wrap.
func startingIn(t *testing.T, o *Options, wrap func(*redisnode.Node) driver.Backend) (*Backend, []*generous) {
	t.Helper()
	b, servers := unmet(t, o, wrap)
	if err := holdAndRenew(t, b); err != nil {
		t.Fatal(err)
	}
	return b, servers
}

// unmet is startingIn before the first contact.
func unmet(t *testing.T, o *Options, wrap func(*redisnode.Node) driver.Backend) (*Backend, []*generous) {
	t.Helper()
	var nodes []driver.Backend
	var servers []*generous
	for i := range 3 {
		g := &generous{run: fmt.Sprint("run", i)}
		g.takes.Store(int64(time.Millisecond))
		n, err := redisnode.New(redisnode.Config{Client: g, Name: "redis", Addr: fmt.Sprint("node", i)})
		if err != nil {
			t.Fatal(err)
		}
		nodes, servers = append(nodes, wrap(n)), append(servers, g)
	}
	b, err := New(nodes, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i, err := range append([]error{b.Close()}, b.closeNodes()) {
			if err != nil {
				t.Errorf("closed, %d: %v", i, err)
			}
		}
	})
	return b, servers
}

// holdAndRenew takes, renews and releases a lock.
func holdAndRenew(t *testing.T, b *Backend) error {
	l, err := b.Acquire(t.Context(), request1("k", "web/x", 10*time.Second))
	if err != nil {
		return err
	}
	_, err = l.Renew(t.Context(), &driver.Renewal{TTL: 10 * time.Second})
	return errors.Join(err, l.Release(t.Context()))
}

// A call that a node starts needs no goroutine of the quorum.
func TestACallThatANodeStartsNeedsNoWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, _ := starting(t, &Options{Guard: -1})
		time.Sleep(time.Minute) // the goroutines of the first contact end
		for range 100 {
			if err := holdAndRenew(t, b); err != nil {
				t.Fatal(err)
			}
			if s := b.Stats(); s.Workers != 0 {
				t.Fatalf("there are %d workers", s.Workers)
			}
		}
	})
}

// A started call to a silent node ends after the node timeout, and Close waits for it.
func TestAStartedCallToASilentNodeEndsInItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, servers := starting(t, &Options{Guard: -1})
		for _, s := range servers {
			s.takes.Store(int64(time.Hour))
		}
		const ttl = 10 * time.Second
		start, timeout := time.Now(), b.timeout(ttl)
		_, err := b.Acquire(t.Context(), request1("k", "web/x", ttl))
		if took := time.Since(start); err == nil || took < timeout || took > timeout*11/10 {
			t.Errorf("after %v: %v", took, err)
		}
		time.Sleep(timeout / 10)
		synctest.Wait()
		for i, n := range b.nodes {
			n.mu.Lock()
			if n.underWay > 1 { // its release
				t.Errorf("node %d has %d calls", i, n.underWay)
			}
			n.mu.Unlock()
		}
	})
}

// heldLease takes a lock for ten seconds on a quorum of nodes that start calls.
func heldLease(t *testing.T, b *Backend) *lease {
	t.Helper()
	l, err := b.Acquire(t.Context(), request1("held", "web/x", 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	return l.(*lease)
}

var errCut = errors.New("the connection was cut")

// A release whose tries fail at once is tried again soon, and for nearly as long as its caller waits.
func TestAReleaseOutlivesABreakOfItsConnections(t *testing.T) {
	for name, c := range map[string]struct{ lasts, took float64 }{ // in node timeouts
		"short": {0.03, 0.2},
		"long":  {2.5, releaseTries},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, servers := starting(t, &Options{Guard: -1})
				l := heldLease(t, b)
				start, timeout := time.Now(), float64(l.bid.timeout)
				fails := func() error {
					if float64(time.Since(start)) < c.lasts*timeout {
						return errCut
					}
					return nil
				}
				for _, s := range servers {
					s.fails.Store(&fails)
				}
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
				if took := float64(time.Since(start)); took > c.took*timeout {
					t.Errorf("it took %.2f node timeouts", took/timeout)
				}
			})
		})
	}
}

// A second Release has its whole time, though it begins late in that of the first.
func TestASecondReleaseHasItsWholeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, servers := starting(t, &Options{Guard: -1})
		l := heldLease(t, b)
		timeout := l.bid.timeout
		cut := func() error { return errCut }
		servers[1].fails.Store(&cut)
		servers[2].takes.Store(int64(time.Hour)) // it is silent, so that the outcome is not certain
		first := make(chan error)
		go func() { first <- l.Release(t.Context()) }()
		time.Sleep(releaseTries*timeout - timeout/10)
		servers[1].fails.Store(nil)
		servers[1].takes.Store(int64(timeout / 2))
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("the second: %v", err)
		}
		if err := <-first; err == nil {
			t.Error("the first has an answer that came after its time")
		}
	})
}

// cutOnce makes a server answer the next call with an error, after that time.
func cutOnce(s *generous, after time.Duration) {
	var cut atomic.Bool
	fails := func() error {
		if cut.Swap(true) {
			return nil
		}
		time.Sleep(after)
		return errCut
	}
	s.fails.Store(&fails)
}

// Close waits for the second try of a release that fails at once.
func TestCloseWaitsForTheSecondTryOfARelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, servers := starting(t, &Options{Guard: -1})
		l := heldLease(t, b)
		last := servers[len(servers)-1]
		before := last.freed.Load()
		cutOnce(last, 5*time.Millisecond)
		if err := l.Release(t.Context()); err != nil { // the other nodes are a majority
			t.Error(err)
		}
		start := time.Now()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := last.freed.Load() - before; n != 1 {
			t.Errorf("the node was released %d times", n)
		}
		if took := time.Since(start); took > l.bid.timeout {
			t.Errorf("Close took %v", took)
		}
	})
}

// A call whose time is over is not sent, and its node is not blamed.
func TestNothingIsStartedWhenItsTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, servers := starting(t, &Options{Guard: -1})
		l := heldLease(t, b)
		g := &l.requests[0]
		l.mu.Lock()
		l.bid.parts[0].call, g.call, g.renewal = renew, renew, &driver.Renewal{TTL: 10 * time.Second}
		g.beginsNow(b.clock.Now())
		l.mu.Unlock()
		for range timeSlices { // as if the node's time had passed before the call was sent
			g.life.tick()
		}
		var sent atomic.Bool
		before := func() { sent.Store(true) }
		servers[0].before.Store(&before)
		g.send()
		time.Sleep(l.bid.timeout)
		synctest.Wait()
		g.n.mu.Lock()
		defer g.n.mu.Unlock()
		if sent.Load() || g.n.timeouts != 0 {
			t.Errorf("sent: %t; the node has %d timeouts", sent.Load(), g.n.timeouts)
		}
	})
}

// audited is an application's own backend around one that can start calls. It embeds that
// backend, and so has its methods.
type audited struct {
	*redisnode.Node
	acquired, renewed, released atomic.Int64
}

func (a *audited) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	a.acquired.Add(1)
	l, err := a.Node.Acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	return &auditedLease{l, a}, nil
}

type auditedLease struct {
	driver.Lease
	a *audited
}

func (l *auditedLease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	l.a.renewed.Add(1)
	return l.Lease.Renew(ctx, r)
}

func (l *auditedLease) Release(ctx context.Context) error {
	l.a.released.Add(1)
	return l.Lease.Release(ctx)
}

// Every call to an application's own backend passes through its methods.
func TestABackendAroundANodeGetsEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all []*audited
		b, servers := startingIn(t, &Options{Guard: -1}, func(n *redisnode.Node) driver.Backend {
			all = append(all, &audited{Node: n})
			return all[len(all)-1]
		})
		for range 10 {
			if err := holdAndRenew(t, b); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		time.Sleep(time.Second) // the last releases
		for i, a := range all {
			s := servers[i]
			called := [...]int64{a.acquired.Load(), a.renewed.Load(), a.released.Load()}
			done := [...]int64{s.acquired.Load(), s.renewed.Load(), s.freed.Load()}
			if called != done || slices.Min(done[:]) == 0 {
				t.Errorf("node %d: its methods Acquire, Renew and Release were called %v times, and its server granted %v", i, called, done)
			}
		}
	})
}
