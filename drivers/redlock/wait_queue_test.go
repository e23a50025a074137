package redlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// Nodes that are reserved for the next waiter count together with the owner of the most other
// nodes. That is a verdict, not a split vote that needs further rounds of bids. The verdict
// names an owner only if this owner has enough nodes by itself: with fewer nodes it may have
// released the lock, or may not get it.
func TestNodesThatAreKeptForTheFirstWaiterAreHeld(t *testing.T) {
	say := func(err error) driver.Backend {
		return script{memory.New(), func(context.Context, *driver.Request) (driver.Lease, error) { return nil, err }}
	}
	// The reserved nodes answer last, because three of them alone are a verdict.
	kept := func() driver.Backend {
		return script{memory.New(), func(context.Context, *driver.Request) (driver.Lease, error) {
			time.Sleep(time.Millisecond)
			return nil, &driver.HeldError{ReservedForWaiter: true, RetryAfter: 30 * time.Millisecond}
		}}
	}
	held := func(by string) driver.Backend {
		return say(&driver.HeldError{Holder: by, RetryAfter: time.Minute})
	}
	last := func(by string) driver.Backend {
		return script{memory.New(), func(context.Context, *driver.Request) (driver.Lease, error) {
			time.Sleep(2 * time.Millisecond)
			return nil, &driver.HeldError{Holder: by, RetryAfter: time.Minute}
		}}
	}
	down := func() driver.Backend { return say(errors.New("connection refused")) }
	for name, c := range map[string]struct {
		nodes  []driver.Backend
		holder string
		kept   bool
		after  time.Duration // zero: depends on which node answers first
	}{
		"all kept":                    {nodes: []driver.Backend{kept(), kept(), kept(), kept(), kept()}, kept: true, after: 30 * time.Millisecond},
		"a few have not heard of it":  {nodes: []driver.Backend{held("x/1"), kept(), kept(), kept(), kept()}, kept: true, after: 30 * time.Millisecond},
		"some kept, the rest its own": {nodes: []driver.Backend{held("x/1"), kept(), held("x/1"), kept(), kept()}, kept: true},
		"a majority with a minority":  {nodes: []driver.Backend{kept(), down(), held("x/1"), down(), held("x/1")}, kept: true, after: 30 * time.Millisecond},
		"enough by itself":            {nodes: []driver.Backend{kept(), held("x/1"), held("x/1"), down(), held("x/1")}, holder: "x", after: time.Minute},
		// The owner's third node answers after the reserved nodes.
		"enough, if all are heard": {nodes: []driver.Backend{kept(), kept(), held("x/1"), held("x/1"), last("x/1")}, holder: "x", after: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, err := New(c.nodes, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = b.Close() }()
				_, err = b.Acquire(t.Context(), request1("k", "me", time.Second))
				var h *driver.HeldError
				if !errors.As(err, &h) || h.Holder != c.holder || h.ReservedForWaiter != c.kept || c.after != 0 && h.RetryAfter != c.after {
					t.Errorf("got %v: %+v", err, h)
				}
			})
		})
	}
}

// noting is a node that notes the WaitingSince of each request.
type noting struct {
	*memory.Backend
	mu    *sync.Mutex
	since *[]uint64
}

func (l noting) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l.mu.Lock()
	*l.since = append(*l.since, r.Quorum.WaitingSince)
	l.mu.Unlock()
	return l.Backend.Acquire(ctx, r)
}

// Every attempt of a waiting client has the same WaitingSince for all nodes, and a new one
// after the client was served.
func TestNodesAreToldOneTimeSinceWhenAClientWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpaces(5)
		other := s.quorum(t, nil)
		var mu sync.Mutex
		var since []uint64
		nodes := make([]driver.Backend, len(s))
		for i := range s {
			nodes[i] = noting{s[i].Peer(), &mu, &since}
		}
		b, err := New(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		said := func() []uint64 {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			all := since
			since = nil
			return slices.Compact(all)
		}
		ask := func() (driver.Lease, []uint64) {
			l, err := b.Acquire(t.Context(), request1("k", "me", 20*time.Second))
			if err != nil && !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			return l, said()
		}
		l, err := other.Acquire(t.Context(), request1("k", "other", 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if _, got := ask(); !slices.Equal(got, []uint64{0}) {
			t.Errorf("a client that does not wait is said to wait since %d", got)
		}
		began := uint64(time.Now().UnixMicro())
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := b.Watch(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		_, first := ask()
		time.Sleep(time.Second)
		_, second := ask()
		if len(first) != 1 || first[0] < began || first[0] > began+1e6 || !slices.Equal(first, second) {
			t.Errorf("a client that waits since %d is said to wait since %d, and then since %d", began, first, second)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		if l, _ = ask(); l == nil {
			t.Fatal("a free lock is not granted")
		}
		if _, next := ask(); len(next) != 1 || next[0] <= first[0] {
			t.Errorf("a client that was served is said to wait since %d, the same as before it was served, %d", next, first)
		}
		cancel()
		synctest.Wait()
		if _, got := ask(); !slices.Equal(got, []uint64{0}) {
			t.Errorf("a client that no longer waits is said to wait since %d", got)
		}
		if n := len(b.waits.byKey); n != 0 {
			t.Errorf("waits still has %d keys", n)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
