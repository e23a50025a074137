package bench

import (
	"context"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// probeRunner returns a runner with dlock over go-redis, and what would be wrong.
func probeRunner(t *testing.T, more ...Contestant) *Runner {
	p := Quick()
	p.Silence = time.Second
	var list []Contestant
	for _, c := range Contestants() {
		if c.Name == "dlock, go-redis" {
			list = append(list, c)
		}
	}
	r := NewRunner(p, append(list, more...), io.Discard)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// leaky is a library that forgets its keys when an attempt fails, and gives no signal.
var leaky = Contestant{
	Name: "leaky", Kind: Peer, Client: "go-redis", Serves: OneKeyStore, Waits: true, Renews: true,
	Open: func(_ context.Context, s *Setup) (Locker, error) {
		c, err := openGoRedis(s.Nodes[0].Addr, time.Second)
		return &leakyLocker{c, s.TTL}, err
	},
}

type leakyLocker struct {
	c   commands
	ttl time.Duration
}

func (l *leakyLocker) Lock(ctx context.Context, key string, wait bool) (Held, error) {
	for {
		reply, err := l.c.do(context.WithoutCancel(ctx), (&bare{ttl: "60000"}).acquire(key, "me"))
		if err == nil && ctx.Err() != nil {
			return nil, ctx.Err() // and the key stays
		}
		if err == nil && reply == "OK" {
			return leakyHeld{l, key}, nil
		}
		if !wait || err != nil || ctx.Err() != nil {
			return nil, errHeld
		}
		time.Sleep(time.Millisecond)
	}
}

func (l *leakyLocker) Close() error { return l.c.close() }

type leakyHeld struct {
	l   *leakyLocker
	key string
}

func (leakyHeld) Renew(context.Context) error { return nil }

func (h leakyHeld) Unlock() error {
	_, err := h.l.c.do(context.Background(), []string{"DEL", h.key})
	return err
}

func TestTheSignalOfAHolderThatIsCutOffIsTimedBesideTheNextGrant(t *testing.T) {
	t.Parallel()
	r := probeRunner(t, leaky)
	servers := []*server.Server{server.Redis(t)}
	for _, c := range r.contestants {
		// So long that a machine that stands still for a while does not end the lease before
		// its holder is cut off, and that who waits gets it in the end.
		e := &entry{contestant: c, servers: servers, setup: direct(servers, 2*time.Second)}
		r.plan.Patience = 20 * time.Second
		if c.Kind == Peer {
			r.plan.Patience = time.Second
		}
		got := r.cutOffMeasurement(t.Context(), e, 0)
		if c.Kind == Peer { // its locks outlive the patience
			if got.err == nil || !strings.Contains(got.err.Error(), "nobody else got the lock") || len(got.values) > 0 {
				t.Errorf("%s: %+v", c.Name, got)
			}
			continue
		}
		for _, name := range []string{"lost signal", "lost signal before next grant"} {
			if !slices.ContainsFunc(got.values, func(v value) bool { return v.name == name }) {
				t.Errorf("%s has no %s: %+v", c.Name, name, got)
			}
		}
		if got.err != nil || len(got.series) != 1 {
			t.Errorf("%s: %+v", c.Name, got)
		}
	}
}

func TestASilentNodeOfFiveDoesNotKeepAQuorumFromALock(t *testing.T) {
	t.Parallel()
	r := probeRunner(t)
	r.plan.Silence = 20 * time.Second
	var servers []*server.Server
	for range 5 {
		servers = append(servers, server.Redis(t))
	}
	i := slices.IndexFunc(Contestants(), func(c Contestant) bool { return c.Name == "dlock, go-redis" && c.Serves(server.KindRedis, 5) })
	// A node that kept a quorum from a lock would do so every time; a machine that stands
	// still for the attempt's half second does not.
	const times = 5
	for range times {
		got := r.silenceMeasurement(t.Context(), &entry{contestant: Contestants()[i], servers: servers, setup: direct(servers, 10*time.Second)}, 0)
		if got.err != nil {
			t.Fatalf("measurement %+v", got)
		}
		if slices.ContainsFunc(got.values, func(v value) bool { return v.name == "granted" && v.v == 1 }) {
			return
		}
		t.Logf("measurement %+v", got)
	}
	t.Errorf("the attempt was not granted %d times of %d", times, times)
}

func TestAGuardKeepsANodeThatStartsAgainFromItsVote(t *testing.T) {
	t.Parallel()
	r := probeRunner(t)
	r.plan.Patience = 20 * time.Second
	cases := r.restarts([]server.Kind{server.KindRedis})
	server.Redis(t) // skips where there is none
	votes := map[bool]time.Duration{}
	for _, c := range cases[0].contestants {
		got := cases[0].measurement(t.Context(), &entry{contestant: c, setup: cases[0].setup}, 0)
		if got.err != nil || len(got.series) != 1 {
			t.Fatalf("%s: %+v", c.Name, got)
		}
		votes[strings.HasSuffix(c.Name, "guard off")] = got.series[0].samples[0]
	}
	if len(votes) != 2 || votes[false] < r.plan.Guard {
		t.Errorf("the vote came after %v with a guard of %v, and after %v without", votes[false], r.plan.Guard, votes[true])
	}
}
