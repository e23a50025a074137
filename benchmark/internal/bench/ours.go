package bench

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/consul/api"
	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/consul"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/valkeygo"
	"github.com/redlock-go/redlock/redlocktest/server"
)

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

// Of returns a client of this module, used as applications use it.
func Of(c *dlock.Client) *Client {
	return &Client{Close: c.Close, Lock: func(ctx context.Context, key string, wait bool) (func() error, error) {
		take := c.TryLock
		if wait {
			take = c.Lock
		}
		l, err := take(ctx, key)
		if err != nil {
			return nil, err
		}
		return l.Unlock, nil
	}}
}

// own returns dlock over every driver that the program has, and the other ways to set it up.
func own() (list []Contestant) {
	add := func(driver, name, client, how string, serves func(server.Kind, int) bool, open func(s *Setup, opts ...dlock.Option) (*Client, error)) {
		if !slices.Contains(dlock.Drivers(), driver) {
			return
		}
		kind, shared := Part, strings.HasPrefix(name, "ours, one key")
		if name == "ours" {
			kind = Ours
		}
		list = append(list, Contestant{
			Name: name, Client: client, Kind: kind, How: how, Serves: serves, Waits: kind == Ours, Hot: shared,
			Open: func(_ context.Context, s *Setup) (*Client, error) {
				return open(s, dlock.WithLogger(nil), dlock.WithTTL(s.TTL))
			},
		})
	}
	byURL := func(driver, client string, serves func(server.Kind, int) bool, url func(s *Setup) string) {
		add(driver, "ours", client, "dlock.OpenURL with "+driver+": and nothing set but what the servers need", serves, openURL(url))
	}
	first := func(scheme string) func(*Setup) string {
		return func(s *Setup) string { return scheme + "://" + s.Addrs[0] }
	}
	oneKey := func(driver string, serves func(server.Kind, int) bool, url func(s *Setup) string) {
		add(driver, "ours, one key, never passed on", "go-redis", "dlock.OpenURL with "+driver+": and dlock.WithPassOn(0)", serves, func(s *Setup, opts ...dlock.Option) (*Client, error) {
			return openURL(url)(s, append(opts, dlock.WithPassOn(0))...)
		})
		add(driver, "ours, one key, behind a sync.Mutex", "go-redis", "dlock.OpenURL with "+driver+": and a sync.Mutex of the process, taken before each lock and released after it", serves, func(s *Setup, opts ...dlock.Option) (*Client, error) {
			c, err := openURL(url)(s, opts...)
			if err != nil {
				return nil, err
			}
			return behindMutex(c), nil
		})
	}
	byURL("redis", "go-redis", OneKeyStore, first("redis"))
	byURL("valkey", "valkey-go", OneKeyStore, first("valkey"))
	oneKey("redis", OneKeyStore, first("redis"))
	oneKey("redlock", manyKeyStores, func(s *Setup) string { return QuorumURL("redis", s.Addrs, true) })
	for i, scheme := range []string{"redis", "valkey"} {
		client := libraries[i].name
		quorum := func(guarded bool) func(s *Setup) string {
			return func(s *Setup) string { return QuorumURL(scheme, s.Addrs, guarded) }
		}
		byURL("redlock", client, manyKeyStores, quorum(true))
		add("redlock", "ours, no guard", client, "dlock.OpenURL with redlock: and restart_guard=off", manyKeyStores, openURL(quorum(false)))
	}
	byURL("postgres", "pgx", One(server.KindPostgres), func(s *Setup) string { return PostgresURL(s.Addrs[0]) })
	byURL("etcd", "etcd", One(server.KindEtcd), first("etcd"))
	byURL("consul", "consul", One(server.KindConsul), first("consul"))
	const name, how = "ours, on an application's client", "dlock.New with the driver on a client with the library's default options"
	add("redis", name, "go-redis", how, OneKeyStore, func(s *Setup, opts ...dlock.Option) (*Client, error) {
		c := redis.NewClient(&redis.Options{Addr: s.Addrs[0]})
		b, err := goredis.New(c, nil)
		return onClient(b, err, c.Close, opts)
	})
	add("valkey", name, "valkey-go", how, OneKeyStore, func(s *Setup, opts ...dlock.Option) (*Client, error) {
		c, err := valkey.NewClient(valkey.ClientOption{InitAddress: s.Addrs[:1]})
		if err != nil {
			return nil, err
		}
		b, err := valkeygo.New(c, nil)
		return onClient(b, err, func() error { c.Close(); return nil }, opts)
	})
	add("consul", name, "consul", how, One(server.KindConsul), func(s *Setup, opts ...dlock.Option) (*Client, error) {
		c, sent, err := Consul(s.Addrs[0])
		if err != nil {
			return nil, err
		}
		b, err := consul.New(c, nil)
		l, err := onClient(b, err, func() error { return nil }, opts)
		if err == nil {
			l.Requests = sent
		}
		return l, err
	})
	return list
}

// Consul returns a client of a Consul agent, and counts its requests.
func Consul(addr string) (*api.Client, *atomic.Int64, error) {
	n := &counter{next: api.DefaultConfig().Transport}
	c, err := api.NewClient(&api.Config{Address: addr, HttpClient: &http.Client{Transport: n}})
	return c, &n.sent, err
}

type counter struct {
	next http.RoundTripper
	sent atomic.Int64
}

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.sent.Add(1)
	return c.next.RoundTrip(r)
}

func openURL(url func(s *Setup) string) func(*Setup, ...dlock.Option) (*Client, error) {
	return func(s *Setup, opts ...dlock.Option) (*Client, error) {
		c, err := dlock.OpenURL(url(s), opts...)
		if err != nil {
			return nil, err
		}
		return Of(c), nil
	}
}

// behindMutex returns a client whose callers have a mutex in common, for one key.
func behindMutex(c *Client) *Client {
	var mu sync.Mutex
	return &Client{Close: c.Close, Lock: func(ctx context.Context, key string, wait bool) (func() error, error) {
		mu.Lock()
		unlock, err := c.Lock(ctx, key, wait)
		if err != nil {
			mu.Unlock()
			return nil, err
		}
		return func() error {
			defer mu.Unlock()
			return unlock()
		}, nil
	}}
}

// onClient returns a client over a backend on an application's client, which end closes.
func onClient(b driver.Backend, err error, end func() error, opts []dlock.Option) (*Client, error) {
	if err != nil {
		return nil, errors.Join(err, end())
	}
	c, err := dlock.New(b, opts...)
	if err != nil {
		return nil, errors.Join(err, b.Close(), end())
	}
	l := Of(c)
	l.Close = func() error { return errors.Join(c.Close(), end()) }
	return l, nil
}

// AdvisoryKey returns the number of an advisory lock on PostgreSQL for a key.
func AdvisoryKey(key string) int64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(key)) // it never fails
	return int64(h.Sum64())
}
