package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/memory"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// wire is a client whose calls a test may send to changing servers, as behind a host name or a
// Sentinel. before is called for every batch, and returns its server.
type wire struct {
	before func(calls []*Call) *redis.Client
	admin  func() *redis.Client
}

func (w *wire) Exec(ctx context.Context, calls []*Call) {
	pipe := w.before(calls).Pipeline()
	for _, c := range calls {
		args := make([]any, len(c.Args))
		for i, a := range c.Args {
			args[i] = a
		}
		eval := func() *redis.Cmd {
			if c.Text != "" {
				return pipe.Eval(ctx, c.Text, c.Keys, args...)
			}
			return pipe.EvalSha(ctx, c.SHA, c.Keys, args...)
		}
		if c.Behind == "" {
			defer func(cmd *redis.Cmd) {
				if n, err := cmd.Int64(); err == nil {
					c.Number = n
					return
				}
				c.Reply, c.Err = cmd.Slice()
				c.Err = serverError(c.Err)
			}(eval())
			continue
		}
		before, after := Transaction(c.Behind)
		var cmds []*redis.Cmd
		for _, words := range before {
			cmds = append(cmds, pipe.Do(ctx, anys(words)...))
		}
		cmds = append(cmds, eval(), pipe.Do(ctx, anys(after)...))
		defer func() {
			for _, cmd := range cmds {
				if c.Err = serverError(cmd.Err()); c.Err != nil {
					return
				}
			}
			list, _ := cmds[len(cmds)-1].Slice()
			switch last := list[len(list)-1].(type) {
			case []any:
				c.Reply = last
			case error:
				c.Err = serverError(last)
			}
		}()
	}
	cmds, err := pipe.Exec(ctx)
	for _, cmd := range cmds {
		if cmd := cmd.(*redis.Cmd); cmd.Err() == nil && cmd.Val() == nil {
			cmd.SetErr(err) // see package goredis
		}
	}
}

func (w *wire) Servers(context.Context) ([]Server, error) {
	return []Server{plainServer{w.admin()}}, nil
}

func (w *wire) Subscribe(context.Context, Sink, []string) (Subscription, error) {
	return nil, errors.New("no pub/sub")
}
func (w *wire) Close() error { return nil }

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

// newGuarded returns a lone instance with a guard of a minute. Bootstrap is on, so that no
// refusal is only due to a new server.
func newGuarded(t *testing.T, c Client, alter func(*Config)) (*Node, *atomic.Int32) {
	t.Helper()
	votedAtOnce := new(atomic.Int32)
	cfg := Config{
		Client: c, Name: "redis", Addr: "server", CallTimeout: 10 * time.Second, Connections: 2,
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
	if err != nil {
		t.Fatal(err)
	}
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
	if err := s.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
}

// A restart happens between the question which process serves and the script's text. The data
// of the server survived, its locks did not, and it gets a text for the earlier process.
func TestATextOfOneProcessIsLoadedByAnotherAndVotesNot(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		s := server.StartFor(t, kind)
		c := dialServer(t, s)
		w := &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}
		old, _ := newGuarded(t, w, nil)
		l, err := bid(old, "first")
		if err != nil {
			t.Fatal(err)
		}
		do(t, s, "SAVE")
		if _, err := bid(old, "lost"); err != nil {
			t.Fatal(err)
		}
		armed := true
		fresh, _ := newGuarded(t, &wire{admin: w.admin, before: func(calls []*Call) *redis.Client {
			if armed && isHandshake(calls) {
				armed = false
				restart(t, s, false)
			}
			return c
		}}, nil)
		_, err = bid(fresh, "lost")
		r := wantRefused(t, err, "was restarted")
		if r.RetryAfter < 55*time.Second || r.RetryAfter > 62*time.Second {
			t.Errorf("RetryAfter is %v with a guard of a minute", r.RetryAfter)
		}
		if armed {
			t.Error("there was no restart")
		}
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
}

