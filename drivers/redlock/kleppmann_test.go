//go:build linux

package redlock_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/redlock"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// These tests replay the five ways in which "How to do distributed locking" (Martin Kleppmann,
// 2016, https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html) breaks
// Redlock, on real servers. Each breaks the lock if its protection is taken out, and does not
// otherwise. The names A to E of the nodes are the article's.

// The article: a client gets the lease; its garbage collector stops it until the lease has
// ended and another client has written; then it goes on without noticing, and writes.
//
// Protection: the token. The lock cannot protect; nor can a look at the clock, because the
// pause may come after it, as here. A store that keeps the largest token it has seen refuses
// the late write; another store accepts it.
//
// What remains: stores that cannot compare tokens.
func TestKleppmannThePausedClientWritesLate(t *testing.T) {
	long(t)
	t.Parallel()
	c := start(t, 5, "redis", "valkey")
	store := server.Redis(t)
	const ttl = time.Minute // the paused client's TTL is a second
	paused := begin(t, "write late", "URL="+c.url(false), "STORE="+store.Addr())
	first := paused.number("holds")
	paused.stop() // stopped between its look at the clock and its write
	paused.goOn()

	other, err := dlock.OpenURL(c.url(false), dlock.WithTTL(ttl))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := other.Lock(ctx, "file")
	if err != nil {
		t.Fatal(err)
	}
	if l.Fence() <= first {
		t.Errorf("token %d after %d", l.Fence(), first)
	}
	for _, key := range []string{"fenced", "unfenced"} {
		if reply, err := write(store.Addr(), key, "the second's", l.Fence()); err != nil || reply != "+OK" {
			t.Fatalf("the second's write: %s, %v", reply, err)
		}
	}

	paused.wake()
	if said := paused.hear("fenced store"); !strings.Contains(said, "stale token") {
		t.Errorf("the store that checks tokens answered the late write with: %s", said)
	}
	if said := paused.hear("unfenced store"); said != "+OK" {
		t.Errorf("the store that checks nothing answered the late write with: %s", said)
	}
	// It can notice now, but too late.
	if said := paused.hear("lost"); said != "true" {
		t.Error("the paused client's lease says that it is still valid")
	}
	for key, want := range map[string]string{"fenced": "the second's", "unfenced": "the first's"} {
		if v, err := store.Do("HGET", key, "value"); err != nil || v != want {
			t.Errorf("the %s store has %v, %v; want %s", key, v, err, want)
		}
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
}

// writeLate runs in the process that is paused.
func writeLate(p *player) error {
	c, err := dlock.OpenURL(os.Getenv("URL"), dlock.WithTTL(time.Second))
	if err != nil {
		return err
	}
	var l *dlock.Lease
	for l == nil || l.Err() != nil { // valid by the clock
		if l, err = c.Lock(context.Background(), "file"); err != nil {
			return err
		}
	}
	p.say("holds", l.Fence())
	p.await()
	for _, key := range []string{"fenced", "unfenced"} {
		reply, err := write(os.Getenv("STORE"), key, "the first's", l.Fence())
		if err != nil {
			return err
		}
		p.say(key+" store", reply)
	}
	p.say("lost", errors.Is(l.Err(), dlock.ErrLost))
	return c.Close()
}

// stores are the scripts of two stores: one checks tokens, one does not.
var stores = map[string]string{
	"fenced": `if tonumber(ARGV[2]) < tonumber(redis.call('HGET', KEYS[1], 'fence') or '0') then
  return redis.error_reply('stale token')
end
redis.call('HSET', KEYS[1], 'value', ARGV[1], 'fence', ARGV[2])
return redis.status_reply('OK')`,
	"unfenced": `redis.call('HSET', KEYS[1], 'value', ARGV[1]) return redis.status_reply('OK')`,
}

// write sends one write to a store and returns its raw reply.
func write(addr, key, value string, fence uint64) (string, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close() //nolint:errcheck // everything has been sent
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return "", err
	}
	args := []string{"EVAL", stores[key], "1", key, value, strconv.FormatUint(fence, 10)}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(conn, b.String()); err != nil {
		return "", err
	}
	reply, err := bufio.NewReader(conn).ReadString('\n')
	return strings.TrimSpace(reply), err
}

