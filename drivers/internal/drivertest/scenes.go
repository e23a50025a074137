package drivertest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// RunFailover checks that the locks of a system of several members outlive a failure of one:
// a lock that is held is renewed and released, it stays held meanwhile, other keys can be locked,
// and a waiter gets the lock next, with a larger token. a and b are clients that know all members.
// fail makes one member fail, and mend ends that; a majority serves all the time.
func RunFailover(t *testing.T, a, b driver.Backend, key string, ttl time.Duration, fail, mend func() error) {
	t.Helper()
	held := Grant(t, a, NewRequest(key, ttl))
	waiting := Waiter(t, b, NewRequest(key, ttl))
	if i, ok := b.(driver.Inspector); ok {
		AwaitWaiters(t, i, key, 1)
	}
	Must(t, fail())
	Renew(t, held, ttl)
	Release(t, Grant(t, a, NewRequest(key+"/other", ttl)))
	if _, err := Acquire(t, b, NewRequest(key, ttl)); Verdict(err) != "held" {
		t.Errorf("the key is held, and Acquire gives %v", err)
	}
	Release(t, held)
	next := <-waiting
	if next == nil || next.Grant().Fence <= held.Grant().Fence {
		t.Fatalf("after token %d the wait gave %v", held.Grant().Fence, next)
	}
	Must(t, mend())
	Renew(t, next, ttl)
	Release(t, next)
}

// RunForeign checks that a lock of another library and the backend's lock of the same key exclude each
// other, in both modes and in one queue. lock waits.
func RunForeign(t *testing.T, b interface {
	driver.Backend
	driver.Inspector
}, ttl time.Duration, of func(key string) (lock, unlock func() error)) {
	t.Helper()
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		key := "foreign/" + mode.String()
		ask := func() *driver.Request { r := NewRequest(key, ttl); r.Mode = mode; return r }
		held := func(what string, r *driver.Request) {
			t.Helper()
			if _, err := Acquire(t, b, r); Verdict(err) != "held" {
				t.Errorf("%v: %s: %v", mode, what, err)
			}
		}
		ours := Grant(t, b, ask())
		lock, unlock := of(key)
		got := make(chan error, 1)
		go func() { got <- lock() }()
		AwaitWaiters(t, b, key, 1)
		held("another of ours behind theirs", NewRequest(key, ttl))
		select {
		case err := <-got:
			t.Errorf("%v: theirs was granted beside ours: %v", mode, err)
		default:
		}
		Release(t, ours)
		Must(t, <-got)
		held("ours beside theirs", ask())
		waiting := Waiter(t, b, ask())
		AwaitWaiters(t, b, key, 1)
		s, err := b.Lookup(t.Context(), key)
		if err != nil || len(s.Holders) != 1 || s.Mode != driver.Exclusive || s.Holders[0].Fence == 0 || s.Holders[0].Owner == "" {
			t.Errorf("%v: theirs is seen as %+v, %v", mode, s, err)
		}
		Must(t, unlock())
		if l := <-waiting; l != nil {
			Release(t, l)
		}
	}
}

// RunUnknown checks that all outcomes are unknown to a client that reaches no majority, and whose
// lease is held.
func RunUnknown(t *testing.T, b driver.Backend, held driver.Lease) {
	t.Helper()
	_, acquired := b.Acquire(t.Context(), NewRequest("free", 30*time.Second))
	_, renewed := held.Renew(t.Context(), &driver.Renewal{TTL: 30 * time.Second})
	for i, err := range []error{acquired, renewed, held.Release(t.Context())} {
		if Verdict(err) != "unknown" {
			t.Errorf("%s by a minority: %v", []string{"Acquire", "Renew", "Release"}[i], err)
		}
	}
}

