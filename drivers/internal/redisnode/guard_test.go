package redisnode

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/memory"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// wire is a client whose calls a test may send to changing servers, as behind a host name or a
// Sentinel. before is called for every batch, and returns its server.
type wire struct {
	fake
	before func(calls []*Call) *redis.Client
	admin  func() *redis.Client
}

func (w *wire) Exec(ctx context.Context, calls []*Call) {
	conn := w.before(calls).Conn()
	defer conn.Close() //nolint:errcheck // it goes back to its pool
	for _, c := range calls {
		before, after := c.Around()
		script := slices.Concat([]string{"evalsha", c.SHA, strconv.Itoa(len(c.Keys))}, c.Keys, c.Args)
		if c.Text != "" {
			script[0], script[1] = "eval", c.Text
		}
		var replies []any
		var errs []error
		for _, words := range slices.Concat(before, [][]string{script}, after) {
			cmd := redis.NewCmd(ctx, anys(words)...)
			_ = conn.Process(ctx, cmd) // cmd has the error
			reply, err := cmd.Result()
			if list, ok := reply.([]any); ok && len(list) > 0 {
				if err, ok := list[len(list)-1].(error); ok {
					list[len(list)-1] = serverError(err)
				}
			}
			replies, errs = append(replies, reply), append(errs, serverError(err))
		}
		if len(replies) == 1 {
			c.Read(replies[0], errs[0])
		} else {
			c.ReadAll(replies, errs)
		}
	}
}

func (w *wire) Servers(context.Context) ([]Server, error) {
	return []Server{plainServer{w.admin()}}, nil
}

type plainServer struct{ *redis.Client }

func (plainServer) Addr() string { return "server" }

func (s plainServer) Do(ctx context.Context, args ...string) (any, error) {
	reply, err := s.Client.Do(ctx, anys(args)...).Result()
	return reply, serverError(err)
}

func anys(words []string) []any {
	args := make([]any, len(words))
	for i, w := range words {
		args[i] = w
	}
	return args
}

func serverError(err error) error {
	var reply redis.Error
	if errors.As(err, &reply) {
		return ServerError(reply.Error())
	}
	return err
}

func dialServer(t *testing.T, s *server.Server) *redis.Client {
	c := redis.NewClient(&redis.Options{Addr: s.Addr(), MaxRetries: -1})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// over returns a client of one server.
func over(c *redis.Client) *wire { return moving(&c) }

// moving returns a client of the server to which at leads.
func moving(at **redis.Client) *wire {
	return &wire{admin: func() *redis.Client { return *at }, before: func([]*Call) *redis.Client { return *at }}
}

// plain returns a client of one server, without a library of a driver.
func plain(t *testing.T, s *server.Server) *wire { return over(dialServer(t, s)) }

// interrupted returns a client of one server where do runs before the first handshake, and a function
// that reports whether that has happened.
func interrupted(c *redis.Client, do func()) (*wire, func() bool) {
	armed := true
	w := over(c)
	w.before = func(calls []*Call) *redis.Client {
		if armed && isHandshake(calls) {
			armed = false
			do()
		}
		return c
	}
	return w, func() bool { return !armed }
}

// newGuarded returns a lone instance with a guard of a minute. Bootstrap is on, so that no
// refusal is only due to a new server.
func newGuarded(t *testing.T, c Client, alter func(*Config)) (*Node, *atomic.Int32) {
	t.Helper()
	votedAtOnce := new(atomic.Int32)
	cfg := Config{
		Client: c, Name: "redis", Addr: "server", CallTimeout: 10 * time.Second,
		Guard: time.Minute, Bootstrap: true,
		Notify: func(e driver.Notice) {
			if e.Kind == quorum.NoticeBootstrapped {
				votedAtOnce.Add(1)
			}
		},
	}
	if alter != nil {
		alter(&cfg)
	}
	n, err := New(cfg)
	drivertest.Must(t, err)
	t.Cleanup(func() { _ = n.Close() })
	return n, votedAtOnce
}

// testTerms returns terms that are nearly those of a quorum.
func testTerms(n int, guard, allowance time.Duration) quorum.Terms {
	return quorum.Terms{N: n, Guard: guard, Excuse: 3 * allowance, Allowance: allowance, Quarantine: guard + guard/100 + 4*allowance, Grace: 9 * allowance, Drift: 1}
}

var bids atomic.Int64

func bid(n *Node, key string) (driver.Lease, error) {
	return n.Acquire(context.Background(), &driver.Request{Key: key, Owner: fmt.Sprint("o/", bids.Add(1)), TTL: 30 * time.Second})
}

// wantRefused fails the test unless err is a refusal of the guard that contains this text.
func wantRefused(t *testing.T, err error, says string) *driver.RefusedError {
	t.Helper()
	var r *driver.RefusedError
	if !errors.As(err, &r) || !strings.Contains(err.Error(), says) {
		t.Fatalf("got %v, want a refusal that says %q", err, says)
	}
	return r
}

// replicated waits until the replica has the primary's memory.
func replicated(t *testing.T, primary, replica *server.Server) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		want, _ := primary.Do("GET", "redlock1:meta")
		if got, _ := replica.Do("GET", "redlock1:meta"); want != nil && got == want {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the replica does not get its primary's memory")
		}
	}
}

