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

// ours is a driver of this module, and how a URL of it is made.
type ours struct {
	driver string // as registered
	client string // the library beneath, for comparisons
	serves func(server.Kind, int) bool
	url    func(*Setup) string
}

var drivers = []ours{
	{"memory", "", noServer, func(*Setup) string { return "memory:" }},
	{"file", "", noServer, func(s *Setup) string { return "file://" + s.Folder }},
	{"redis", "go-redis", OneKeyStore, func(s *Setup) string { return "redis://" + s.Nodes[0].Addr }},
	{"valkey", "valkey-go", OneKeyStore, func(s *Setup) string { return "valkey://" + s.Nodes[0].Addr }},
	{"redlock", "go-redis", ManyKeyStores, quorumURL("redis")},
	{"redlock", "valkey-go", ManyKeyStores, quorumURL("valkey")},
	{"postgres", "pgx", OnePostgres, func(s *Setup) string { return PostgresURL(s.Nodes[0].Addr) }},
}

func noServer(kind server.Kind, nodes int) bool { return nodes == 0 }

// OnePostgres serves one PostgreSQL.
func OnePostgres(kind server.Kind, nodes int) bool {
	return kind == server.KindPostgres && nodes == 1
}

func quorumURL(scheme string) func(*Setup) string {
	return func(s *Setup) string {
		var addrs []string
		for _, n := range s.Nodes {
			addrs = append(addrs, n.Addr)
		}
		return QuorumURL(scheme, addrs, s.Guard)
	}
}

// noGuard is a restart guard that is off.
const noGuard = -1

// QuorumURL makes the URL of a quorum of new servers with a restart guard; zero: as long as it is by
// default; below: none.
func QuorumURL(scheme string, addrs []string, guard time.Duration) string {
	// Names of their own, since servers remember the terms of a quorum.
	url := fmt.Sprintf("redlock:%s://%s,prefix=quorum-%d-%d/", scheme, strings.Join(addrs, ","+scheme+"://"), len(addrs), guard.Milliseconds())
	switch {
	case guard < 0:
		return url + ",restart_guard=off"
	case guard > 0:
		url += ",restart_guard=" + guard.String()
	}
	return url + ",bootstrap=true"
}

// PostgresURL returns how the superuser of a server that the run started connects.
func PostgresURL(addr string) string {
	return "postgres://" + server.Superuser + "@" + addr + "/postgres?sslmode=disable"
}

// registered reports whether the program has a driver of this name.
func registered(name string) bool { return slices.Contains(dlock.Drivers(), name) }

// own returns dlock on every driver that the program has, and each driver alone.
func own() []Contestant {
	var out []Contestant
	for _, d := range drivers {
		if !registered(d.driver) {
			continue
		}
		name := d.driver
		if d.driver == "redlock" {
			name = d.client
		} else if d.client != "" {
			name = d.client
		}
		c := Contestant{Client: d.client, Serves: d.serves, Waits: true, Renews: true}
		c.Kind, c.Name, c.Local = Ours, "dlock, "+name, d.driver == "memory"
		c.How = "dlock.OpenURL with " + d.driver + ": and nothing set but what the servers need"
		c.Open = func(_ context.Context, s *Setup) (Locker, error) { return openClient(d.url(s), s) }
		out = append(out, c)
		if d.driver == "redlock" {
			off := c
			off.Kind, off.Name, off.How = Part, "dlock, "+name+", no guard", "dlock.OpenURL with redlock: and restart_guard=off"
			off.Open = func(_ context.Context, s *Setup) (Locker, error) {
				own := *s
				own.Guard = noGuard
				return openClient(d.url(&own), s)
			}
			out = append(out, off)
		}

		c.Kind, c.Name, c.Waits = Part, "driver, "+name, false
		c.How = "the driver " + d.driver + " without dlock: no renewal, no wait queue, no hooks"
		c.Open = func(_ context.Context, s *Setup) (Locker, error) { return openBackend(d.url(s), s) }
		out = append(out, c)
	}
	return append(out, onApplications()...)
}

