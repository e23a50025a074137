package nodetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var (
	measured   = flag.Bool("measure", false, "run TestMeasures: what a node costs and how long it takes, in figures")
	measureFor = flag.Duration("measure.for", 10*time.Minute, "how long the measure of keys used once takes")
)

// measures print figures. They fail if counts or bytes are wrong, but judge no times.
var measures = []test{
	{"KeysUsedOnce", (*suite).keysUsedOnce},
	{"Failovers", (*suite).failoverTable},
	{"ManyWaiters", (*suite).manyWaiters},
	{"ClusterBus", (*suite).clusterBus},
	{"ForeignRelease", (*suite).foreignRelease},
	{"Takeover", (*suite).takeover},
}

// RunMeasures runs the measures, one after the other, on both servers, if the flag -measure is
// given.
func RunMeasures(t *testing.T, d Driver) {
	if !*measured {
		t.Skip("it takes minutes: give -measure to run it")
	}
	eachKind(t, d, func(t *testing.T, s *suite) {
		for _, test := range measures {
			t.Run(test.name, func(t *testing.T) { test.run(s, t) })
		}
	})
}

// keysUsedOnce locks 1,000 keys a second, each once. The memory of a node without eviction
// grows only until the first counters expire.
func (s *suite) keysUsedOnce(t *testing.T) {
	const (
		workers = 16
		perTick = 20 // keys in 20 ms
		ttl     = 10 * time.Second
		life    = 2*time.Minute + ttl // life of a counter
	)
	srv := server.StartFor(t, s.kind, server.WithMaxMemory("64mb", "noeviction"))
	b := s.open(t, s.url(srv.Addr(), ""))
	s.warm(t, b)
	memory := func() (bytes int64) {
		info, err := srv.Do("INFO", "memory")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(fmt.Sprint(info), "used_memory:")
		bytes, err = strconv.ParseInt(strings.SplitN(rest, "\r\n", 2)[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return bytes
	}
	keys := make(chan int, 1000)
	var failed atomic.Int64
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range keys {
				l, err := b.Acquire(context.Background(), s.ask(fmt.Sprintf("reports/tenant-%d", i), ttl))
				if err == nil {
					err = l.Release(context.Background())
				}
				if err != nil && failed.Add(1) < 5 {
					t.Error(err)
				}
			}
		})
	}
	start, sample := time.Now(), time.Now()
	used := 0
	var grown, most int64
	for tick := time.NewTicker(20 * time.Millisecond); time.Since(start) < *measureFor; <-tick.C {
		for want := int(time.Since(start)/(20*time.Millisecond)) * perTick; used < want; used++ {
			keys <- used
		}
		if time.Since(sample) < 10*time.Second {
			continue
		}
		sample = time.Now()
		bytes := memory()
		if at := time.Since(start); at < life+30*time.Second {
			grown = max(grown, bytes)
		} else {
			most = max(most, bytes)
		}
		n, _ := srv.Do("DBSIZE")
		t.Logf("after %v: %d keys used, %v stored, %.1f MB", time.Since(start).Round(time.Second), used, n, float64(bytes)/1e6)
	}
	close(keys)
	wg.Wait()
	t.Logf("%d keys used once in %v: %.1f MB at most until the first counters have ended, %.1f MB at most afterwards, %d calls failed",
		used, time.Since(start).Round(time.Second), float64(grown)/1e6, float64(most)/1e6, failed.Load())
	if most > 50e6 || float64(most) > 1.2*float64(grown) {
		t.Errorf("the memory of a node is not flat below 50 MB: %d bytes, and then %d", grown, most)
	}
}

// manyWaiters: 3,000 waiters over a slow link are subscribed together, and 10,000 waiters ask
// only once per key and minute.
func (s *suite) manyWaiters(t *testing.T) {
	const waiters, most = 3000, 5
	for trip := 10 * time.Millisecond; ; trip *= 2 { // a busy machine works for as long as several trips take: a slower link tells
		trips, _ := s.idle(t, waiters, trip, 0, 0)
		if trips <= most {
			break
		}
		if trip > 600*time.Millisecond {
			t.Fatalf("%d waiters are subscribed after %d round trips, want %d at most", waiters, trips, most)
		}
	}
	const n = 10_000
	_, asked := s.idle(t, n, 0, 70*time.Second, n*12/10)
	t.Logf("%d idle waiters asked %d times within 70 s", n, asked)
	if asked > n*12/10 {
		t.Errorf("%d idle waiters asked %d times within 70 s", n, asked)
	}
}

