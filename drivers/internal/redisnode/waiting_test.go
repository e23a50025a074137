package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func watch(t testing.TB, ctx context.Context, b driver.Backend, key string) <-chan struct{} {
	t.Helper()
	wake, err := b.(driver.Watcher).Watch(ctx, key)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	return wake
}

func awake(t testing.TB, wake <-chan struct{}) {
	t.Helper()
	select {
	case <-wake:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody woke the waiter")
	}
}

// drained empties wake: an additional value is allowed.
func drained(wake <-chan struct{}) {
	select {
	case <-wake:
	default:
	}
}

// calls returns how often the server ran these commands, by its own count.
func calls(t testing.TB, srv *server.Server, commands ...string) (sum int) {
	t.Helper()
	info := fmt.Sprint(do(t, srv, "INFO", "commandstats"))
	for _, command := range commands {
		if _, rest, found := strings.Cut(info, "cmdstat_"+command+":calls="); found {
			digits, _, _ := strings.Cut(rest, ",")
			n, err := strconv.Atoi(digits)
			drivertest.Must(t, err)
			sum += n
		}
	}
	return sum
}

// idleWaiters: many waiters for many keys over a slow link share one subscription, also with some that leave
// at once, and do not ask again until a release is announced, which all of them then receive. Without
// waiters there is no subscription.
func (s *suite) idleWaiters(t *testing.T) {
	n, watched := 250, 3*time.Second // long enough that each waiter could ask twice
	if testing.Short() {
		n = 60
	}
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	p.RTT(10 * time.Millisecond)
	b := s.open(t, s.url(p.Addr(), ""))
	c, err := dlock.New(b)
	drivertest.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for i := range n {
		wg.Go(func() {
			if _, err := b.(driver.Watcher).Watch(ctx, fmt.Sprintf("left%d", i)); err != nil {
				t.Errorf("Watch: %v", err)
			}
		})
	}
	wg.Wait()
	cancel()
	for i := range n { // the locks of another process of this library
		do(t, srv, "SET", fmt.Sprintf("w%d", i), "other/1|1700000000000000", "PX", "600000")
		wg.Go(func() {
			l, err := c.Lock(t.Context(), fmt.Sprintf("w%d", i))
			if err != nil {
				t.Errorf("Lock: %v", err)
				return
			}
			_ = l.Unlock()
		})
	}
	eventually(t, func() error {
		queued, err := srv.Do("EVAL", "local n = 0 for _, k in ipairs(redis.call('KEYS', 'redlock1:queue:*')) do n = n + redis.call('ZCOUNT', k, 0, 9007199254740990) end return n", "0")
		if err == nil && queued.(int64) < int64(n) {
			err = fmt.Errorf("%d of %d are in the queue", queued, n)
		}
		return err
	})
	if subs := subscribers(t, srv); subs != 1 {
		t.Errorf("%d connections subscribe, want one", subs)
	}
	eventually(t, func() error { // on a busy machine some ask once more right after they took their place
		asked := calls(t, srv, "evalsha")
		<-time.After(watched)
		if asked = calls(t, srv, "evalsha") - asked; asked > n/4 {
			return fmt.Errorf("%d idle waiters asked %d times within %v", n, asked, watched)
		}
		return nil
	})
	for i := range n {
		do(t, srv, "EVAL", "local p = redis.call('ZPOPMIN', KEYS[2])[1] redis.call('DEL', KEYS[1]) redis.call('PUBLISH', 'redlock1:free:'..string.match(p, '^[^.]*'), '0 '..p..' '..KEYS[1])", "2", fmt.Sprintf("w%d", i), fmt.Sprintf("redlock1:queue:{w%d}", i))
	}
	wg.Wait()
	eventually(t, func() error {
		if subs := subscribers(t, srv); subs != 0 {
			return fmt.Errorf("%d connections subscribe when nobody waits", subs)
		}
		return nil
	})
	noLocks(t, srv)
}

// silentRelease: a release without waiters publishes nothing.
func (s *suite) silentRelease(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	for i := range 50 {
		unlock(t, s.lock(t, b, fmt.Sprintf("k%d", i%5), time.Minute))
	}
	if n := calls(t, srv, "publish"); n > 0 {
		t.Errorf("50 releases of locks that nobody waits for were announced %d times", n)
	}
	wake := watch(t, t.Context(), b, "k1")
	for range 3 { // a waiter that has never asked hears of each release
		unlock(t, s.lock(t, s.open(t, s.url(srv.Addr(), "")), "k1", time.Minute))
		awake(t, wake)
		<-time.After(2 * listenAfter)
		drained(wake)
	}
}