// The article: client 1 has the lock on A, B and C, and cannot reach D and E. The clock of C
// jumps forward, and the lock ends there. Client 2 gets it on C, D and E, and cannot reach A
// and B. Both believe that they have the lock.
//
// Protection: a majority counts only if its clocks agree; C's no longer does.
//
// What remains: the clocks of a majority jump together; or a clock jumps ahead and back without
// a request to the node in between: see TestAClockThatJumpsThereAndBack.
func TestKleppmannTheClockOfCJumps(t *testing.T) {
	long(t)
	t.Parallel()
	for _, m := range []redlock.Mutation{0, redlock.NoClockCheck} {
		t.Run(defence(m == 0), func(t *testing.T) {
			c := five(t)
			one, two := c.view("ABC", m), c.view("CDE", m)
			first := c.whenFree(one, "file", time.Minute)
			if l, err := two.Acquire(t.Context(), ask("file", time.Minute)); err == nil {
				t.Fatalf("before the jump client 2 got the lock: %+v", l.Grant())
			}
			c.setClock(2, time.Hour)
			if m != 0 {
				wantBoth(t, first, c.whenFree(two, "file", time.Minute))
				return
			}
			second, err := two.Acquire(t.Context(), ask("file", time.Minute))
			if err == nil {
				t.Fatalf("two holders: %+v and %+v", first.Grant(), second.Grant())
			}
			if !strings.Contains(err.Error(), c.servers[2].Addr()) || offset(err, "ahead of") == 0 {
				t.Errorf("the error does not name C and its clock: %v", err)
			}
		})
	}
}