// clusterBus counts the messages that six nodes of a Cluster exchange about 1,000 locks.
func (s *suite) clusterBus(t *testing.T) {
	g := linkedCluster(t, s.kind)
	nodes := slices.Clone(g.Nodes)
	for range 3 {
		node := server.StartFor(t, s.kind, server.WithCluster())
		_, bus := meeting(t, g.Nodes[0])
		host, port, _ := net.SplitHostPort(g.Nodes[0].Addr())
		if _, err := node.Do("CLUSTER", "MEET", host, port, bus); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, node)
	}
	eventually(t, func() error {
		for _, node := range nodes {
			if info, err := node.Do("CLUSTER", "INFO"); err != nil || !strings.Contains(fmt.Sprint(info), "cluster_known_nodes:6") {
				return errors.New("not all know each other")
			}
		}
		return nil
	})
	dsn := s.url(strings.Join(g.Addrs(), ","), "?topology=cluster")
	b, other := s.open(t, dsn), s.open(t, dsn)
	count := func(what string, waits bool) {
		before := 0
		for _, node := range nodes {
			before -= published(t, node)
		}
		const n = 1000
		for i := range n {
			key := fmt.Sprintf("k%d", i%10)
			l := s.lock(t, b, key, time.Minute)
			if !waits {
				unlock(t, l)
				continue
			}
			ctx, cancel := context.WithCancel(context.Background())
			wake := watch(t, ctx, other, key)
			if _, err := other.Acquire(ctx, s.ask(key, time.Minute)); err == nil {
				t.Fatal("two hold it")
			}
			unlock(t, l)
			awake(t, wake)
			unlock(t, s.lockSoon(t, other, key, time.Minute))
			cancel()
		}
		for _, node := range nodes {
			before += published(t, node)
		}
		t.Logf("%s: %.2f messages between the six nodes a pair", what, float64(before)/n)
		if !waits && before > n/10 {
			t.Errorf("%s: %d messages for %d pairs", what, before, n)
		}
	}
	count("nobody waits", false)
	count("another process waits", true)
}

// client is a dlock client with its own backend.
func (s *suite) client(t *testing.T, url string) *dlock.Client {
	c, err := dlock.New(s.open(t, url))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// foreignRelease measures how soon a waiter gets a lock that another library has freed.
func (s *suite) foreignRelease(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	c := s.client(t, s.url(srv.Addr(), ""))
	var took []time.Duration
	for range 30 {
		if _, err := srv.Do("SET", theLock, "foreign", "PX", "60000"); err != nil {
			t.Fatal(err)
		}
		freed := make(chan time.Time)
		time.AfterFunc(500*time.Millisecond+rand.N(time.Second), func() {
			at := time.Now()
			_, _ = srv.Do("DEL", theLock)
			freed <- at
		})
		l, err := c.Lock(context.Background(), theLock)
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(<-freed))
		_ = l.Unlock()
	}
	slices.Sort(took)
	t.Logf("a foreign holder has released: ours has it after %v at the median, %v at most", took[len(took)/2].Round(time.Millisecond), took[len(took)-1].Round(time.Millisecond))
}

// takeover measures how late a waiter gets the lock of a holder that died.
func (s *suite) takeover(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	for _, ttl := range []time.Duration{time.Second, 5 * time.Second} {
		var late []time.Duration
		for range 5 {
			dead := s.open(t, s.url(srv.Addr(), ""))
			c := s.client(t, s.url(srv.Addr(), ""))
			held := s.lock(t, dead, theLock, ttl)
			l, err := c.Lock(context.Background(), theLock)
			if err != nil {
				t.Fatal(err)
			}
			late = append(late, time.Since(held.Grant().Expires).Round(time.Millisecond))
			_ = l.Unlock()
		}
		slices.Sort(late)
		t.Logf("TTL %v: a waiter has the lock of a dead holder %v after its lease, at most %v", ttl, late[len(late)/2], late[len(late)-1])
	}
}