const listenAfter = 20 * time.Millisecond // redisnode's

// silentConnection: a silent connection is noticed and replaced.
func (s *suite) silentConnection(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	h := &drivertest.NoticeLog{}
	b := s.openWith(t, &driver.Config{DSN: s.url(p.Addr(), ""), Notify: h.Add})
	watch(t, t.Context(), b, "k")
	p.Pause()
	eventually(t, func() error {
		if len(h.Of(driver.NoticeDisconnected, "")) == 0 {
			return errors.New("nobody notices that the subscription's connection is silent")
		}
		return nil
	})
	p.Resume()
}

// foreignHolder: a waiter soon notices the unannounced release of another library's lock.
func (s *suite) foreignHolder(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	wake := watch(t, t.Context(), b, "k")
	do(t, srv, "SET", "k", "foreign", "PX", "60000")
	for i := range 20 {
		_, err := b.Acquire(context.Background(), s.ask("k", time.Minute))
		var held *driver.HeldError
		if !errors.As(err, &held) || held.PollAfter <= 0 || held.PollAfter > 200*time.Millisecond || i == 0 && held.PollAfter > 50*time.Millisecond {
			t.Fatalf("a foreign lock, asked for the %dth time: %+v, %v", i, held, err)
		}
	}
	do(t, srv, "SET", "k", "other/1|1700000000000000", "PX", "30000")
	_, err := b.Acquire(context.Background(), s.ask("k", time.Minute))
	var held *driver.HeldError
	if !errors.As(err, &held) || held.PollAfter < held.RetryAfter || held.PollAfter > held.RetryAfter+50*time.Millisecond {
		t.Fatalf("a lock of ours, which ends after %v: %+v, %v", held.RetryAfter, held, err)
	}
	drained(wake)
}

// subscribers counts the connections with subscriptions.
func subscribers(t testing.TB, srv *server.Server) int {
	t.Helper()
	list, err := srv.Do("CLIENT", "LIST")
	drivertest.Must(t, err)
	n := 0
	for line := range strings.Lines(fmt.Sprint(list)) {
		if strings.Contains(line, " sub=") && !strings.Contains(line, " sub=0 ") {
			n++
		}
	}
	return n
}

// A waiter is a backend that has a place in a lock's queue.
type waiter struct {
	driver.Backend
	wake  <-chan struct{}
	leave context.CancelFunc
	place string
	mode  driver.Mode
}

const (
	theLock  = "k"
	theQueue = "redlock1:queue:{k}"
)

// asks lets the waiter ask once, which takes its place or the lock.
func (s *suite) asks(t testing.TB, w *waiter) (driver.Lease, *driver.HeldError) {
	t.Helper()
	req := s.ask(theLock, time.Minute)
	req.Mode = w.mode
	l, err := w.Acquire(context.Background(), req)
	var held *driver.HeldError
	if err != nil && !errors.As(err, &held) {
		t.Fatalf("Acquire: %v", err)
	}
	return l, held
}

// queue lets backends on addrs wait for a lock that is held, one after the other; a reader's begins with r. The
// lock is kept for each for that long: if a busy machine let that time pass, whoever leaves would pass the lock on.
func (s *suite) queue(t testing.TB, kept time.Duration, srv *server.Server, addrs ...string) []*waiter {
	t.Helper()
	ws := make([]*waiter, len(addrs))
	for i, addr := range addrs {
		addr, reads := strings.CutPrefix(addr, "r")
		w := &waiter{Backend: s.open(t, s.url(addr, ""))}
		w.Backend.(*goredis.Backend).KeepFor(kept)
		if reads {
			w.mode = driver.Shared
		}
		var ctx context.Context
		ctx, w.leave = context.WithCancel(context.Background())
		t.Cleanup(w.leave)
		w.wake = watch(t, ctx, w.Backend, theLock)
		eventually(t, func() error { // a subscription from which a busy machine has heard nothing lately gets no place
			if _, held := s.asks(t, w); held == nil {
				t.Fatal("the lock is not held")
			}
			places := queueOf(t, srv)
			if len(places) != i+1 {
				return fmt.Errorf("%d places in the queue, want %d", len(places), i+1)
			}
			w.place = places[i]
			return nil
		})
		drained(w.wake) // of the subscription
		ws[i] = w
	}
	return ws
}