// A refused text must not become callable: a replica that got the primary's text and is
// promoted has the primary's meta.
func TestATextThatWasRefusedOnAReplicaVotesNotThereLater(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		primary := server.StartFor(t, kind)
		replica := server.StartFor(t, kind, server.WithReplicaOf(primary))
		a, b := dialServer(t, primary), dialServer(t, replica)
		at := a
		w := &wire{admin: func() *redis.Client { return at }, before: func([]*Call) *redis.Client { return at }}
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

// The server restarts during a handshake, and the guard refuses because of its settings: the
// text that was sent must not become callable.
func TestATextThatWasRefusedForTheSettingsVotesNotLater(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		s := server.StartFor(t, kind)
		c := dialServer(t, s)
		w := &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}
		old, _ := newGuarded(t, w, nil)
		if _, err := bid(old, "k"); err != nil {
			t.Fatal(err)
		}
		armed := true
		fresh, _ := newGuarded(t, &wire{admin: w.admin, before: func(calls []*Call) *redis.Client {
			if armed && isHandshake(calls) {
				armed = false
				restart(t, s, true)
				do(t, s, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
			}
			return c
		}}, nil)
		_, err := bid(fresh, "k2")
		r := wantRefused(t, err, "maxmemory-policy is allkeys-lru")
		if r.RetryAfter != 0 {
			t.Errorf("RetryAfter is %v, want 0: only an operator can change the setting", r.RetryAfter)
		}
		do(t, s, "CONFIG", "SET", "maxmemory-policy", "noeviction")
		_, err = bid(old, "k2")
		_ = wantRefused(t, err, "was restarted")
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
			armed, direct := true, &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}
			n, atOnce := newGuarded(t, &wire{admin: direct.admin, before: func(calls []*Call) *redis.Client {
				if armed && isHandshake(calls) {
					armed = false
					between()
				}
				return c
			}}, nil)
			l, err := bid(n, "k")
			if err != nil || armed || atOnce.Load() != 1 {
				t.Fatalf("%s: %v, %v, %d notices", name, l, err, atOnce.Load())
			}
		}

		// A quorum's statement concerns only the processes that it observed.
		other, _ := newGuarded(t, &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}, func(c *Config) {
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
			n, atOnce := newGuarded(t, &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}, func(c *Config) {
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

// Redis 6 keeps scripts in its snapshots and on its replicas.
func TestReleasesThatKeepScriptsAreRefused(t *testing.T) { // runs alone, because it changes the text for all tests
	text := lua.Handshake
	t.Cleanup(func() { lua.Handshake = text })
	lua.Handshake = strings.Replace(lua.Handshake, "< 7 then", "< 99 then", 1)
	if text == lua.Handshake {
		t.Fatal("nothing was replaced")
	}
	s := server.Redis(t)
	c := dialServer(t, s)
	n, _ := newGuarded(t, &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}, nil)
	_, err := bid(n, "k")
	_ = wantRefused(t, err, "keeps scripts over a restart")
}

// A promoted replica may lack writes that its primary acknowledged, even with durable=true.
func TestAPromotedReplicaIsNotDurable(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		primary := server.StartFor(t, kind, server.WithAppendOnly("always"))
		replica := server.StartFor(t, kind, server.WithAppendOnly("always"), server.WithReplicaOf(primary))
		at := dialServer(t, primary)
		durable := func(c *Config) { c.Durable = true }
		n, _ := newGuarded(t, &wire{admin: func() *redis.Client { return at }, before: func([]*Call) *redis.Client { return at }}, durable)
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
	n, _ := newGuarded(t, &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}, func(c *Config) { c.Durable = true })
	if _, err := bid(n, "k"); err != nil {
		t.Fatal(err)
	}
	if err := s.SetClock(time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := bid(n, "k"); err != nil { // that one's end came early
		t.Fatal(err)
	}
	if err := s.SetClock(0); err != nil {
		t.Fatal(err)
	}
	restart(t, s, false)
	_, err := bid(n, "k2")
	_ = wantRefused(t, err, "clock was set back")
}

// Two releases of this library with different texts, and three prefixes, share five servers.
// All of them work, a restart leads to one quarantine for each prefix, and no handshake
// disturbs another's.
func TestTwoReleasesAndThreePrefixesShareServers(t *testing.T) {
	const guard = time.Second
	size, rounds, locks, pause := 5, 3, int64(20), 10*time.Millisecond
	if testing.Short() {
		size, rounds, locks, pause = 3, 1, 5, 40*time.Millisecond
	}
	servers, majority := make([]*server.Server, size), size/2+1
	for i := range servers {
		servers[i] = server.StartFor(t, []server.Kind{server.KindRedis, server.KindValkey}[i%2])
	}
	var mu sync.Mutex
	quarantines := map[string]int{} // number of quarantines, by prefix and server
	handshakes := map[string]int{}
	open := func(prefix, release string) *redlock.Backend {
		nodes := make([]driver.Backend, len(servers))
		for i, s := range servers {
			c := dialServer(t, s)
			n, err := New(Config{
				Client: &wire{admin: func() *redis.Client { return c }, before: func(calls []*Call) *redis.Client {
					if isHandshake(calls) {
						mu.Lock()
						handshakes[prefix+release]++
						mu.Unlock()
					}
					return c
				}},
				Name: "redis", Addr: s.Addr(), Prefix: prefix, CallTimeout: 10 * time.Second, Connections: 2,
			})
			if err != nil {
				t.Fatal(err)
			}
			n.guard.space += " " + release // a comment in the texts
			nodes[i] = n
		}
		b, err := redlock.New(nodes, &redlock.Options{Guard: guard, Bootstrap: true, Prefix: prefix, NodeTimeout: guard})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = b.Close()
			for _, n := range nodes {
				_ = n.Close()
			}
		})
		return b
	}
	// ends are the ends of quarantines, from the servers' memory. A client that knows the other
	// nodes' clocks better may shorten a quarantine; a later end is another quarantine.
	ends := map[string]int{}
	read := func(prefix string, i int) {
		meta, _ := servers[i].Do("GET", prefix+"redlock1:meta")
		words := strings.Fields(fmt.Sprint(meta))
		if len(words) != 6 || words[2] == fmt.Sprint(memory.Pending) { // no quarantine, or its end is unknown yet
			return
		}
		at := fmt.Sprint(prefix, i, " ", words[1])
		end, err := strconv.Atoi(words[2])
		if err != nil {
			t.Errorf("meta is %q", words)
			return
		}
		if end > ends[at] {
			quarantines[at]++
		}
		ends[at] = end
	}

	began, stop, granted := time.Now(), make(chan struct{}), map[string]*atomic.Int64{}
	var clients sync.WaitGroup
	for _, prefix := range []string{"a:", "b:", ""} {
		for _, release := range []string{"", "another release"} {
			n := new(atomic.Int64)
			granted[prefix+release] = n
			b := open(prefix, release)
			for w := range 2 {
				clients.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						l, err := b.Acquire(context.Background(), &driver.Request{Key: fmt.Sprint("k", w), Owner: fmt.Sprint("o/", bids.Add(1)), TTL: guard})
						if err == nil {
							n.Add(1)
							_ = l.Release(context.Background())
						}
						time.Sleep(pause) // further locks would show nothing new
					}
				})
			}
		}
	}
	progress := func(when string) {
		t.Helper()
		before := map[string]int64{}
		for who, n := range granted {
			before[who] = n.Load()
		}
		for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			for _, prefix := range []string{"a:", "b:", ""} {
				for i := range servers {
					read(prefix, i)
				}
			}
			var idle []string
			for who, n := range granted {
				if n.Load() < before[who]+locks {
					idle = append(idle, who)
				}
			}
			if len(idle) == 0 {
				return
			}
			if time.Now().After(end) {
				close(stop)
				clients.Wait()
				t.Fatalf("%s: %q gets no locks", when, idle)
			}
		}
	}
	progress("at first")
	for round := range rounds { // a majority is restarted: all must wait
		for i := range majority {
			restart(t, servers[(round+i)%len(servers)], round%2 == 0)
		}
		progress(fmt.Sprintf("after restart %d", round))
	}
	close(stop)
	clients.Wait()
	mu.Lock() // clean-ups may still be under way
	defer mu.Unlock()
	if len(quarantines) < majority*rounds {
		t.Errorf("quarantines were seen of these processes alone: %v", quarantines)
	}
	for at, n := range quarantines {
		if n != 1 {
			t.Errorf("%d quarantines of prefix and process %s", n, at)
		}
	}
	// After a server's restart each client sends its texts once (acquire, join, renew), and
	// loses the calls that were under way. It checks the server's settings every half guard.
	reviews := len(servers) * (1 + int(time.Since(began)/(guard/2)))
	for who, n := range handshakes {
		processes := len(servers) + rounds*majority
		if most := processes*3*2 + reviews; n > most {
			t.Errorf("%q made %d handshakes, and there were %d processes", who, n, processes)
		}
	}
	t.Logf("%d quarantines of one prefix and process each, and these handshakes: %v", len(quarantines), handshakes)
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
		if encoded, next := memory.Terms(meta); encoded != memory.EncodeTerms(&terms[0].Terms) || next != "-" {
			t.Errorf("meta is %q; want the terms of the first client", meta)
		}
	})
}