// isHandshake reports whether a batch is a handshake of the guard.
func isHandshake(calls []*Call) bool {
	return len(calls[0].Args) > 0 && calls[0].Args[0] == "handshake" && len(calls[0].Args) > 1
}

// eachKind runs a test in parallel on both kinds of server, with -short on one.
func eachKind(t *testing.T, test func(t *testing.T, kind server.Kind)) {
	t.Parallel()
	kinds := []server.Kind{server.KindRedis, server.KindValkey}
	if testing.Short() {
		kinds = kinds[:1]
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			test(t, kind)
		})
	}
}

func do(t *testing.T, s *server.Server, args ...string) any {
	t.Helper()
	reply, err := s.Do(args...)
	if err != nil {
		t.Fatalf("%v: %v", args, err)
	}
	return reply
}

func restart(t *testing.T, s *server.Server, keep bool) {
	t.Helper()
	if keep {
		do(t, s, "SAVE")
	}
	drivertest.Must(t, s.Kill())
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}

// A text of one process that another has loaded, or has refused, does not vote there later: a restart happens
// between the question which process serves and the script's text.
func TestATextOfOneProcessIsLoadedByAnotherAndVotesNot(t *testing.T) {
	for name, c := range map[string]struct {
		policy, says string
		least, most  time.Duration // RetryAfter
	}{
		"a restart": {"noeviction", "was restarted", 55 * time.Second, 62 * time.Second}, // with a guard of a minute
		"a setting": {"allkeys-lru", "maxmemory-policy is allkeys-lru", 0, 0},            // only an operator can change it
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, kind server.Kind) {
				s := server.StartFor(t, kind)
				client := dialServer(t, s)
				old, _ := newGuarded(t, over(client), nil)
				l, err := bid(old, "first")
				drivertest.Must(t, err)
				do(t, s, "SAVE")
				if _, err := bid(old, "lost"); err != nil {
					t.Fatal(err)
				}
				between, restarted := interrupted(client, func() {
					restart(t, s, false)
					do(t, s, "CONFIG", "SET", "maxmemory-policy", c.policy)
				})
				fresh, _ := newGuarded(t, between, nil)
				_, err = bid(fresh, "lost")
				if r := wantRefused(t, err, c.says); r.RetryAfter < c.least || r.RetryAfter > c.most || !restarted() {
					t.Errorf("RetryAfter is %v, restarted: %v", r.RetryAfter, restarted())
				}
				do(t, s, "CONFIG", "SET", "maxmemory-policy", "noeviction")
				// The old client still uses the text of the old process, which the new process now knows.
				if got := old.router.slots[0].Load().run; got != l.Grant().Server {
					t.Fatalf("it believes in %s", got)
				}
				_, err = bid(old, "lost")
				_ = wantRefused(t, err, "was restarted")
				if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: 30 * time.Second}); err != nil {
					t.Errorf("a renewal of a lock that the server remembers, in the quarantine: %v", err)
				}
			})
		})
	}
}

// A refused text must not become callable: a replica that got the primary's text and is
// promoted has the primary's meta.
func TestATextThatWasRefusedOnAReplicaVotesNotThereLater(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		primary := server.StartFor(t, kind)
		replica := server.StartFor(t, kind, server.WithReplicaOf(primary))
		a, b := dialServer(t, primary), dialServer(t, replica)
		at := a
		w := moving(&at)
		old, _ := newGuarded(t, w, nil)
		if _, err := bid(old, "k"); err != nil {
			t.Fatal(err)
		}
		replicated(t, primary, replica)
		confused, _ := newGuarded(t, &wire{admin: w.admin, before: func(calls []*Call) *redis.Client {
			if isHandshake(calls) {
				return b
			}
			return a
		}}, nil)
		_, err := bid(confused, "other")
		_ = wantRefused(t, err, "read-only replica")

		do(t, replica, "REPLICAOF", "NO", "ONE")
		at = b
		_, err = bid(old, "other")
		_ = wantRefused(t, err, "another took its place")
	})
}