func defence(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// wantBoth fails the test unless both leases are valid now.
func wantBoth(t *testing.T, first, second driver.Lease) {
	t.Helper()
	now := time.Now()
	a, b := first.Grant(), second.Grant()
	if !now.Before(a.Expires) || !now.Before(b.Expires) {
		t.Errorf("not at a time: for %v and for %v more", a.Expires.Sub(now), b.Expires.Sub(now))
	}
	if b.Fence <= a.Fence {
		t.Errorf("token %d after %d: a store could not tell them apart", b.Fence, a.Fence)
	}
}

// The article: client 1 has the lock on A, B and C. C crashes before it has stored the lock,
// comes back at once, and grants it to client 2, which gets D and E too.
//
// Protection: the restart guard. C notices that it is another process than the one that voted,
// or that it has lost its memory. It does not vote until all locks that it may have forgotten
// have ended; the error says for how long.
//
// What remains: if a majority restarts together, the lock is unavailable for as long. And a
// server cannot notice that its virtual machine was reset to a snapshot.
func TestKleppmannCCrashesBeforeItPersisted(t *testing.T) {
	long(t)
	t.Parallel()
	for _, guard := range []string{"30s", "off"} {
		t.Run(defence(guard != "off"), func(t *testing.T) {
			c := start(t, 5, "redis", "valkey")
			if guard != "off" {
				c.bootstrap(guard)
			}
			one, two := c.guarded("ABC", guard), c.guarded("CDE", guard)
			first := c.whenFree(one, "file", 29*time.Second)
			if l, err := two.Acquire(t.Context(), ask("file", 29*time.Second)); err == nil {
				t.Fatalf("before the crash client 2 got the lock: %+v", l.Grant())
			}
			if err := errors.Join(c.servers[2].Kill(), c.servers[2].Start()); err != nil {
				t.Fatal(err)
			}
			second, refused, err := c.untilRefused(two, 2, 29*time.Second)
			switch {
			case guard == "off" && err != nil:
				t.Fatalf("with the defence off client 2 should have got the lock too: %v", err)
			case guard == "off":
				wantBoth(t, first, second)
			case err == nil:
				t.Fatalf("two holders: %+v and %+v", first.Grant(), second.Grant())
			case refused == nil:
				t.Fatalf("C was to refuse, and the error is: %v", err)
			case !time.Now().Add(refused.RetryAfter).After(first.Grant().Expires):
				t.Errorf("C votes again in %v, and client 1 has the lock for %v", refused.RetryAfter, time.Until(first.Grant().Expires))
			default:
				t.Log(err)
			}
		})
	}
}

// untilRefused tries to take the lock until it succeeds, or until a node says that it does not
// vote now. The first attempts may find connections broken.
func (c *cluster) untilRefused(b *redlock.Backend, node int, ttl time.Duration) (l driver.Lease, refused *driver.RefusedError, err error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(poll) {
		l, err = b.Acquire(c.t.Context(), ask("file", ttl))
		if err == nil || refusal(err, c.servers[node].Addr(), &refused) {
			break
		}
	}
	return l, refused, err
}

// refusal reports whether err says that this node does not vote now.
func refusal(err error, node string, refused **driver.RefusedError) bool {
	var q *quorum.Error
	if !errors.As(err, &q) {
		return false
	}
	for _, v := range q.Votes {
		// On a busy machine the other nodes' clocks may be unknown yet, which proves nothing.
		if strings.Contains(v.Node, node) && errors.As(v.Err, refused) && (*refused).RetryAfter > 100*time.Millisecond {
			return true
		}
	}
	return false
}

// The article: client 1 asks for the lock, and its garbage collector stops it while the replies
// are in transit. The lock ends on all nodes, and client 2 gets it. Client 1 goes on, reads the
// replies from its kernel's buffers, and believes that it has the lock.
//
// Protection: Acquire reads the clock before the first request, and again as its last step. In
// between, each request has its own deadline, which most such pauses exceed.
//
// What remains: a pause after the last step, which is the first of the five ways.
func TestKleppmannThePauseWhileRepliesAreInFlight(t *testing.T) {
	long(t)
	t.Parallel()
	const ttl = time.Second
	// The process is stopped after it has read the replies and before it looks at the clock.
	for _, m := range []redlock.Mutation{0, redlock.NoValidity} {
		t.Run("at the last moment, the defence "+defence(m == 0), func(t *testing.T) {
			c := start(t, 5, "redis", "valkey")
			paused := begin(t, "bid", "URL="+c.url(false), "TTL="+ttl.String(), fmt.Sprint("WITHOUT=", m), "STALL=yes")
			paused.hear("ready")
			paused.goOn()
			paused.hear("won")
			paused.stop()
			paused.goOn()

			l := c.whenFree(c.open(false), "file", time.Minute)
			paused.wake()
			said := paused.hear("outcome")
			switch {
			case !time.Now().Before(l.Grant().Expires):
				t.Error("client 2 has the lock no longer: nothing was shown")
			case m != 0 && !strings.HasPrefix(said, "granted"):
				t.Errorf("with the defence off client 1 should believe that it has the lock: %s", said)
			case m == 0 && !strings.HasPrefix(said, "error"):
				t.Errorf("client 1 believes that it has the lock, and client 2 has it: %s", said)
			case m == 0 && !strings.Contains(said, "too long for a TTL of 1s"):
				t.Errorf("the error does not say what happened: %s", said)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}

	// The replies are in the kernel's buffers when the process is stopped. When it goes on, the
	// deadlines of its requests have passed.
	t.Run("replies in the kernel", func(t *testing.T) {
		c := start(t, 5, "redis", "valkey")
		paused := begin(t, "bid", "URL="+c.url(true, "node_timeout=1s"), "TTL="+ttl.String(), "WITHOUT=0")
		paused.hear("ready")
		flight, held := make(chan struct{}), make(chan int, 100)
		land := sync.OnceFunc(func() { close(flight) })
		t.Cleanup(land) // runs before the proxies are closed
		for i, p := range c.proxies {
			p.Judge(fault.ToClient, func(_ int64, chunk []byte) (int, fault.Action) {
				select {
				case held <- i:
				default:
				}
				<-flight
				return len(chunk), fault.Pass
			})
		}
		paused.goOn()
		before := map[int]int64{}
		for len(before) < 3 {
			i := <-held
			before[i] = c.proxies[i].Stats().ToClient
		}
		paused.stop()
		land()
		for i, n := range before {
			for end := time.Now().Add(time.Minute); c.proxies[i].Stats().ToClient == n; time.Sleep(poll) {
				if time.Now().After(end) {
					t.Fatalf("the reply of node %d does not arrive", i)
				}
			}
		}
		t.Logf("stopped, the process has %v", c.keys("file"))
		l := c.whenFree(c.open(false), "file", time.Minute)
		paused.wake()
		if said := paused.hear("outcome"); !strings.HasPrefix(said, "error") {
			t.Errorf("client 1 believes that it has the lock, and client 2 has it for %v: %s", time.Until(l.Grant().Expires), said)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// bid runs in a process that is stopped while it takes a lock.
func bid(p *player) error {
	opened, err := dlock.OpenBackend(os.Getenv("URL"))
	if err != nil {
		return err
	}
	b := opened.(*redlock.Backend)
	m, err := strconv.ParseUint(os.Getenv("WITHOUT"), 10, 32)
	if err != nil {
		return err
	}
	redlock.Sabotage(b, redlock.Mutation(m))
	ttl, err := time.ParseDuration(os.Getenv("TTL"))
	if err != nil {
		return err
	}
	// This opens connections and loads scripts. (Owners are unique across processes.)
	var warm driver.Lease
	for end := time.Now().Add(time.Minute); warm == nil; time.Sleep(poll) {
		warm, err = b.Acquire(context.Background(), &driver.Request{Key: "warm", Owner: "paused/1", TTL: time.Minute})
		if err != nil && time.Now().After(end) {
			return err
		}
	}
	_ = warm.Release(context.Background()) // otherwise it ends with its TTL
	stall := os.Getenv("STALL") != ""
	if stall {
		redlock.Stall(b, func() {
			p.say("won")
			p.await()
			stall = false
		})
	}
	p.say("ready")
	p.await()
	var l driver.Lease
	for i := 2; i == 2 || stall; i++ { // on a busy machine a few attempts may fail
		l, err = b.Acquire(context.Background(), &driver.Request{Key: "file", Owner: fmt.Sprint("paused/", i), TTL: ttl})
	}
	if err != nil {
		p.say("outcome", "error: ", err)
	} else {
		p.say("outcome", "granted, for ", time.Until(l.Grant().Expires))
	}
	return b.Close()
}

// The article: a network may delay packets arbitrarily (90 seconds in an incident at GitHub).
// Here the three packets that carry a bid to C, D and E all arrive after their sender has given
// up and the TTL has passed.
//
// Protection: a request that takes or keeps a lock carries an end in the server's own time, and
// the server refuses it afterwards. Otherwise the dead bid gets the lock on a majority, after
// the release that should undo it, and no client has the lock until it ends.
//
// What remains: if a server's clock is set back, late packets look timely. And the write to the
// protected resource is a packet as well: against its delay only a store that checks tokens
// helps.
func TestKleppmannThePacketIsDelayedBeyondTheTTL(t *testing.T) {
	long(t)
	t.Parallel()
	const ttl = 2 * time.Second
	for _, on := range []bool{true, false} {
		t.Run(defence(on), func(t *testing.T) {
			c := start(t, 5, "redis")
			var nodes []driver.Backend
			for _, p := range c.proxies {
				client := redis.NewClient(&redis.Options{Addr: p.Addr(), MaxRetries: -1, ContextTimeoutEnabled: true})
				t.Cleanup(func() { _ = client.Close() })
				if !on {
					client.AddHook(imperishable{})
				}
				n, err := goredis.New(client, nil)
				if err != nil {
					t.Fatal(err)
				}
				nodes = append(nodes, n)
			}
			// Its node timeout is long enough to send the bids on a busy machine.
			slow, err := redlock.New(nodes, &redlock.Options{Guard: -1, NodeTimeout: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			other := c.open(false, calm)
			for range 2 { // opens connections and loads scripts
				for _, b := range []*redlock.Backend{slow, other} {
					if err := c.whenFree(b, "warm", time.Minute).Release(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}

			late := c.servers[2:]
			network := make(chan struct{})
			arrive := sync.OnceFunc(func() { close(network) })
			t.Cleanup(arrive) // runs before the proxies are closed
			for i := range late {
				c.proxies[2+i].Judge(fault.ToServer, delayFirst([]byte("file"), network))
			}
			began := time.Now()
			if l, err := slow.Acquire(t.Context(), ask("file", ttl)); err == nil {
				t.Fatalf("with three packets on their way there was a majority: %+v", l.Grant())
			}
			// Wait until its clean-up has ended.
			if err := slow.Close(); err != nil {
				t.Error(err)
			}
			for _, n := range nodes {
				_ = n.Close() // a packet is in transit, on a client that stays open
			}
			c.gone("file", time.Minute)
			time.Sleep(time.Until(began.Add(ttl))) // the packets must arrive after this

			before := make([]int, len(late))
			for i, s := range late {
				before[i] = scriptCalls(t, s)
			}
			arrive()
			for i, s := range late {
				for end := time.Now().Add(time.Minute); scriptCalls(t, s) == before[i]; time.Sleep(poll) {
					if time.Now().After(end) {
						t.Fatalf("the late packet to %s does not arrive", s.Addr())
					}
				}
			}
			if orphans := c.keys("file"); on && len(orphans) > 0 || !on && len(orphans) != 3 {
				t.Errorf("the late packets took %v", orphans)
			}
			if on {
				c.release(c.whenFree(other, "file", time.Minute)) // nobody has it
			} else if _, err := other.Acquire(t.Context(), ask("file", time.Minute)); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("with the defence off the dead bid should have the lock: %v", err)
			}
		})
	}
}

// delayFirst delays the first chunk that contains this text until network is closed.
func delayFirst(with []byte, network <-chan struct{}) fault.Judge {
	var first sync.Once
	return func(_ int64, chunk []byte) (int, fault.Action) {
		if bytes.Contains(chunk, with) {
			delayed := false
			first.Do(func() { delayed = true })
			if delayed {
				<-network
			}
		}
		return len(chunk), fault.Pass
	}
}

// imperishable removes the end of each request, which is the script's first argument.
type imperishable struct{}

func (imperishable) DialHook(next redis.DialHook) redis.DialHook { return next }
func (imperishable) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		preserve(cmd)
		return next(ctx, cmd)
	}
}
func (imperishable) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			preserve(cmd)
		}
		return next(ctx, cmds)
	}
}

func preserve(cmd redis.Cmder) {
	args := cmd.Args() // EVALSHA, script, number of keys, keys, the end in µs
	if cmd.Name() != "evalsha" || len(args) < 3 {
		return
	}
	keys, err := strconv.Atoi(fmt.Sprint(args[2]))
	if err != nil || len(args) <= 3+keys {
		return
	}
	if end := fmt.Sprint(args[3+keys]); len(end) > 10 { // not "0" or "handshake"
		args[3+keys] = "9000000000000000"
	}
}

// sceneVariable names the scene that this process plays; without it this is an ordinary test run.
const sceneVariable = "REDLOCK_TEST_SCENE"

// TestKleppmannScene runs in the process that other tests stop.
func TestKleppmannScene(t *testing.T) {
	long(t)
	t.Parallel()
	play := map[string]func(*player) error{"write late": writeLate, "bid": bid}[os.Getenv(sceneVariable)]
	if play == nil {
		return
	}
	if err := play(&player{in: bufio.NewReader(os.Stdin)}); err != nil {
		t.Fatal(err)
	}
}

// player is the scene's side of the conversation, in the process.
type player struct{ in *bufio.Reader }

func (p *player) say(what string, values ...any) {
	fmt.Printf("\nscene %s: %s\n", what, fmt.Sprint(values...))
}

// await waits for a line from the test.
func (p *player) await() { _, _ = p.in.ReadString('\n') }

// process is the test's side of the conversation.
type process struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// begin starts a scene in a new process, which ends with the test.
func begin(t *testing.T, scene string, env ...string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, cmd: exec.Command(self, "-test.run=^TestKleppmannScene$")}
	p.cmd.Env = append(append(os.Environ(), sceneVariable+"="+scene), env...)
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	limit := time.AfterFunc(2*time.Minute, func() { _ = p.cmd.Process.Kill() })
	t.Cleanup(func() {
		limit.Stop()
		_ = p.cmd.Process.Kill() // the process may have ended
		_ = p.cmd.Wait()
	})
	return p
}

// hear waits until the process prints a line that begins with what, and returns the rest of the
// line.
func (p *process) hear(what string) string {
	p.t.Helper()
	var all []string
	for p.out.Scan() {
		if said, ok := strings.CutPrefix(p.out.Text(), "scene "+what+": "); ok {
			return said
		}
		all = append(all, p.out.Text())
	}
	p.t.Fatalf("the process ended before it said %q: %s", what, strings.Join(all, "\n"))
	return ""
}

func (p *process) number(what string) uint64 {
	p.t.Helper()
	n, err := strconv.ParseUint(p.hear(what), 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// goOn sends the line that the process waits for, even if the process is stopped.
func (p *process) goOn() {
	p.t.Helper()
	if _, err := io.WriteString(p.in, "\n"); err != nil {
		p.t.Fatal(err)
	}
}

// stop stops the process, like a garbage collector, and returns when it has stopped.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(p.cmd.Process.Pid, &status, syscall.WUNTRACED, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
		case err != nil:
			p.t.Fatal(err)
		case status.Stopped():
			return
		default:
			p.t.Fatalf("the process ended: %v", status)
		}
	}
}

func (p *process) wake() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}