// RunMinority checks a client that reaches only a member that is cut off from the majority,
// while another client reaches the majority. All outcomes are unknown to the first client. Its
// lock with the given ttl goes to the other client after the lease's end, with a larger token;
// the first client learns that when heal has ended the cut. Its longer lease goes on.
func RunMinority(t *testing.T, minority, majority driver.Backend, key string, ttl time.Duration, cut, heal func() error) {
	t.Helper()
	const long = 10 * time.Minute
	brief, kept := Grant(t, minority, NewRequest(key, ttl)), Grant(t, minority, NewRequest(key+"/kept", long))
	Must(t, cut())
	for _, of := range []string{"/kept", "/free"} {
		if l, err := minority.Acquire(t.Context(), NewRequest(key+of, ttl)); Verdict(err) != "unknown" {
			t.Errorf("Acquire of %s by a minority: %v, %v", of, l, err)
		}
	}
	if _, err := kept.Renew(t.Context(), &driver.Renewal{TTL: long}); Verdict(err) != "unknown" {
		t.Errorf("Renew by a minority: %v", err)
	}
	after := NewRequest(key, time.Minute)
	after.Wait = true
	next := Grant(t, majority, after)
	if early := time.Until(brief.Grant().Expires); early > 0 {
		t.Errorf("the key was granted %v before the end of the lease that is cut off", early)
	}
	if next.Grant().Fence <= brief.Grant().Fence {
		t.Errorf("token %d after %d", next.Grant().Fence, brief.Grant().Fence)
	}
	Release(t, next)
	if _, err := Acquire(t, majority, NewRequest(key+"/kept", ttl)); Verdict(err) != "held" {
		t.Errorf("the longer lease is held, and Acquire by a majority gives %v", err)
	}
	Must(t, heal())
	var err error
	if !until(t, func() bool {
		_, err = brief.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		return Verdict(err) != "unknown"
	}) || Verdict(err) != "lost" {
		t.Errorf("Renew of a lease that ended behind the cut: %v", err)
	}
	Renew(t, kept, long)
	Release(t, kept)
	free := NewRequest(key+"/free", time.Minute)
	free.Wait = true // until the attempt from behind the cut is undone
	Release(t, Grant(t, minority, free))
}

// RunLoss checks that a holder that is cut off learns of the loss of its lock before another owner has
// the lock. It partitions a backend of h, whose locks package dlock renews. If a grant has the channel
// Lost, that channel must also be closed.
func RunLoss(t *testing.T, h redlocktest.Harness, ttl time.Duration) {
	t.Helper()
	const key = "lost"
	open := func() driver.Backend {
		b, err := h.Open()
		Must(t, err)
		t.Cleanup(func() {
			_ = b.Close() // locks may have closed it
			if h.Closed != nil {
				Must(t, h.Closed(b))
			}
		})
		return b
	}
	mine, other := open(), open()
	locks, err := dlock.New(mine)
	Must(t, err)
	t.Cleanup(func() { _ = locks.Close() })
	var l *dlock.Lease
	Known(t, func() (err error) {
		l, err = locks.Lock(t.Context(), key, dlock.WithTTL(ttl))
		return err
	})
	bare := Grant(t, mine, NewRequest(key+"/bare", ttl))
	Must(t, h.Faults.Partition(mine))
	after := NewRequest(key, time.Minute)
	after.Wait = true
	var next driver.Lease
	if !until(t, func() bool {
		var err error
		if next, err = Acquire(t, other, after); err != nil {
			t.Log(err)
		}
		return Verdict(err) != "held" // by a backend that cannot wait
	}) || next == nil {
		t.Fatal("the lock of a holder that is cut off does not come free")
	}
	if l.Err() == nil {
		t.Error("another has the lock, and the holder is not told")
	}
	Release(t, next)
	Must(t, h.Faults.Heal(mine))
	if c := bare.Grant().Lost; c != nil {
		<-c
	}
	<-l.Done()
	if !errors.Is(l.Err(), driver.ErrLost) {
		t.Errorf("Err is %v", l.Err())
	}
}

