package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// ours is a driver of this module, with a function that makes its URL.
type ours struct {
	driver string // its registered name
	client string // its client library, for comparisons
	serves func(server.Kind, int) bool
	url    func(*Setup) string
}

var drivers = []ours{
	{"redis", "go-redis", OneKeyStore, func(s *Setup) string { return "redis://" + s.Nodes[0].Addr }},
	{"valkey", "valkey-go", OneKeyStore, func(s *Setup) string { return "valkey://" + s.Nodes[0].Addr }},
	{"redlock", "go-redis", ManyKeyStores, quorumURL("redis", true)},
	{"redlock", "valkey-go", ManyKeyStores, quorumURL("valkey", true)},
	{"postgres", "pgx", One(server.KindPostgres), func(s *Setup) string { return PostgresURL(s.Nodes[0].Addr) }},
	{"etcd", "etcd", One(server.KindEtcd), func(s *Setup) string { return "etcd://" + s.Nodes[0].Addr }},
}

func quorumURL(scheme string, guarded bool) func(*Setup) string {
	return func(s *Setup) string {
		var addrs []string
		for _, n := range s.Nodes {
			addrs = append(addrs, n.Addr)
		}
		return QuorumURL(scheme, addrs, guarded)
	}
}

// QuorumURL makes the URL of a quorum of new servers, with the default restart guard or without
// one.
func QuorumURL(scheme string, addrs []string, guarded bool) string {
	last := "bootstrap=true"
	if !guarded {
		last = "restart_guard=off"
	}
	// The prefix is unique to these terms, because servers remember the terms of a quorum.
	return fmt.Sprintf("redlock:%s://%s,prefix=quorum-%d-%t/,%s", scheme, strings.Join(addrs, ","+scheme+"://"), len(addrs), guarded, last)
}

// PostgresURL returns the URL for the superuser of a server that the run started.
func PostgresURL(addr string) string {
	return "postgres://" + server.Superuser + "@" + addr + "/postgres?sslmode=disable"
}

// registered reports whether the program has a driver of this name.
func registered(name string) bool { return slices.Contains(dlock.Drivers(), name) }

// own returns three kinds of contestants: dlock over every driver that the program has, each
// driver alone, and drivers over an application's client, with the library's default options.
func own() []Contestant {
	var out []Contestant
	for _, d := range drivers {
		if !registered(d.driver) {
			continue
		}
		name := d.client
		c := Contestant{Client: d.client, Serves: d.serves, Waits: true}
		add := func(kind Kind, name, how string, open func(s *Setup) (Locker, error)) {
			c.Kind, c.Name, c.How = kind, name, how
			c.Open = func(_ context.Context, s *Setup) (Locker, error) { return open(s) }
			out = append(out, c)
		}
		add(Ours, "dlock, "+name, "dlock.OpenURL with "+d.driver+": and nothing set but what the servers need", d.open)
		c.Waits = false
		if d.driver == "redlock" {
			off := d
			off.url = quorumURL(map[string]string{"go-redis": "redis", "valkey-go": "valkey"}[d.client], false)
			add(Part, "dlock, "+name+", no guard", "dlock.OpenURL with redlock: and restart_guard=off", off.open)
		}
		add(Part, "driver, "+name, "the driver "+d.driver+" without dlock: no renewal, no wait queue, no hooks", func(s *Setup) (Locker, error) {
			b, err := dlock.OpenBackend(d.url(s))
			return backend{b, s.TTL, func() error { return nil }}, err
		})
		const how = "the driver on an application's client with the library's default options"
		switch d.driver {
		case "redis":
			add(Part, "driver, go-redis, own client", how, func(s *Setup) (Locker, error) {
				c := redis.NewClient(&redis.Options{Addr: s.Nodes[0].Addr})
				b, err := goredis.New(c, nil)
				return backend{b, s.TTL, c.Close}, err
			})
		case "valkey":
			add(Part, "driver, valkey-go, own client", how, func(s *Setup) (Locker, error) {
				c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{s.Nodes[0].Addr}})
				if err != nil {
					return nil, err
				}
				b, err := valkeygo.New(c, nil)
				return backend{b, s.TTL, func() error { c.Close(); return nil }}, err
			})
		}
	}
	return out
}

// A Client is a dlock.Client, used as applications use it.
type Client struct{ *dlock.Client }

func (d *ours) open(s *Setup) (Locker, error) {
	c, err := dlock.OpenURL(d.url(s), dlock.WithLogger(slog.New(slog.DiscardHandler)), dlock.WithTTL(s.TTL))
	return Client{c}, err
}

// Lock takes a lock.
func (c Client) Lock(ctx context.Context, key string, wait bool) (Held, error) {
	if wait {
		return orNil(c.Client.Lock(ctx, key))
	}
	return orNil(c.TryLock(ctx, key))
}

// orNil keeps a nil lease from becoming a non-nil Held.
func orNil(l *dlock.Lease, err error) (Held, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

// backend is a driver without dlock.
type backend struct {
	driver.Backend
	ttl time.Duration
	end func() error // closes the application's client
}

func (b backend) Lock(ctx context.Context, key string, wait bool) (Held, error) {
	l, err := b.Acquire(ctx, &driver.Request{Key: key, Owner: newOwner(), Wait: wait, TTL: b.ttl})
	return backendHeld{l}, err
}

func (b backend) Close() error { return errors.Join(b.Backend.Close(), b.end()) }

type backendHeld struct{ driver.Lease }

func (h backendHeld) Unlock() error {
	err := h.Release(context.Background())
	if errors.Is(err, driver.ErrLost) {
		return nil
	}
	return err
}
