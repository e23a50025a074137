package bench

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// limits returns the contestants that only send commands, over each client library. With several
// nodes they ask all at once, and return at the majority's answers.
func limits() (list []Contestant) {
	for _, lib := range libraries {
		list = append(list, Contestant{
			Name: "bare", Client: lib.name, Kind: Limit, Serves: AnyKeyStore, Open: lib.bare,
			How: "SET NX PX and compare-and-delete: no fencing token, no waking of waiters, no server clock; over " + lib.how,
		}, Contestant{
			Name: "queue (BLPOP)", Client: lib.name, Kind: Limit, Serves: OneKeyStore, Waits: true, OnlyWaits: true, Open: lib.queue,
			How: "one token in a list, taken by BLPOP and put back by RPUSH, over " + lib.name + ": no lock, since a holder that dies takes the token with it",
		})
	}
	return append(list, Contestant{
		Name: "bare", Client: "pgx", Kind: Limit, Serves: One(server.KindPostgres), Waits: true, Open: bareAdvisory,
		How: "pg_try_advisory_lock or pg_advisory_lock, and pg_advisory_unlock, on a connection for each lock, of a pool of 64; without lease and token",
	})
}

// roundTrip is not a lock. It measures the least time that the network allows any quorum: how
// long the answers of a majority take, if all nodes are asked at once.
var roundTrip = Contestant{
	Name: "round trip", Client: "go-redis", Kind: Limit, How: "no lock: PING to all nodes, until a majority has answered",
	Open: func(ctx context.Context, s *Setup) (*Client, error) {
		f, err := libraries[0].connect(ctx, s)
		if err != nil {
			return nil, err
		}
		ping := func(ctx context.Context) error {
			return f.ask(ctx, func(ctx context.Context, i int) error { _, err := f.nodes[i].do(ctx, "PING"); return err })
		}
		return &Client{Close: f.close, Lock: func(ctx context.Context, _ string, _ bool) (func() error, error) {
			return func() error { return ping(context.Background()) }, ping(ctx)
		}}, nil
	},
}

const luaCompareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// bare opens the lock that most tutorials show: SET NX PX, and a script that compares the owner
// before it deletes.
func (lib *library) bare(ctx context.Context, s *Setup) (*Client, error) {
	f, err := lib.connect(ctx, s)
	if err != nil {
		return nil, err
	}
	for _, n := range f.nodes {
		if _, err := n.do(ctx, "SCRIPT", "LOAD", luaCompareAndDelete); err != nil {
			return nil, errors.Join(err, f.close())
		}
	}
	sum := sha1.Sum([]byte(luaCompareAndDelete))
	sha, ttl := hex.EncodeToString(sum[:]), strconv.FormatInt(s.TTL.Milliseconds(), 10)
	return &Client{Close: f.close, Lock: func(ctx context.Context, key string, _ bool) (func() error, error) {
		owner := newOwner()
		asked := make([]sync.WaitGroup, len(f.nodes)) // a release does not overtake the acquisition
		for i := range asked {
			asked[i].Add(1)
		}
		err := f.ask(ctx, func(ctx context.Context, i int) error {
			defer asked[i].Done()
			reply, err := f.nodes[i].do(ctx, "SET", key, owner, "NX", "PX", ttl)
			if err == nil && reply != "OK" {
				err = errHeld
			}
			return err
		})
		unlock := func() error {
			return f.ask(context.Background(), func(ctx context.Context, i int) error {
				asked[i].Wait()
				_, err := f.nodes[i].do(ctx, "EVALSHA", sha, "1", key, owner)
				return err
			})
		}
		if err != nil && len(f.nodes) > 1 {
			go unlock() //nolint:errcheck // the caller does not wait for it
		}
		return unlock, err
	}}, nil
}

// queue opens the fastest way to hand something over through a server: BLPOP waits for the only
// token of a list. If a wait's context ends, the token may be lost; nothing needs it then, because
// every measurement has its own key.
func (lib *library) queue(ctx context.Context, s *Setup) (*Client, error) {
	f, err := lib.connect(ctx, s)
	if err != nil {
		return nil, err
	}
	do, seeded := f.nodes[0].do, sync.Map{}
	return &Client{Close: f.close, Lock: func(ctx context.Context, key string, _ bool) (func() error, error) {
		key += ":queue" // beside the locks of the others
		put := func() error { _, err := do(context.Background(), "RPUSH", key, "t"); return err }
		if _, done := seeded.LoadOrStore(key, true); !done {
			first, err := do(ctx, "SET", key+":seed", "1", "NX", "EX", "3600")
			if err == nil && first != nil {
				err = put()
			}
			if err != nil {
				return nil, err
			}
		}
		for ctx.Err() == nil {
			popped, err := do(ctx, "BLPOP", key, "1")
			if popped != nil {
				return put, nil
			}
			if end, _ := ctx.Deadline(); err != nil && !time.Now().Before(end) {
				<-ctx.Done() // the connection's deadline may pass shortly before ctx ends
			}
			if err != nil && ctx.Err() == nil {
				return nil, err
			}
		}
		return nil, ctx.Err()
	}}, nil
}