// RunLeaderLoss checks that none of many leases outlives its end when the leader of a cluster is
// killed. A holder that is cut off at that instant learns of each loss before the key is another's; a
// holder that is not renews all of them, unless no client had an answer for a third of their time.
func RunLeaderLoss(t *testing.T, g *server.Group, leader func() *server.Server, url func(addrs []string) string, locks int) {
	t.Helper()
	client := func(addrs []string) *dlock.Client {
		c, err := dlock.OpenURL(url(addrs))
		Must(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	hold := func(c *dlock.Client, key string, ttl time.Duration) []*dlock.Lease {
		held := make([]*dlock.Lease, locks)
		var wg sync.WaitGroup
		for i := range held {
			wg.Go(func() {
				var err error
				if held[i], err = c.Lock(t.Context(), fmt.Sprint(key, i), dlock.WithTTL(ttl)); err != nil {
					t.Error(err)
				}
			})
		}
		if wg.Wait(); t.Failed() {
			t.FailNow()
		}
		return held
	}
	ways := make([]*fault.Proxy, len(g.Nodes))
	via := make([]string, len(ways))
	for i, addr := range g.Addrs() {
		ways[i] = fault.NewProxy(t, addr)
		via[i] = ways[i].Addr()
	}
	long := 15 * time.Second // on a busy machine an election takes some seconds
	if locks > 100 {
		long = time.Minute // and so do many renewals after it
	}
	kept, lost := hold(client(g.Addrs()), "kept/", long), hold(client(via), "lost/", 5*time.Second)
	failing := leader()
	for _, w := range ways {
		w.Pause()
	}
	Must(t, failing.Kill())
	killed := time.Now()
	others := client(g.Addrs()).Backend()
	var silence, last = time.Duration(0), killed // the longest time without an answer, and the last one
	over, asked := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(asked)
		until(t, func() bool {
			if _, err := others.(driver.Inspector).Lookup(t.Context(), "kept/0"); err == nil {
				silence, last = max(silence, time.Since(last)), time.Now()
			}
			select {
			case <-over:
				return true
			case <-time.After(50 * time.Millisecond):
				return false
			}
		})
		silence = max(silence, time.Since(last))
	}()
	var wg sync.WaitGroup
	for _, l := range lost {
		wg.Go(func() {
			r := NewRequest(l.Key(), time.Minute)
			r.Wait = true
			next := Grant(t, others, r)
			if l.Err() == nil {
				t.Errorf("%s is another's, and its holder does not know it", l.Key())
			}
			Release(t, next)
		})
	}
	wg.Wait()
	for _, l := range kept {
		_ = until(t, func() bool {
			end, _ := l.Deadline()
			return l.Err() != nil || end.After(killed.Add(long))
		})
	}
	close(over)
	<-asked
	for _, l := range kept {
		switch end, _ := l.Deadline(); {
		case l.Err() == nil && end.After(killed.Add(long)):
		case silence > long/3: // then nobody could renew it
			t.Logf("%s: %v, after %v without an answer", l.Key(), l.Err(), silence)
		default:
			t.Errorf("%s is not renewed after the leader was killed: %v", l.Key(), l.Err())
		}
	}
	Must(t, failing.Start())
}

// RunErrors checks the errors of a backend with an Inspector whose servers are stopped: package dlock
// names the operation and the key, so a driver's error must not, and it has name once: the driver's
// name, or the address.
func RunErrors(t *testing.T, b driver.Backend, name string, stop, resume func() error) {
	t.Helper()
	const key, ttl = "the-key", time.Minute
	l := Grant(t, b, &driver.Request{Key: key, Owner: "a/1", TTL: ttl})
	Must(t, stop())
	i := b.(driver.Inspector)
	calls := map[string]func(context.Context) error{
		"acquire": func(ctx context.Context) error {
			_, err := b.Acquire(ctx, &driver.Request{Key: "other", Owner: "a/2", TTL: ttl})
			return err
		},
		"renew": func(ctx context.Context) error {
			_, err := l.Renew(ctx, &driver.Renewal{TTL: ttl})
			return err
		},
		"look up": func(ctx context.Context) error {
			_, err := i.Lookup(ctx, key)
			return err
		},
		"list": func(ctx context.Context) error {
			return i.List(ctx, "", func(*driver.State) bool { return true })
		},
		"check": func(ctx context.Context) error {
			_, err := i.Check(ctx)
			return err
		},
		"break": func(ctx context.Context) error {
			return b.(driver.Admin).Break(ctx, key, driver.Holder{Fence: l.Grant().Fence})
		},
	}
	says := func(op string, err error) {
		switch {
		case err == nil:
			t.Errorf("%s succeeds, and the server is stopped", op)
		case strings.Contains(err.Error(), op), strings.Contains(err.Error(), key), strings.Count(err.Error(), name) != 1:
			t.Errorf("%s: the error repeats the operation, the key or the backend: %v", op, err)
		}
	}
	var all sync.WaitGroup
	for op, call := range calls {
		all.Go(func() { says(op, call(t.Context())) })
		all.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			says(op, call(ctx))
		})
	}
	all.Wait()
	says("release", l.Release(t.Context()))
	Must(t, resume())
}
