package deploy

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/redlock"
)

// under is a driver that opens a URL's backend under the measurement's own prefix. It keeps the
// nodes of a quorum, so that each can be measured over the same connections.
const under = "benchmark-under"

func init() { dlock.Register(under, opener{}) }

type opener struct{}

// opened passes values between open and opener.Open, which open calls under this mutex.
var opened struct {
	sync.Mutex
	prefix    string // the measurement's prefix, appended to the user's
	unguarded bool
	target    *target
}

// A target is one client of the measured deployment.
type target struct {
	*dlock.Client
	nodes  []driver.Backend // only the backend itself if it is not a quorum
	prefix string           // of every key, including that of the URL
}

// Open opens cfg.DSN, from which package dlock has taken the parameters prefix and ttl.
func (opener) Open(cfg *driver.Config) (driver.Backend, error) {
	t := &target{prefix: cfg.Prefix + opened.prefix}
	opened.target = t
	resolve := func(u string) (driver.Backend, error) {
		mark := "?"
		if strings.Contains(u, "?") {
			mark = "&"
		}
		b, err := dlock.OpenBackend(u + mark + "prefix=" + url.QueryEscape(t.prefix))
		if err == nil {
			t.nodes = append(t.nodes, b)
		}
		return b, err
	}
	if !strings.HasPrefix(cfg.DSN, "redlock:") {
		return resolve(cfg.DSN)
	}
	address := cfg.DSN
	if opened.unguarded {
		items := slices.DeleteFunc(strings.Split(address, ","), func(item string) bool {
			name, _, _ := strings.Cut(item, "=")
			return slices.Contains([]string{"restart_guard", "bootstrap"}, name)
		})
		address = strings.Join(append(items, "restart_guard=off"), ",")
	}
	return redlock.Driver{}.Open(&driver.Config{DSN: address, Prefix: t.prefix, Notify: cfg.Notify, Resolve: resolve})
}

// open opens a new client.
func open(u, prefix string, unguarded bool, opts ...dlock.Option) (*target, error) {
	opened.Lock()
	defer opened.Unlock()
	opened.prefix, opened.unguarded = prefix, unguarded
	c, err := dlock.Open(under, u, append(opts, dlock.WithLogger(nil))...)
	if err != nil {
		return nil, clean(err)
	}
	opened.target.Client = c
	return opened.target, nil
}

// clean removes the name of this package's driver from an error, and makes it one line.
func clean(err error) error {
	return plainError{strings.NewReplacer("dlock: open "+under+": ", "", "dlock: ", "", `trylock "first": `, "", under, "the URL").Replace(err.Error()), err}
}

type plainError struct {
	text string
	err  error
}

func (e plainError) Error() string { return strings.Join(strings.Fields(e.text), " ") }
func (e plainError) Unwrap() error { return e.err }

// ownPrefix returns a unique prefix.
func ownPrefix() string { return "benchmark/" + rand.Text() + "/" }

// address returns the backend's address, without any secret.
func address(b driver.Backend) string {
	if s, ok := b.(fmt.Stringer); ok && !dsn.HasPassword(s.String()) {
		return s.String()
	}
	return b.Info().Name
}

// patience is how long a deployment may take to grant the first lock, in addition to its
// restart guard.
const patience = 5 * time.Second

// declare declares the prefix new, if the servers have a restart guard. It fails unless all
// servers answer: otherwise new servers do not vote.
func (t *target) declare(ctx context.Context) error {
	g, ok := t.Backend().(quorum.Admin)
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, err := g.Bootstrap(ctx, &quorum.Bootstrap{})
	return err
}

