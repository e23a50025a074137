package deploy

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/benchmark/internal/bench"
	"github.com/redlock-go/redlock/benchmark/internal/figures"
	"github.com/redlock-go/redlock/driver"
)

// A probe is one node of the quorum, or the only server.
type probe struct {
	name     string
	version  string
	ping     func(ctx context.Context) error // one round trip; nil: the driver offers none
	commands commands                        // nil: the driver offers none
	busy     atomic.Bool                     // a call still runs: the next fan-out leaves this node out

	trips    *figures.Rounds
	silent   int // rounds in which it did not answer in time
	inVotes  int // acquisitions in which it was in the majority
	timeouts int // acquisitions in which it did not answer within the node timeout
}

// commands runs one Redis or Valkey command on the backend's own connections.
type commands func(ctx context.Context, args ...string) (any, error)

// eachServer is a method of the Redis and Valkey drivers.
type eachServer interface {
	EachServer(ctx context.Context, fn func(ctx context.Context, addr string, do func(ctx context.Context, args ...string) (any, error)) error) error
}

var errFirst = errors.New("the first server is enough")

// newProbe makes a probe with the commands that the driver offers.
func newProbe(b driver.Backend) *probe {
	p := &probe{name: address(b), trips: figures.NewRounds()}
	if _, rest, ok := strings.Cut(p.name, "://"); ok {
		p.name = strings.TrimSuffix(rest, "/0")
	}
	if servers, ok := b.(eachServer); ok {
		p.commands = func(ctx context.Context, args ...string) (reply any, err error) {
			each := servers.EachServer(ctx, func(ctx context.Context, _ string, do func(context.Context, ...string) (any, error)) error {
				reply, err = do(ctx, args...)
				return errFirst
			})
			if err == nil && !errors.Is(each, errFirst) {
				err = each
			}
			return reply, err
		}
		p.ping = func(ctx context.Context) error { _, err := p.commands(ctx, "PING"); return err }
		return p
	}
	if i, ok := b.(driver.Inspector); ok && !local(b) {
		p.ping = func(ctx context.Context) error { _, err := i.Lookup(ctx, "nobody-has-this"); return err }
	}
	return p
}

// local reports whether a backend needs no network, so that there is no round trip to compare with.
func local(b driver.Backend) bool { return b.Info().Name == "memory" || b.Info().Name == "file" }

// info returns a section of the server's INFO; empty if it cannot be had.
func (p *probe) info(ctx context.Context, section string) string {
	if p.commands == nil {
		return ""
	}
	reply, _ := p.commands(ctx, "INFO", section) // a node that is down has none
	text, _ := reply.(string)
	return text
}

// processor returns how long the server's main thread, which runs all commands, has worked; zero
// if that is unknown.
func (p *probe) processor(ctx context.Context) time.Duration {
	text := p.info(ctx, "cpu")
	seconds := bench.InfoField(text, "used_cpu_sys_main_thread") + bench.InfoField(text, "used_cpu_user_main_thread")
	if seconds == 0 { // servers before Redis 6.2
		seconds = bench.InfoField(text, "used_cpu_sys") + bench.InfoField(text, "used_cpu_user")
	}
	return time.Duration(seconds * float64(time.Second))
}

// look reads the server's version.
func (p *probe) look(ctx context.Context) { p.version = bench.InfoVersion(p.info(ctx, "server")) }

// patient is how long one command to one node may take.
const patient = 2 * time.Second

// A fan is the list of nodes; it asks all at once, like a quorum.
type fan []*probe

func (f fan) quorum() int { return len(f)/2 + 1 }

