package redlock

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/memory"
)

// spaces are n independent lock spaces, over which any number of quorums can be made.
type spaces []*memory.Backend

func newSpaces(n int) spaces {
	s := make(spaces, n)
	for i := range s {
		s[i] = memory.New()
	}
	return s
}

// quorum returns a quorum with its own nodes on the spaces, like another process.
func (s spaces) quorum(t testing.TB, o *Options) *Backend {
	t.Helper()
	nodes := make([]driver.Backend, len(s))
	for i := range s {
		nodes[i] = s[i].Peer()
	}
	return opened(t, nodes, o)
}

// opened returns a quorum of these nodes that is closed with the test.
func opened(t testing.TB, nodes []driver.Backend, o *Options) *Backend {
	t.Helper()
	b, err := New(nodes, o)
	drivertest.Must(t, err)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func request1(key, owner string, ttl time.Duration) *driver.Request {
	return &driver.Request{Key: key, Owner: owner, TTL: ttl}
}

func TestOneRoundTripIsTheRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSpaces(5).quorum(t, nil)
		const grants = 200
		once := 0
		var last uint64
		for i := range grants {
			l, err := b.Acquire(t.Context(), request1("k", fmt.Sprintf("o%d", i), time.Second))
			drivertest.Must(t, err)
			if l.(*lease).bid.raising == 0 {
				once++
			}
			g := l.Grant()
			if g.Fence <= last {
				t.Fatalf("token %d after %d", g.Fence, last)
			}
			last = g.Fence
			if len(g.Votes) != 5 {
				t.Fatalf("%d votes", len(g.Votes))
			}
			drivertest.Must(t, l.Release(t.Context()))
		}
		// A node that gets its request late may have a smaller counter.
		if once < grants*2/3 {
			t.Errorf("%d of %d grants took one round trip", once, grants)
		}
	})
}