// With and without the guard a lock is one call on the server, with a little more work:
// usec_per_call shows this on a busy server.
func TestTheGuardIsPartOfTheOneCall(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		const callers, locks = 32, 30
		rounds := 4
		if testing.Short() {
			rounds = 1
		}
		s := server.StartFor(t, kind)
		c := dialServer(t, s)
		w := &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}
		on, _ := newGuarded(t, w, nil)
		off, _ := newGuarded(t, w, func(c *Config) { c.Guard, c.Bootstrap, c.Prefix = 0, false, "off:" })
		// A round in which the machine stalled does not count: calls are repeated, and texts sent again.
		least, one := map[*Node]float64{}, map[*Node]bool{}
		for round := 0; round < rounds || round < 20 && !(one[on] && one[off]); round++ {
			for _, n := range []*Node{on, off} {
				if _, err := bid(n, fmt.Sprint("warm", round)); err != nil {
					t.Fatal(err)
				}
				p := n.router.slots[0].Load()
				p.batches.rest(time.Hour) // each lock must be one call
				if g := p.guarded.Load(); g != nil {
					g.batches.rest(time.Hour)
				}
				do(t, s, "CONFIG", "RESETSTAT")
				var wg sync.WaitGroup
				for g := range callers {
					wg.Go(func() {
						for i := range locks {
							if _, err := bid(n, fmt.Sprint(round, "/", g, "/", i)); err != nil {
								t.Error(err)
							}
						}
					})
				}
				wg.Wait()
				stats := fmt.Sprint(do(t, s, "INFO", "commandstats"))
				_, line, _ := strings.Cut(stats, "cmdstat_evalsha:")
				var calls, us int
				if _, err := fmt.Sscanf(line, "calls=%d,usec=%d,", &calls, &us); err != nil {
					t.Fatal(err)
				}
				if one[n] = one[n] || calls == callers*locks && !strings.Contains(stats, "cmdstat_eval:"); !one[n] {
					t.Logf("%d locks were these calls: %s", callers*locks, stats)
				}
				if per := float64(us) / float64(calls); least[n] == 0 || per < least[n] {
					least[n] = per
				}
			}
		}
		if !one[on] || !one[off] {
			t.Errorf("in no round was each lock one call without its text: %v with the guard, %v without", !one[on], !one[off])
		}
		t.Logf("a lock costs the server %.1f µs with the guard and %.1f without: %+.0f %%", least[on], least[off], 100*(least[on]/least[off]-1))
	})
}