// A server counts as new only if the same process was observed as new a short time ago.
func TestWhatWasSeenToBeNewIsNoLongerSoAfterARestartOrTooLate(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		s := server.StartFor(t, kind)
		c := dialServer(t, s)
		for name, between := range map[string]func(){
			"restart": func() { restart(t, s, false) },
			"nothing": func() {},
		} {
			restart(t, s, false)
			do(t, s, "FLUSHALL")
			w, happened := interrupted(c, between)
			n, atOnce := newGuarded(t, w, nil)
			l, err := bid(n, "k")
			if err != nil || !happened() || atOnce.Load() != 1 {
				t.Fatalf("%s: %v, %v, %d notices", name, l, err, atOnce.Load())
			}
		}

		// A quorum's statement concerns only the processes that it observed.
		other, _ := newGuarded(t, over(c), func(c *Config) {
			c.Guard, c.Bootstrap, c.Prefix = 0, false, "q:"
		})
		q := &quorum.Info{Terms: testTerms(3, time.Minute, 100*time.Millisecond)}
		state := func(seen quorum.MemoryReport) error {
			_, err := other.Bootstrap(context.Background(), &quorum.Bootstrap{Quorum: q, Observed: &seen})
			return err
		}
		seen, err := other.Bootstrap(context.Background(), &quorum.Bootstrap{Quorum: q, DryRun: true})
		if err != nil || seen.Memory != quorum.MemoryNew {
			t.Fatalf("%+v, %v", seen, err)
		}
		late, gone := *seen, *seen
		late.Clock = late.Clock.Add(-time.Hour)
		gone.Server = strings.Repeat("0", 40)
		for _, r := range []quorum.MemoryReport{late, gone} {
			if err := state(r); err == nil {
				t.Errorf("taken for new, though it was seen at %v and is %s", r.Clock, r.Server)
			}
			if meta := do(t, s, "GET", "q:redlock1:meta"); meta != nil {
				t.Errorf("it has written %v", meta)
			}
		}
		if err := state(*seen); err != nil {
			t.Error(err)
		}
	})
}

// The marker is loaded before the first vote: a server that is emptied just then has forgotten
// locks, and does not count as new.
func TestAServerThatIsEmptiedAtOnceIsNotNew(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		s := server.StartFor(t, kind, server.WithUser("noscript on >x ~* &* +@all -script"))
		for _, user := range []string{"", "noscript"} {
			c := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: user, Password: map[string]string{"noscript": "x"}[user], MaxRetries: -1})
			t.Cleanup(func() { _ = c.Close() })
			n, atOnce := newGuarded(t, over(c), func(c *Config) {
				c.Prefix = user + ":"
			})
			if _, err := bid(n, "k"); err != nil || atOnce.Load() != 1 {
				t.Fatalf("as %q: %v, %d notices", user, err, atOnce.Load())
			}
			do(t, s, "FLUSHALL")
			_, err := bid(n, "k")
			_ = wantRefused(t, err, "has lost its memory")
			if atOnce.Load() != 1 {
				t.Error("it was taken for new again")
			}
		}
	})
}

// A promoted replica may lack writes that its primary acknowledged, even with durable=true.
func TestAPromotedReplicaIsNotDurable(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		primary := server.StartFor(t, kind, server.WithAppendOnly("always"))
		replica := server.StartFor(t, kind, server.WithAppendOnly("always"), server.WithReplicaOf(primary))
		at := dialServer(t, primary)
		durable := func(c *Config) { c.Durable = true }
		n, _ := newGuarded(t, moving(&at), durable)
		if _, err := bid(n, "k"); err != nil {
			t.Fatal(err)
		}
		restart(t, primary, false)
		if _, err := bid(n, "k2"); err != nil {
			t.Errorf("a durable server was restarted: %v", err)
		}
		replicated(t, primary, replica)
		do(t, replica, "REPLICAOF", "NO", "ONE")
		at = dialServer(t, replica)
		_, err := bid(n, "k3")
		_ = wantRefused(t, err, "another took its place")
	})
}