// queueOf returns the places in the queue.
func queueOf(t testing.TB, srv *server.Server) []string {
	t.Helper()
	reply, err := srv.Do("ZRANGE", theQueue, "0", "-1")
	drivertest.Must(t, err)
	places := []string{}
	for _, p := range reply.([]any) {
		if !strings.HasSuffix(fmt.Sprint(p), ".0.0") { // a listener
			places = append(places, fmt.Sprint(p))
		}
	}
	return places
}

func places(ws []*waiter) []string {
	list := []string{}
	for _, w := range ws {
		list = append(list, w.place)
	}
	return list
}

func (s *suite) inQueue(t testing.TB, srv *server.Server, want []*waiter) {
	t.Helper()
	if got := queueOf(t, srv); !slices.Equal(got, places(want)) {
		t.Fatalf("in the queue are %q, want %q", got, places(want))
	}
}

// queueOrder: a release removes exactly the first place from the queue, and after the last
// waiter nothing is left.
func (s *suite) queueOrder(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	l := s.lock(t, s.open(t, s.url(srv.Addr(), "")), theLock, time.Minute)
	ws := s.queue(t, time.Minute, srv, slices.Repeat([]string{srv.Addr()}, 5)...)
	for _, w := range ws { // a waiter that asks again keeps its one place
		_, _ = s.asks(t, w)
	}
	s.inQueue(t, srv, ws)
	for i, w := range ws {
		unlock(t, l)
		s.inQueue(t, srv, ws[i+1:])
		awake(t, w.wake)
		var held *driver.HeldError
		if l, held = s.asks(t, w); held != nil {
			t.Fatalf("the first waiter gets %v", held)
		}
		w.leave()
	}
	unlock(t, l)
	noLocks(t, srv)
}

// kill cuts a waiter's connections, and returns when the server has noticed it.
func kill(t testing.TB, srv *server.Server, link *fault.Proxy, w *waiter) {
	t.Helper()
	drivertest.Must(t, link.Refuse())
	link.CutAll()
	id, _, _ := strings.Cut(w.place, ".")
	eventually(t, func() error {
		if n := do(t, srv, "PUBSUB", "NUMSUB", "redlock1:free:"+id).([]any)[1]; n != int64(0) {
			return fmt.Errorf("the server believes that a waiter that is gone has %v subscriptions", n)
		}
		return nil
	})
}

// queueDead: a dead process costs nothing. A process that receives nothing costs only the time
// for which the lock is reserved for it: then the second waiter asks by itself.
func (s *suite) queueDead(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	gone, silent := fault.NewProxy(t, srv.Addr()), fault.NewProxy(t, srv.Addr())
	l := s.lock(t, s.open(t, s.url(srv.Addr(), "")), theLock, time.Minute)
	ws := s.queue(t, 30*time.Millisecond, srv, gone.Addr(), silent.Addr(), srv.Addr(), srv.Addr())
	kill(t, srv, gone, ws[0])
	silent.Pause()
	unlock(t, l)
	s.inQueue(t, srv, ws[2:]) // the dead process was skipped, and the silent one told
	awake(t, ws[2].wake)
	eventually(t, func() error { // the reservation for the next waiter begins only now
		l, held := s.asks(t, ws[2])
		if held != nil {
			return held
		}
		unlock(t, l)
		return nil
	})
	awake(t, ws[3].wake)
	ws[2].leave()
	ws[3].leave()
	drivertest.Must(t, gone.Restore())
	silent.Resume()
	for _, w := range ws {
		w.leave()
	}
	noLocks(t, srv)
}

