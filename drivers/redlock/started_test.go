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

func (*generous) Subscribe(context.Context, redisnode.Sink, string, string) (redisnode.Subscription, error) {
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

// A release whose outcome is unknown is repeated by the node.
func TestAReleaseOutlivesABreakOfItsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, servers := starting(t, &Options{Guard: -1})
		l := heldLease(t, b)
		start, lasts := time.Now(), 40*time.Millisecond
		fails := func() error {
			if time.Since(start) < lasts {
				return errCut
			}
			return nil
		}
		var before [3]int64
		for i, s := range servers {
			before[i] = s.freed.Load()
			s.fails.Store(&fails)
		}
		_ = l.Release(t.Context())
		time.Sleep(5 * time.Second)
		for i, s := range servers {
			if n := s.freed.Load() - before[i]; n < 1 {
				t.Errorf("node %d was released %d times", i, n)
			}
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