// onApplications returns the drivers on clients as applications have them: with the
// libraries' default options.
func onApplications() []Contestant {
	open := func(make func(s *Setup) (driver.Backend, func() error, error)) func(context.Context, *Setup) (Locker, error) {
		return func(_ context.Context, s *Setup) (Locker, error) {
			b, end, err := make(s)
			if err != nil {
				return nil, err
			}
			return &handed{backend{b, s, true}, end}, nil
		}
	}
	how := "the driver on an application's client with the library's default options"
	var out []Contestant
	if registered("redis") {
		out = append(out, Contestant{
			Name: "driver, go-redis, own client", Kind: Part, Client: "go-redis", How: how, Serves: OneKeyStore, Renews: true,
			Open: open(func(s *Setup) (driver.Backend, func() error, error) {
				c := redis.NewClient(&redis.Options{Addr: s.Nodes[0].Addr})
				b, err := goredis.New(c, nil)
				return b, c.Close, err
			}),
		})
	}
	if registered("valkey") {
		out = append(out, Contestant{
			Name: "driver, valkey-go, own client", Kind: Part, Client: "valkey-go", How: how, Serves: OneKeyStore, Renews: true,
			Open: open(func(s *Setup) (driver.Backend, func() error, error) {
				c, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{s.Nodes[0].Addr}})
				if err != nil {
					return nil, nil, err
				}
				b, err := valkeygo.New(c, nil)
				return b, func() error { c.Close(); return nil }, err
			}),
		})
	}
	return out
}

// handed is a driver on a client that somebody else closes.
type handed struct {
	backend
	end func() error
}

func (h *handed) Close() error { return errors.Join(h.backend.Close(), h.end()) }

var quiet = slog.New(slog.DiscardHandler)

// client is dlock as an application has it.
type client struct{ c *dlock.Client }

func openClient(url string, s *Setup) (Locker, error) {
	opts := []dlock.Option{dlock.WithLogger(quiet)}
	c, err := dlock.OpenURL(url, opts...)
	if err != nil {
		return nil, err
	}
	if c.Info().MaxTTL == 0 || s.TTL == dlock.DefaultTTL {
		return client{c}, nil
	}
	if err := c.Close(); err != nil {
		return nil, err
	}
	c, err = dlock.OpenURL(url, append(opts, dlock.WithTTL(s.TTL))...)
	return client{c}, err
}

func (c client) Lock(ctx context.Context, key string, wait bool) (Held, error) {
	if wait {
		return orNil(c.c.Lock(ctx, key))
	}
	return orNil(c.c.TryLock(ctx, key))
}

// orNil keeps a nil lease from becoming a Held that is not nil.
func orNil(l *dlock.Lease, err error) (Held, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

func (c client) Close() error { return c.c.Close() }

// backend is a driver alone.
type backend struct {
	b     driver.Backend
	setup *Setup
	ttl   bool
}

func openBackend(url string, s *Setup) (Locker, error) {
	b, err := dlock.OpenBackend(url)
	if err != nil {
		return nil, err
	}
	return &backend{b, s, b.Info().MaxTTL != 0}, nil
}

func (b *backend) Lock(ctx context.Context, key string, wait bool) (Held, error) {
	req := &driver.Request{Key: key, Owner: newOwner(), Wait: wait}
	if b.ttl {
		req.TTL = b.setup.TTL
	}
	l, err := b.b.Acquire(ctx, req)
	if err != nil {
		return nil, err
	}
	return &backendHeld{l, driver.Renewal{TTL: req.TTL}}, nil
}

func (b *backend) Close() error { return b.b.Close() }

type backendHeld struct {
	lease   driver.Lease
	renewal driver.Renewal
}

func (h *backendHeld) Renew(ctx context.Context) error {
	if h.renewal.TTL == 0 {
		return nil
	}
	_, err := h.lease.Renew(ctx, &h.renewal)
	return err
}

func (h *backendHeld) Unlock() error {
	err := h.lease.Release(context.Background())
	if errors.Is(err, driver.ErrLost) {
		return nil
	}
	return err
}