// ask calls do for every node at once, and returns when a majority has succeeded. A node that is
// still busy with an earlier call is left out. answered gets each success.
func (f fan) ask(ctx context.Context, do func(ctx context.Context, p *probe) error, answered func(p *probe, took time.Duration)) (time.Duration, error) {
	type answer struct {
		p    *probe
		took time.Duration
		err  error
	}
	answers := make(chan answer, len(f))
	start := time.Now()
	for _, p := range f {
		if !p.busy.CompareAndSwap(false, true) {
			answers <- answer{p, 0, fmt.Errorf("%s still works at an earlier command", p.name)}
			continue
		}
		go func() {
			own, cancel := context.WithTimeout(context.WithoutCancel(ctx), patient)
			defer cancel()
			err := do(own, p)
			took := time.Since(start)
			p.busy.Store(false)
			answers <- answer{p, took, err}
		}()
	}
	good, last := 0, error(nil)
	for received := 1; received <= len(f); received++ {
		a := <-answers
		if a.err != nil {
			last = a.err
			continue
		}
		if answered != nil {
			answered(a.p, a.took)
		}
		if good++; good == f.quorum() {
			go func() { // later answers count too
				for range len(f) - received {
					if a := <-answers; a.err == nil && answered != nil {
						answered(a.p, a.took)
					}
				}
			}()
			return a.took, nil
		}
	}
	return 0, fmt.Errorf("%d of %d servers answered: %w", good, len(f), last)
}

const (
	luaCompareAndDelete = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
	bareTTL             = "10000"
)

// A bare sends only the commands that every lock needs.
type bare struct {
	acquire func(ctx context.Context, key string) error
	release func(ctx context.Context, key string) error
	ping    func(ctx context.Context) error // one round trip, if the probe's ping takes more than one; or nil
	close   func()
}

// newBare returns nil if the driver offers no commands.
func newBare(ctx context.Context, f fan, b driver.Backend, prefix string) *bare {
	if pg, ok := b.(interface {
		Connect(context.Context) (*pgx.Conn, error)
	}); ok {
		return barePostgres(ctx, pg.Connect, prefix, f[0])
	}
	if slices.ContainsFunc(f, func(p *probe) bool { return p.commands == nil }) {
		return nil
	}
	const owner = "bare"
	return &bare{
		acquire: func(ctx context.Context, key string) error {
			_, err := f.ask(ctx, func(ctx context.Context, p *probe) error {
				_, err := p.commands(ctx, "SET", prefix+key, owner, "NX", "PX", bareTTL)
				return err
			}, nil)
			return err
		},
		release: func(ctx context.Context, key string) error {
			_, err := f.ask(ctx, func(ctx context.Context, p *probe) error {
				_, err := p.commands(ctx, "EVAL", luaCompareAndDelete, "1", prefix+key, owner)
				return err
			}, nil)
			return err
		},
		close: func() {},
	}
}

func barePostgres(ctx context.Context, connect func(context.Context) (*pgx.Conn, error), prefix string, p *probe) *bare {
	c, err := connect(ctx)
	if err != nil {
		return nil
	}
	p.version = "PostgreSQL " + c.PgConn().ParameterStatus("server_version")
	number := func(key string) int64 {
		sum := sha256.Sum256([]byte(prefix + key))
		return int64(binary.BigEndian.Uint64(sum[:]))
	}
	return &bare{
		acquire: func(ctx context.Context, key string) error {
			_, err := c.Exec(ctx, "SELECT pg_try_advisory_lock($1)", number(key))
			return err
		},
		release: func(ctx context.Context, key string) error {
			_, err := c.Exec(ctx, "SELECT pg_advisory_unlock($1)", number(key))
			return err
		},
		ping:  c.Ping,
		close: func() { _ = c.Close(context.WithoutCancel(ctx)) }, // it holds nothing
	}
}

// globs escapes the characters that have a meaning in a MATCH pattern.
var globs = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `\`, `\\`)

// remove deletes all keys with the prefix from one backend, and returns their number.
func remove(ctx context.Context, b driver.Backend, prefix string) (n int, err error) {
	servers, ok := b.(eachServer)
	if !ok {
		return 0, nil
	}
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
			if _, err := do(ctx, unlink...); err != nil && strings.Contains(err.Error(), "CROSSSLOT") {
				for _, key := range unlink[1:] {
					if _, err := do(ctx, "UNLINK", key); err != nil {
						return err
					}
				}
			} else if err != nil {
				return err
			}
			n += len(unlink) - 1
		}
		return nil
	})
	return n, err
}