// grant takes the first lock. It waits until the restart guard has ended, if one refuses the lock.
func (t *target) grant(ctx context.Context, say func(string, ...any)) error {
	end, waited := time.Now().Add(patience), false
	for {
		l, err := t.TryLock(ctx, "first")
		if err == nil {
			err = l.Unlock()
		}
		if err == nil || ctx.Err() != nil {
			return errors.Join(err, context.Cause(ctx))
		}
		refused := (*driver.RefusedError)(nil)
		isRefused := errors.As(err, &refused)
		if isRefused && refused.RetryAfter > time.Second && !waited {
			waited, end = true, time.Now().Add(refused.RetryAfter+patience)
			say("waiting %.0f s for the restart guard: %s", refused.RetryAfter.Seconds(), refused.Reason)
		}
		if errors.Is(err, dlock.ErrInvalid) || isRefused && refused.RetryAfter == 0 || time.Now().After(end) {
			return clean(err)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// A node is one node of the quorum, or the only server.
type node struct {
	name    string
	version string
	ping    func(ctx context.Context) error                        // one round trip; nil: the driver offers none
	do      func(ctx context.Context, args ...string) (any, error) // one Redis or Valkey command; nil: another server
	close   func()                                                 // or nil
	lookup  bool                                                   // ping is a Lookup, which may be more than one message

	trips    figures.Series
	silent   int // rounds in which it did not answer in time
	inVotes  int // acquisitions in which it was in the majority
	timeouts int // acquisitions in which it did not answer within the node timeout
}

// eachServer is a method of the Redis and Valkey drivers.
type eachServer interface {
	EachServer(ctx context.Context, fn func(ctx context.Context, addr string, do func(ctx context.Context, args ...string) (any, error)) error) error
}

var errFirst = errors.New("the first server is enough")

// newNode makes a node with what the driver offers.
func newNode(ctx context.Context, b driver.Backend) *node {
	n := &node{name: address(b)}
	if _, rest, ok := strings.Cut(n.name, "://"); ok {
		n.name = strings.TrimSuffix(rest, "/0")
	}
	if servers, ok := b.(eachServer); ok {
		n.do = func(ctx context.Context, args ...string) (reply any, err error) {
			each := servers.EachServer(ctx, func(ctx context.Context, _ string, do func(context.Context, ...string) (any, error)) error {
				reply, err = do(ctx, args...)
				return errFirst
			})
			if err == nil && !errors.Is(each, errFirst) {
				err = each
			}
			return reply, err
		}
		n.ping = func(ctx context.Context) error { _, err := n.do(ctx, "PING"); return err }
		return n
	}
	if pg, ok := b.(interface {
		Connect(context.Context) (*pgx.Conn, error)
	}); ok {
		if c, err := pg.Connect(ctx); err == nil {
			n.ping, n.version = c.Ping, "PostgreSQL "+c.PgConn().ParameterStatus("server_version")
			n.close = func() { _ = c.Close(context.WithoutCancel(ctx)) } // it holds nothing
			return n
		}
	}
	if i, ok := b.(driver.Inspector); ok && b.Info().Name != "memory" && b.Info().Name != "file" { // these need no network
		n.lookup, n.ping = true, func(ctx context.Context) error { _, err := i.Lookup(ctx, "nobody-has-this"); return err }
	}
	return n
}

// info returns a section of the server's INFO; empty if it cannot be had.
func (n *node) info(ctx context.Context, section string) string {
	if n.do == nil {
		return ""
	}
	reply, _ := n.do(ctx, "INFO", section) // a node that is down has none
	text, _ := reply.(string)
	return text
}

// processor returns how long the server's main thread, which runs all commands, has worked, in
// seconds; zero if that is unknown.
func (n *node) processor(ctx context.Context) float64 {
	text := n.info(ctx, "cpu")
	if seconds := bench.InfoField(text, "used_cpu_sys_main_thread") + bench.InfoField(text, "used_cpu_user_main_thread"); seconds > 0 {
		return seconds
	}
	return bench.InfoField(text, "used_cpu_sys") + bench.InfoField(text, "used_cpu_user") // servers before Redis 6.2
}

// globs escapes the characters that have a meaning in a MATCH pattern.
var globs = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)

// remove deletes all keys with the prefix from one backend, and returns their number.
func remove(ctx context.Context, servers eachServer, prefix string) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*patient)
	defer cancel()
	err = servers.EachServer(ctx, func(ctx context.Context, _ string, do func(context.Context, ...string) (any, error)) error {
		for cursor, first := "0", true; first || cursor != "0"; first = false {
			short, cancel := context.WithTimeout(ctx, patient)
			reply, err := do(short, "SCAN", cursor, "MATCH", globs.Replace(prefix)+"*", "COUNT", "1000")
			cancel()
			if err != nil {
				return err
			}
			page, _ := reply.([]any)
			if len(page) != 2 {
				return errors.New("SCAN was answered by something else")
			}
			cursor, _ = page[0].(string)
			names, _ := page[1].([]any)
			unlink := []string{"UNLINK"}
			for _, name := range names {
				if key, _ := name.(string); strings.HasPrefix(key, prefix) {
					unlink = append(unlink, key)
				}
			}
			if len(unlink) == 1 {
				continue
			}
			_, err = do(ctx, unlink...)
			if err != nil && strings.Contains(err.Error(), "CROSSSLOT") {
				for _, key := range unlink[1:] {
					if _, err = do(ctx, "UNLINK", key); err != nil {
						break
					}
				}
			}
			if err != nil {
				return err
			}
			n += len(unlink) - 1
		}
		return nil
	})
	return n, err
}
