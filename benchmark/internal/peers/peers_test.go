package peers

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// Every measured peer must be a lock, used as its library intends.
func TestEveryPeerIsALock(t *testing.T) {
	redis := func(t *testing.T) *server.Server { return server.Redis(t) }
	served := map[string]bool{}
	for _, on := range []struct {
		name  string
		n     int
		start func(t *testing.T) *server.Server
	}{
		{"redis", 1, redis},
		{"three redis", 3, redis},
		{"postgres", 1, func(t *testing.T) *server.Server { return server.Postgres(t) }},
		{"etcd", 1, func(t *testing.T) *server.Server { return server.Etcd(t, 1).Nodes[0] }},
		{"consul", 1, func(t *testing.T) *server.Server { return server.Consul(t, 1).Nodes[0] }},
	} {
		t.Run(on.name, func(t *testing.T) {
			setup, kind := &bench.Setup{TTL: 20 * time.Second}, server.Kind("")
			for range on.n {
				s := on.start(t)
				kind, setup.Addrs = s.Kind(), append(setup.Addrs, s.Addr())
			}
			for _, p := range Contestants() {
				if p.Serves(kind, on.n) {
					served[p.String()] = true
					t.Run(p.String(), func(t *testing.T) { excludes(t, p, setup) })
				}
			}
		})
	}
	if n := len(Contestants()); len(served) != n && os.Getenv("CI") != "" {
		t.Errorf("%d of %d peers serve something: %v", len(served), n, served)
	}
}

// excludes takes a lock from two clients, one after the other.
func excludes(t *testing.T, p bench.Contestant, s *bench.Setup) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	one, two := open(ctx, t, p, s), open(ctx, t, p, s)
	unlock := persistently(ctx, t, one, t.Name())
	if _, err := two(ctx, t.Name(), false); err == nil {
		t.Fatal("two clients have it")
	}
	if err := unlock(); err != nil {
		t.Log("unlock:", err) // the next one shows whether it is free
	}
	if err := persistently(ctx, t, two, t.Name())(); err != nil {
		t.Log("unlock:", err) // a machine that stalls costs a library its own timeout
	}
}

// persistently waits for a lock, and starts a new wait every few seconds: on a machine that
// stalls, a wait of valkeylock or rueidislock may miss the release and go on until its context
// ends.
func persistently(ctx context.Context, t *testing.T, lock locker, key string) (unlock func() error) {
	for {
		wait, cancel := context.WithCancel(ctx) // not a timeout: some locks end with their context
		t.Cleanup(cancel)
		patience := time.AfterFunc(3*time.Second, cancel)
		unlock, err := lock(wait, key, true)
		if err == nil && patience.Stop() {
			return unlock
		}
		if cancel(); err == nil {
			_ = unlock() // the lock may have ended
		}
		if ctx.Err() != nil {
			t.Fatal("no lock was granted:", err)
		}
	}
}

// locker is a client's Lock.
type locker func(ctx context.Context, key string, wait bool) (unlock func() error, err error)

func open(ctx context.Context, t *testing.T, p bench.Contestant, s *bench.Setup) locker {
	l, err := p.Open(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Log("close:", err) // a machine that stalls costs a library its own timeout
		}
	})
	return l.Lock
}

func TestPeersHaveNamesOfTheirOwnAndSayHowTheyAreSetUp(t *testing.T) {
	var names []string
	for _, c := range bench.Contestants() {
		names = append(names, c.String())
	}
	for _, c := range Contestants() {
		if slices.Contains(names, c.String()) {
			t.Errorf("two contestants are called %q", c.String())
		}
		if c.How == "" || c.Client == "" || c.Kind != bench.Peer {
			t.Errorf("%q does not say how it is set up", c.String())
		}
		names = append(names, c.String())
	}
}