// Between the look and the question for the marker another client may have made its first
// contact: then the server is neither new nor emptied.
func TestALookBesideAFirstContactSeesNoEmptiedServer(t *testing.T) {
	eachKind(t, func(t *testing.T, kind server.Kind) {
		s := server.StartFor(t, kind)
		c := dialServer(t, s)
		direct := &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}
		first, _ := newGuarded(t, direct, nil)
		looked := false
		other, _ := newGuarded(t, &wire{before: direct.before, admin: func() *redis.Client {
			if !looked { // the look is over, and the marker is asked for
				looked = true
				if _, err := bid(first, "k"); err != nil {
					t.Error(err)
				}
			}
			return c
		}}, nil)
		if _, err := bid(other, "k2"); err != nil || !looked {
			t.Errorf("got %v, %v", err, looked)
		}
		r, err := other.Bootstrap(context.Background(), &quorum.Bootstrap{DryRun: true})
		if err != nil || r.Memory != quorum.MemoryKept {
			t.Errorf("it remembers %+v, %v", r, err)
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
		n, _ := newGuarded(t, &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}, func(c *Config) {
			c.Guard = 200 * time.Millisecond
			c.Notify = func(e driver.Notice) {
				if e.Kind == driver.NoticeEviction && strings.Contains(e.Detail, "volatile-lru") {
					evictions.Add(1)
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
			for end := time.Now().Add(time.Minute); ; {
				if err = try(); done(err) {
					return err
				}
				if time.Now().After(end) {
					t.Fatal(err)
				}
			}
		}
		granted := func(err error) bool { return err == nil }
		_ = until(granted)
		do(t, s, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
		_ = wantRefused(t, until(func(err error) bool { return errors.Is(err, driver.ErrRefused) }), "maxmemory-policy is volatile-lru")
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
		for _, c := range []struct {
			memory, policy string
			warned         int32
		}{{"100mb", "volatile-lru", 1}, {"100mb", "noeviction", 0}, {"0", "volatile-lru", 0}} {
			s := server.StartFor(t, kind, server.WithMaxMemory(c.memory, c.policy))
			at := dialServer(t, s)
			var evictions atomic.Int32
			n, _ := newGuarded(t, &wire{admin: func() *redis.Client { return at }, before: func([]*Call) *redis.Client { return at }}, func(c *Config) {
				c.Guard, c.Bootstrap = 0, false
				c.Notify = func(e driver.Notice) {
					if e.Kind == driver.NoticeEviction {
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

// A lone instance has only one clock: it keeps a key for the TTL, the drift and little more.
func TestALoneInstanceKeepsAKeyForLittleMoreThanItsTTL(t *testing.T) {
	for _, guard := range []time.Duration{0, time.Minute} {
		s := server.Redis(t)
		c := dialServer(t, s)
		n, _ := newGuarded(t, &wire{admin: func() *redis.Client { return c }, before: func([]*Call) *redis.Client { return c }}, func(c *Config) {
			c.Guard, c.Bootstrap, c.Prefix = guard, guard > 0, fmt.Sprint("lone", guard, ":")
		})
		for _, ttl := range []time.Duration{time.Second, 30 * time.Second} {
			key := fmt.Sprint("k", ttl)
			if _, err := n.Acquire(context.Background(), &driver.Request{Key: key, Owner: "o/1", TTL: ttl}); err != nil {
				t.Fatal(err)
			}
			left, _ := do(t, s, "PTTL", n.cfg.Prefix+key).(int64)
			if most := ttl + driver.Drift(ttl) + 100*time.Millisecond; time.Duration(left)*time.Millisecond > most {
				t.Errorf("with a guard of %v and a TTL of %v the key is kept for %v ms, and %v is the most", guard, ttl, left, most)
			}
		}
	}
}
