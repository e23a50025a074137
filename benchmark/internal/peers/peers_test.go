package peers

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// What is measured has to be a lock, used as its library means it.
func TestEveryPeerIsALock(t *testing.T) {
	redis := []*server.Server{server.Redis(t), server.Redis(t), server.Redis(t)}
	postgres := []*server.Server{server.Postgres(t)}
	for _, p := range Contestants() {
		if p.Brings != nil {
			t.Run(p.Name, func(t *testing.T) { excludesOnItsOwn(t, p) })
			continue
		}
		served := 0
		for _, servers := range [][]*server.Server{redis[:1], redis, postgres} {
			if p.Serves(servers[0].Kind(), len(servers)) {
				served++
				t.Run(p.Name+"/"+strconv.Itoa(len(servers)), func(t *testing.T) { excludes(t, p, nodesOf(servers)) })
			}
		}
		if served == 0 {
			t.Errorf("%s serves nothing", p.Name)
		}
	}
}

func nodesOf(servers []*server.Server) (nodes []bench.Node) {
	for _, n := range servers {
		nodes = append(nodes, bench.Node{Kind: n.Kind(), Addr: n.Addr(), Direct: n.Addr()})
	}
	return nodes
}

// excludesOnItsOwn is excludes with the server that a peer brings along.
func excludesOnItsOwn(t *testing.T, p bench.Contestant) {
	g, err := p.Brings(t.Context())
	if errors.Is(err, bench.ErrMissing) && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := g.Close(); err != nil {
			t.Error("close the server:", err)
		}
	}()
	t.Run("1", func(t *testing.T) {
		excludes(t, p, []bench.Node{g.Node})
		if n, err := g.Left(t.Context(), t.Name()); n != 0 || err != nil {
			t.Errorf("%d locks are left, error %v", n, err)
		}
		c := open(t.Context(), t, p, &bench.Setup{TTL: 10 * time.Second, Nodes: []bench.Node{g.Node}})
		if _, err := c.Lock(t.Context(), t.Name()+"/held", false); err != nil {
			t.Fatal(err)
		}
		if n, err := g.Left(t.Context(), t.Name()); n != 1 || err != nil {
			t.Errorf("%d locks are held, error %v, want 1", n, err)
		}
	})
}

// excludes takes a lock from two clients, one after the other.
func excludes(t *testing.T, p bench.Contestant, nodes []bench.Node) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	s := &bench.Setup{TTL: 10 * time.Second, Nodes: nodes}
	one, two := open(ctx, t, p, s), open(ctx, t, p, s)
	held, err := one.Lock(ctx, t.Name(), true) // a machine that stalls may cost some attempts
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Lock(ctx, t.Name(), false); err == nil {
		t.Fatal("two clients have it")
	}
	if p.Renews {
		err := held.Renew(ctx)
		for err != nil && ctx.Err() == nil {
			err = held.Renew(ctx)
		}
		if err != nil {
			t.Error("renew:", err)
		}
	}
	if err := held.Unlock(); err != nil {
		t.Log("unlock:", err) // the next one shows whether it is free
	}
	next, err := two.Lock(ctx, t.Name(), true)
	if err != nil {
		t.Fatal("it is not free after Unlock:", err)
	}
	if err := next.Unlock(); err != nil {
		t.Error("unlock:", err)
	}
}

func open(ctx context.Context, t *testing.T, p bench.Contestant, s *bench.Setup) bench.Locker {
	l, err := p.Open(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error("close:", err)
		}
	})
	return l
}

func TestPeersHaveNamesOfTheirOwnAndSayHowTheyAreSetUp(t *testing.T) {
	var names []string
	for _, c := range bench.Contestants() {
		names = append(names, c.Name)
	}
	for _, c := range Contestants() {
		if slices.Contains(names, c.Name) {
			t.Errorf("two contestants are called %q", c.Name)
		}
		if c.How == "" || c.Client == "" || c.Kind != bench.Peer {
			t.Errorf("%q does not say how it is set up: %+v", c.Name, c)
		}
		names = append(names, c.Name)
	}
}