// queueLeaves: a waiter that gives up leaves the queue, and passes the lock on if it was told
// already.
func (s *suite) queueLeaves(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	l := s.lock(t, s.open(t, s.url(srv.Addr(), "")), theLock, time.Minute)
	ws := s.queue(t, time.Minute, srv, slices.Repeat([]string{srv.Addr()}, 5)...)
	ws[1].leave()
	eventually(t, func() error {
		_, _ = s.asks(t, ws[0]) // the other places stay in the queue
		if n := len(queueOf(t, srv)); n != 4 {
			return fmt.Errorf("%d in the queue after one has left", n)
		}
		return nil
	})
	if err := ws[2].Close(); err != nil { // a closed backend leaves too
		t.Fatal(err)
	}
	s.inQueue(t, srv, []*waiter{ws[0], ws[3], ws[4]})
	unlock(t, l)
	s.inQueue(t, srv, ws[3:])
	awake(t, ws[0].wake)
	told := func(i int) {
		t.Helper()
		eventually(t, func() error {
			if got := queueOf(t, srv); !slices.Equal(got, places(ws[i+1:])) {
				return fmt.Errorf("in the queue are %q, want %q: the next was not told", got, places(ws[i+1:]))
			}
			return nil
		})
		awake(t, ws[i].wake)
	}
	if _, err := srv.Do("DEL", theLock); err != nil { // the moment for which it was kept is over
		t.Fatal(err)
	}
	// One without a place has nothing to pass on, however late its request is.
	queued := func() []any { return do(t, srv, "ZRANGE", theQueue, "0", "-1").([]any) }
	before := queued()
	ctx, cancel := context.WithCancel(t.Context())
	_ = watch(t, ctx, s.open(t, s.url(srv.Addr(), "")), theLock)
	after := queued()
	i := slices.IndexFunc(after, func(p any) bool { return !slices.Contains(before, p) })
	cancel()
	eventually(t, func() error {
		if slices.Contains(queued(), after[i]) {
			return fmt.Errorf("%v is still in the queue", after[i])
		}
		return nil
	})
	s.inQueue(t, srv, ws[3:])
	ws[0].leave()
	told(3)
	if _, err := srv.Do("SET", theLock, "redlock1:next|1|"+ws[3].place, "PX", "60000"); err != nil { // or is not
		t.Fatal(err)
	}
	ws[3].leave()
	told(4)

	// This process has a place that no waiter knows, because its request was late. When the
	// process is told, it passes the lock on.
	id, _, _ := strings.Cut(ws[4].place, ".")
	do(t, srv, "SET", theLock, "redlock1:next|1|"+id+".99.30", "PX", "60000")
	if _, err := srv.Do("PUBLISH", "redlock1:free:"+id, "0 "+id+".99.30 "+theLock); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		l, held := s.asks(t, ws[4])
		if held != nil {
			return held
		}
		unlock(t, l)
		return nil
	})
	ws[4].leave()
	noLocks(t, srv)
}

// noSignals: a user without the right to pub/sub, or to the queue's commands, polls, and one notice says so.
func (s *suite) noSignals(t *testing.T) {
	const noQueue = "-zadd -zpopmin -zrem -zrange"
	srv := server.StartFor(t, s.kind, server.WithUser("quiet on nopass ~* resetchannels +@all"), server.WithUser("plain on nopass ~* &* +@all "+noQueue))
	for user, says := range map[string]string{"quiet": "channel", "plain": "wait queue"} {
		var h drivertest.NoticeLog
		open := func() driver.Backend {
			return s.openWith(t, &driver.Config{DSN: s.url(user+":x@"+srv.Addr(), ""), Notify: h.Add})
		}
		l := s.lock(t, open(), theLock, time.Minute)
		b := open()
		for range 2 {
			if _, err := b.(driver.Watcher).Watch(t.Context(), theLock); !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: Watch: %v", user, err)
			}
		}
		if _, err := b.Acquire(t.Context(), s.reads("shared")); user == "plain" && (!errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "shared mode is not allowed (+zadd")) {
			t.Errorf("Acquire of a reader: %v", err)
		}
		c, err := dlock.New(b)
		drivertest.Must(t, err)
		got := make(chan error, 1)
		go func() {
			next, err := c.Lock(t.Context(), theLock)
			if err == nil {
				err = next.Unlock()
			}
			got <- err
		}()
		unlock(t, l) // PUBLISH is refused too, and the release holds
		if err := <-got; err != nil {
			t.Error(err)
		}
		eventually(t, func() error {
			if n := len(h.Of(driver.NoticeDegraded, "waiters poll")); n != 1 {
				return fmt.Errorf("%s: %d notices say that waiters poll, want one", user, n)
			}
			return nil
		})
	}
	do(t, srv, "DEL", "shared", "redlock1:readers:{shared}")
	noLocks(t, srv)
}