// bareAdvisory opens the limit on PostgreSQL: each lock has a connection from a pool.
func bareAdvisory(ctx context.Context, s *Setup) (*Client, error) {
	pool, err := pgxpool.New(ctx, PostgresURL(s.Addrs[0])+"&pool_max_conns=64") // below the server's max_connections
	if err != nil {
		return nil, err
	}
	lock := func(ctx context.Context, key string, wait bool) (func() error, error) {
		c, err := pool.Acquire(ctx)
		if err != nil {
			return nil, err
		}
		n, ok := AdvisoryKey(key), true
		if wait {
			_, err = c.Exec(ctx, "SELECT pg_advisory_lock($1)", n)
		} else {
			err = c.QueryRow(ctx, "SELECT pg_try_advisory_lock($1)", n).Scan(&ok)
		}
		if err == nil && !ok {
			err = errHeld
		}
		if err != nil {
			c.Release()
			return nil, err
		}
		return func() error {
			defer c.Release()
			err := c.QueryRow(context.Background(), "SELECT pg_advisory_unlock($1)", n).Scan(&ok)
			if err == nil && !ok {
				err = errors.New("it was not locked")
			}
			return err
		}, nil
	}
	return &Client{Lock: lock, Close: func() error { pool.Close(); return nil }}, nil
}

// A fan has a connection to each node, and asks all at once.
type fan struct {
	nodes   []commands
	timeout time.Duration // of a node
}

// commands sends commands to one server. A reply is a string, an int64, nil or a []any of these.
type commands struct {
	do    func(ctx context.Context, args ...string) (any, error)
	close func() error
}

// connect connects to all nodes.
func (lib *library) connect(_ context.Context, s *Setup) (*fan, error) {
	f := &fan{timeout: time.Second}
	if len(s.Addrs) > 1 {
		f.timeout = s.nodeTimeout()
	}
	for _, addr := range s.Addrs {
		c, err := lib.open(addr, f.timeout)
		if err != nil {
			return nil, errors.Join(err, f.close())
		}
		f.nodes = append(f.nodes, c)
	}
	return f, nil
}

func (f *fan) close() error {
	var errs []error
	for _, n := range f.nodes {
		errs = append(errs, n.close())
	}
	return errors.Join(errs...)
}

// ask calls do for every node, and returns when it has succeeded for a majority.
func (f *fan) ask(ctx context.Context, do func(ctx context.Context, i int) error) error {
	if len(f.nodes) == 1 {
		return do(ctx, 0)
	}
	results := make(chan error, len(f.nodes))
	for i := range f.nodes {
		go func() {
			ctx, cancel := context.WithTimeout(ctx, f.timeout)
			defer cancel()
			results <- do(ctx, i)
		}()
	}
	good, bad := 0, error(nil)
	for range f.nodes {
		if err := <-results; err != nil {
			bad = err
		} else if good++; good > len(f.nodes)/2 {
			return nil
		}
	}
	return fmt.Errorf("%d of %d nodes: %w", good, len(f.nodes), bad)
}

// A library is a client library that this module has a driver for.
type library struct {
	name, how string
	// open connects, at once or with the first command, within timeout.
	open func(addr string, timeout time.Duration) (commands, error)
}

var libraries = []*library{
	{"go-redis", "go-redis with its default pool, without retries", openGoRedis},
	{"valkey-go", "valkey-go as it pipelines by default", openValkeyGo},
}

func openGoRedis(addr string, timeout time.Duration) (commands, error) {
	c := redis.NewClient(&redis.Options{
		Addr:                  addr,
		MaxRetries:            -1,
		ContextTimeoutEnabled: true, // otherwise go-redis ignores deadlines while it reads
		DialTimeout:           timeout,
		Protocol:              2,
	})
	return commands{close: c.Close, do: func(ctx context.Context, args ...string) (any, error) {
		list := make([]any, len(args))
		for i, a := range args {
			list[i] = a
		}
		v, err := c.Do(ctx, list...).Result()
		if errors.Is(err, redis.Nil) {
			return nil, nil
		}
		return v, err
	}}, nil
}

func openValkeyGo(addr string, timeout time.Duration) (commands, error) {
	c, err := valkey.NewClient(valkey.ClientOption{
		InitAddress:       []string{addr},
		Dialer:            net.Dialer{Timeout: timeout}, // also bounds the handshake
		ForceSingleClient: true,
		DisableCache:      true,
		DisableRetry:      true,
	})
	if err != nil {
		return commands{}, err
	}
	return commands{close: func() error { c.Close(); return nil }, do: func(ctx context.Context, args ...string) (any, error) {
		cmd := c.B().Arbitrary(args...)
		build := cmd.Build
		if args[0] == "BLPOP" {
			build = cmd.Blocking
		}
		reply, err := c.Do(ctx, build()).ToAny()
		if valkey.IsValkeyNil(err) {
			return nil, nil
		}
		return reply, err
	}}, nil
}