// A clock that was ahead when a durable server stopped, and is right when it starts, may still
// have ended locks too early.
func TestADurableServerRemembersTheLatestOfItsClock(t *testing.T) {
	s := server.Redis(t, server.WithAppendOnly("always"), server.WithClock())
	c := dialServer(t, s)
	n, _ := newGuarded(t, over(c), func(c *Config) { c.Durable = true })
	if _, err := bid(n, "k"); err != nil {
		t.Fatal(err)
	}
	drivertest.Must(t, s.SetClock(time.Hour))
	if _, err := bid(n, "k"); err != nil { // that one's end came early
		t.Fatal(err)
	}
	drivertest.Must(t, s.SetClock(0))
	restart(t, s, false)
	_, err := bid(n, "k2")
	_ = wantRefused(t, err, "clock was set back")
}

// Two releases of this library with different texts, and three prefixes, share servers. All of them
// work, and so they do after a majority was restarted: that is one quarantine for each prefix, which
// no handshake of another prefix or release prolongs.
func TestTwoReleasesAndThreePrefixesShareServers(t *testing.T) {
	const size, guard = 3, time.Second
	prefixes := []string{"a:", "b:", ""}
	var servers [size]*server.Server
	for i := range servers {
		servers[i] = server.StartFor(t, []server.Kind{server.KindRedis, server.KindValkey}[i%2])
	}
	open := func(prefix, release string) *redlock.Backend {
		var nodes []driver.Backend
		for _, s := range servers {
			n, err := New(Config{Client: plain(t, s), Name: "redis", Addr: s.Addr(), Prefix: prefix, CallTimeout: 10 * time.Second})
			drivertest.Must(t, err)
			n.guard.space += " " + release // a comment in the texts
			nodes = append(nodes, n)
		}
		b, err := redlock.New(nodes, &redlock.Options{Guard: guard, Bootstrap: true, Prefix: prefix, NodeTimeout: guard})
		drivertest.Must(t, err)
		t.Cleanup(func() {
			_ = b.Close()
			for _, n := range nodes {
				_ = n.Close()
			}
		})
		return b
	}
	clients := map[string]*redlock.Backend{}
	for _, prefix := range prefixes {
		for _, release := range []string{"", "another release"} {
			clients[prefix+release] = open(prefix, release)
		}
	}
	progress := func(when string) { // of each client
		t.Helper()
		var wg sync.WaitGroup
		for who, b := range clients {
			wg.Go(func() {
				for got, end := 0, time.Now().Add(time.Minute); got < 5; time.Sleep(guard / 10) {
					l, err := b.Acquire(context.Background(), &driver.Request{Key: "k", Owner: fmt.Sprint("o/", bids.Add(1)), TTL: guard})
					if err == nil {
						got++
						_ = l.Release(context.Background())
					} else if time.Now().After(end) {
						t.Errorf("%s: %q gets no lock: %v", when, who, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	restarted := servers[:size/2+1]    // the other may have been in quarantine at the first contact
	ends := func() map[string]string { // of the quarantines, by prefix, server and process
		all := map[string]string{}
		for _, prefix := range prefixes {
			for i, s := range restarted {
				if words := strings.Fields(fmt.Sprint(do(t, s, "GET", prefix+"redlock1:meta"))); len(words) >= 5 && words[2] != "0" {
					all[fmt.Sprint(prefix, i, " ", words[1])] = words[2]
				}
			}
		}
		return all
	}
	progress("at first")
	for i, s := range restarted {
		restart(t, s, i == 0)
	}
	progress("after a restart")
	before := ends()
	progress("later")
	if after := ends(); len(after) != len(prefixes)*len(restarted) || !maps.Equal(before, after) {
		t.Errorf("the quarantines ended at %v, and then at %v", before, after)
	}
}

// Clients with different guards and allowances use those of the first client, and do not
// disturb each other.
func TestClientsOfDifferentTermsDoNotFight(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		s := server.StartFor(t, kind)
		c := dialServer(t, s)
		var handshakes atomic.Int64
		w := &wire{admin: func() *redis.Client { return c }, before: func(calls []*Call) *redis.Client {
			if isHandshake(calls) {
				handshakes.Add(1)
			}
			return c
		}}
		var clients []*Node
		terms := []*quorum.Info{
			{Terms: testTerms(1, 30*time.Second, 400*time.Millisecond)},
			{Terms: testTerms(1, 40*time.Second, 10*time.Millisecond)},
			{Terms: testTerms(1, 40*time.Second, 10*time.Millisecond)},
		}
		for range terms {
			n, _ := newGuarded(t, w, func(c *Config) { c.Guard, c.Bootstrap = 0, false })
			clients = append(clients, n)
		}
		if _, err := clients[0].Bootstrap(context.Background(), &quorum.Bootstrap{Quorum: terms[0]}); err != nil {
			t.Fatal(err)
		}
		round := func() {
			t.Helper()
			for i, n := range clients {
				if _, err := n.Acquire(context.Background(), &driver.Request{Key: fmt.Sprint("k", bids.Add(1)), Owner: "o/1", TTL: 10 * time.Second, Quorum: terms[i]}); err != nil {
					t.Fatal(err)
				}
			}
		}
		round()
		before := handshakes.Load()
		for range 10 {
			round()
		}
		if n := handshakes.Load() - before; n != 0 {
			t.Errorf("%d handshakes where nothing has changed", n)
		}
		meta := fmt.Sprint(do(t, s, "GET", "redlock1:meta"))
		if memory.Terms(meta) != memory.EncodeTerms(&terms[0].Terms) {
			t.Errorf("meta is %q; want the terms of the first client", meta)
		}
	})
}

// A setting makes a server evict keys while it is used: it stops voting, says so, and votes
// again after the setting was reverted.
func TestAServerThatIsMadeToEvictVotesNoLonger(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		s := server.StartFor(t, kind)
		c := dialServer(t, s)
		var evictions atomic.Int32
		n, _ := newGuarded(t, over(c), func(c *Config) {
			c.Guard = 200 * time.Millisecond
			c.Notify = func(e driver.Notice) {
				if e.Kind == quorum.NoticeEviction && strings.Contains(e.Detail, "volatile-lru") {
					evictions.Add(1)
					<-time.After(c.Guard) // the next look would be due
				}
			}
		})
		try := func() error {
			l, err := n.Acquire(context.Background(), &driver.Request{Key: "k", Owner: fmt.Sprint("o/", bids.Add(1)), TTL: 200 * time.Millisecond})
			if err == nil {
				err = l.Release(context.Background())
			}
			return err
		}
		until := func(done func(error) bool) error {
			var err error
			for end := time.Now().Add(time.Minute); ; <-time.After(10 * time.Millisecond) {
				if err = try(); done(err) {
					return err
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
		}
		_ = until(func(err error) bool { return err == nil })
		do(t, s, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
		_ = until(func(err error) bool {
			return errors.Is(err, driver.ErrRefused) && strings.Contains(err.Error(), "maxmemory-policy is volatile-lru") // and not as too late
		})
		<-n.router.guard.wg.Idle()
		if n := evictions.Load(); n != 1 {
			t.Errorf("%d notices", n)
		}
		do(t, s, "CONFIG", "SET", "maxmemory-policy", "noeviction")
		_ = until(func(err error) bool { return err == nil })
	})
}

// Without a guard, a server that evicts keys is reported once, at the first contact.
func TestALoneInstanceOnAServerThatEvictsIsWarned(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		s := server.StartFor(t, kind)
		for _, c := range []struct {
			memory, policy string
			warned         int32
		}{{"100mb", "volatile-lru", 1}, {"100mb", "noeviction", 0}, {"0", "volatile-lru", 0}} {
			do(t, s, "CONFIG", "SET", "maxmemory", c.memory)
			do(t, s, "CONFIG", "SET", "maxmemory-policy", c.policy)
			var evictions atomic.Int32
			n, _ := newGuarded(t, plain(t, s), func(c *Config) {
				c.Guard, c.Bootstrap = 0, false
				c.Notify = func(e driver.Notice) {
					if e.Kind == quorum.NoticeEviction {
						evictions.Add(1)
					}
				}
			})
			for range 3 {
				if _, err := bid(n, fmt.Sprint("k", bids.Add(1))); err != nil {
					t.Fatal(err)
				}
			}
			if n := evictions.Load(); n != c.warned {
				t.Errorf("%+v: %d notices", c, n)
			}
		}
	})
}

// A node of a quorum: another number of nodes, a TTL over the guard, other terms, a restart, and who
// decides when a quarantine ends.
func TestANodeKeepsTheTermsOfItsQuorum(t *testing.T) {
	t.Parallel()
	s := server.Redis(t)
	n, _ := newGuarded(t, plain(t, s), func(c *Config) { c.Guard, c.Bootstrap = 0, false })
	var zone time.Duration // how far the other nodes' clocks are ahead; negative: unknown
	info := func(size int, guard time.Duration) *quorum.Info {
		return &quorum.Info{Terms: testTerms(size, guard, 100*time.Millisecond), OtherClocks: func() time.Time {
			if zone < 0 {
				return time.Time{}
			}
			return time.Now().Add(zone)
		}}
	}
	q, longer := info(5, 30*time.Second), info(5, 50*time.Second)
	acquire := func(q *quorum.Info, ttl time.Duration) (driver.Lease, error) {
		return n.Acquire(t.Context(), &driver.Request{Key: fmt.Sprint("k", bids.Add(1)), Owner: "o/1", TTL: ttl, Quorum: q})
	}
	refused := func(q *quorum.Info, ttl time.Duration, says string) time.Duration {
		t.Helper()
		_, err := acquire(q, ttl)
		return wantRefused(t, err, says).RetryAfter.Round(5 * time.Second)
	}
	state := func(q *quorum.Info, statement quorum.Statement) {
		t.Helper()
		if _, err := n.Bootstrap(t.Context(), &quorum.Bootstrap{Quorum: q, Statement: statement}); err != nil {
			t.Fatal(err)
		}
	}
	look := func(want quorum.Memory) *quorum.MemoryReport {
		t.Helper()
		r, err := n.Bootstrap(t.Context(), &quorum.Bootstrap{Quorum: q, DryRun: true})
		if err != nil || r.Memory != want || r.Server == "" || time.Since(r.Clock).Abs() > time.Minute {
			t.Fatalf("it remembers %+v, %v; want %v", r, err, want)
		}
		return r
	}
	look(quorum.MemoryNew)
	state(q, quorum.StateNew)
	look(quorum.MemoryKept)
	l, err := acquire(q, 20*time.Second)
	drivertest.Must(t, err)
	refused(info(3, 30*time.Second), 10*time.Second, "is a node of a quorum of 5, and this one has 3")
	refused(q, time.Minute, "1m0s is over the restart guard that the node keeps, 30s")

	// Until the other nodes' clocks are known, a quarantine does not begin. Renewals and releases go on.
	restart(t, s, true)
	zone = -1
	if left := refused(q, 10*time.Second, "other nodes"); left > time.Second {
		t.Errorf("RetryAfter is %v", left)
	}
	zone = 0
	if left := refused(q, 10*time.Second, "was restarted"); left != 30*time.Second {
		t.Errorf("a guard of 30s has %v left", left)
	}
	if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: 20 * time.Second}); err != nil {
		t.Errorf("a renewal in the quarantine: %v", err)
	}
	if err := l.Release(t.Context()); err != nil {
		t.Errorf("a release in the quarantine: %v", err)
	}

	// A longer guard: the node keeps the shorter for what it permits, and the longer to be safe.
	refused(longer, 40*time.Second, "40s is over the restart guard that the node keeps, 30s, and this client's restart_guard is 50s")
	state(longer, quorum.StateChanged)
	if r := look(quorum.MemoryKept); r.Terms == nil || *r.Terms != longer.Terms {
		t.Errorf("the terms are %+v", r.Terms)
	}
	refused(longer, 40*time.Second, "terms were changed")

	// The other nodes' clocks decide when it ends if they are ahead; a quarantine that was too long is cut.
	restart(t, s, true)
	for _, zone = range []time.Duration{time.Hour, 0} {
		if left := refused(q, 10*time.Second, "was restarted"); left != zone+50*time.Second {
			t.Errorf("a guard of 50s has %v left, and the others are ahead by %v", left, zone)
		}
	}
	state(info(3, 30*time.Second), quorum.StateChanged)
	refused(info(3, 30*time.Second), 10*time.Second, "nodes or their terms were changed")
	refused(q, 10*time.Second, "is a node of a quorum of 3, and this one has 5")

	// SCRIPT FLUSH forgets nothing; FLUSHALL does, also where it takes the marker along.
	do(t, s, "SCRIPT", "FLUSH")
	refused(info(3, 30*time.Second), 10*time.Second, "nodes or their terms were changed")
	do(t, s, "FLUSHALL")
	look(quorum.MemoryFlushed)
	restart(t, s, false)
	do(t, s, "FLUSHALL")
	look(quorum.MemoryNew)
}
