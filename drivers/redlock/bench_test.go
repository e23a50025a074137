package redlock_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// The quorum's latency beside its two limits, in one run, on the same clients: the bare
// commands, and the nodes' own acquire and release, each fired at all five at once and
// returning at the third answer, with nothing around them.
//
//	go test -run '^$' -bench Quorum ./drivers/redlock
func BenchmarkQuorum(b *testing.B) {
	for _, net := range []struct {
		name string
		rtt  []time.Duration // of each node; below zero: a black hole
	}{
		{name: "loopback"},
		{name: "rtt=2ms", rtt: []time.Duration{2e6, 2e6, 2e6, 2e6, 2e6}},
		{name: "rtt=1,2,3,5,50ms", rtt: []time.Duration{1e6, 2e6, 3e6, 5e6, 50e6}},
		{name: "hole", rtt: []time.Duration{0, 0, -1, 0, 0}},
	} {
		for _, client := range []string{"goredis", "valkeygo"} {
			b.Run(net.name+"/"+client, func(b *testing.B) {
				r := newRig(b, client, net.rtt)
				for _, c := range []int{1, 64} {
					if c > 1 && net.rtt != nil {
						continue
					}
					b.Run(fmt.Sprintf("bare/%d", c), func(b *testing.B) { r.race(b, c, r.bare) })
					b.Run(fmt.Sprintf("scripts/%d", c), func(b *testing.B) { r.race(b, c, r.scripts) })
					b.Run(fmt.Sprintf("quorum/%d", c), func(b *testing.B) { r.race(b, c, r.lock) })
				}
			})
		}
	}
}

// rig is five servers and a client to each.
type rig struct {
	nodes  []driver.Backend
	quorum *redlock.Backend
	set    []func(ctx context.Context, key, value string) error
	del    []func(ctx context.Context, key, value string) error
	key    atomic.Int64
}

func newRig(b *testing.B, client string, rtt []time.Duration) *rig {
	r := &rig{}
	for i := range 5 {
		addr := server.Redis(b).Addr()
		if rtt != nil {
			p := fault.NewProxy(b, addr)
			if rtt[i] < 0 {
				p.BlackHole()
			} else {
				p.RTT(rtt[i])
			}
			addr = p.Addr()
		}
		if client == "goredis" {
			r.goredis(b, addr)
		} else {
			r.valkeygo(b, addr)
		}
	}
	var err error
	if r.quorum, err = redlock.New(r.nodes, &redlock.Options{Guard: -1}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = r.quorum.Close() })
	for range 10 { // connections, clocks, breakers
		r.lock(b)
		time.Sleep(60 * time.Millisecond)
	}
	return r
}

const compareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

func (r *rig) goredis(b *testing.B, addr string) {
	c := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true, PoolSize: 64})
	b.Cleanup(func() { _ = c.Close() })
	n, err := goredis.New(c, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = n.Close() })
	cad := redis.NewScript(compareAndDelete)
	r.nodes = append(r.nodes, n)
	r.set = append(r.set, func(ctx context.Context, key, value string) error {
		return c.SetNX(ctx, key, value, 10*time.Second).Err()
	})
	r.del = append(r.del, func(ctx context.Context, key, value string) error {
		return cad.Run(ctx, c, []string{key}, value).Err()
	})
}

func (r *rig) valkeygo(b *testing.B, addr string) {
	c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{addr}, DisableCache: true, ForceSingleClient: true, AlwaysRESP2: true})
	if err != nil {
		b.Skip("a server that never answers cannot be connected to: ", err)
	}
	b.Cleanup(c.Close)
	n, err := valkeygo.New(c, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = n.Close() })
	cad := valkey.NewLuaScript(compareAndDelete)
	r.nodes = append(r.nodes, n)
	r.set = append(r.set, func(ctx context.Context, key, value string) error {
		return c.Do(ctx, c.B().Set().Key(key).Value(value).Nx().PxMilliseconds(10000).Build()).Error()
	})
	r.del = append(r.del, func(ctx context.Context, key, value string) error {
		return cad.Exec(ctx, c, []string{key}, []string{value}).Error()
	})
}

// race measures cycles on keys of their own by c goroutines.
func (r *rig) race(b *testing.B, c int, cycle func(b *testing.B)) {
	b.ReportAllocs()
	b.SetParallelism(c)
	if c == 1 {
		for b.Loop() {
			cycle(b)
		}
		return
	}
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			cycle(b)
		}
	})
}

func (r *rig) next() string { return fmt.Sprint("bench/", r.key.Add(1)) }

// third calls f for all five at once and returns at the third success.
func third(b *testing.B, f func(i int) error) {
	done := make(chan error, 5)
	for i := range 5 {
		go func() { done <- f(i) }()
	}
	good := 0
	for range 5 {
		err := <-done
		if err == nil {
			good++
		}
		if good == 3 {
			return
		}
	}
	b.Error("fewer than three of five succeeded")
}

func (r *rig) bare(b *testing.B) {
	key := r.next()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	time.AfterFunc(200*time.Millisecond, cancel)
	third(b, func(i int) error { return r.set[i](ctx, key, key) })
	third(b, func(i int) error { return r.del[i](ctx, key, key) })
}

func (r *rig) scripts(b *testing.B) {
	key := r.next()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	time.AfterFunc(200*time.Millisecond, cancel)
	var leases [5]atomic.Pointer[driver.Lease]
	third(b, func(i int) error {
		l, err := r.nodes[i].Acquire(ctx, &driver.Request{Key: key, Owner: key, TTL: 10 * time.Second, Quorum: &driver.Quorum{Terms: driver.Terms{N: 5}}})
		if err == nil {
			leases[i].Store(&l)
		}
		return err
	})
	third(b, func(i int) error {
		l := leases[i].Load()
		if l == nil {
			return context.Canceled
		}
		return (*l).Release(ctx)
	})
}

func (r *rig) lock(b *testing.B) {
	l, err := r.quorum.Acquire(context.Background(), &driver.Request{Key: r.next(), Owner: fmt.Sprint("bench/", r.key.Load()), TTL: 10 * time.Second})
	if err != nil {
		b.Error(err)
		return
	}
	if err := l.Release(context.Background()); err != nil {
		b.Error(err)
	}
}
