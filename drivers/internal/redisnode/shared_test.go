package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

const theReaders = "redlock1:readers:{k}"

// reads returns a request of a new reader, for a minute.
func (s *suite) reads(key string) *driver.Request {
	req := s.ask(key, time.Minute)
	req.Mode = driver.Shared
	return req
}

// do runs a command on the server.
func do(t testing.TB, srv *server.Server, args ...string) any {
	t.Helper()
	reply, err := srv.Do(args...)
	drivertest.Must(t, err)
	return reply
}

// queueShared: readers and writers have one queue. A release lets in all readers up to the first writer; who
// comes later waits behind that one, which gets the lock from the last reader. A writer that leaves, or dies,
// holds up nobody.
func (s *suite) queueShared(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	gone := fault.NewProxy(t, srv.Addr())
	reader, writer := "r"+srv.Addr(), srv.Addr()
	newcomer := &waiter{Backend: s.open(t, s.url(srv.Addr(), "")), mode: driver.Shared}
	l := s.lock(t, newcomer.Backend, theLock, time.Minute)
	ws := s.queue(t, time.Minute, srv, reader, reader, writer, reader, writer, gone.Addr(), reader)
	grant := func(i int) driver.Lease {
		t.Helper()
		awake(t, ws[i].wake)
		l, held := s.asks(t, ws[i])
		if held != nil {
			t.Fatalf("waiter %d gets %v", i, held)
		}
		ws[i].leave()
		return l
	}
	refused := func(w *waiter) {
		t.Helper()
		if _, held := s.asks(t, w); held == nil || held.Mode != driver.Shared || held.Holder != "" {
			t.Fatalf("beside readers, with a writer in the queue: %v", held)
		}
	}
	unlock(t, l)
	s.inQueue(t, srv, ws[2:])
	first, second := grant(0), grant(1)
	refused(newcomer)
	refused(ws[2])
	unlock(t, first)
	s.inQueue(t, srv, ws[2:])
	refused(newcomer)
	unlock(t, second)
	s.inQueue(t, srv, ws[3:])
	l = grant(2)
	unlock(t, l)
	l = grant(3)
	ws[4].leave()
	eventually(t, func() error { // the writer's place goes, and ws[5] holds up the readers behind it
		if n := len(queueOf(t, srv)); n != 2 {
			return fmt.Errorf("%d in the queue after one has left", n)
		}
		return nil
	})
	refused(newcomer)
	kill(t, srv, gone, ws[5])
	late, held := s.asks(t, newcomer)
	if held != nil {
		t.Fatalf("behind a writer whose process is gone: %v", held)
	}
	s.inQueue(t, srv, nil) // the newcomer has let in the reader behind it
	for _, l := range []driver.Lease{grant(6), l, late} {
		unlock(t, l)
	}
	ws[5].leave()
	drivertest.Must(t, gone.Restore())
	noLocks(t, srv)
}

// sharedForeign: a plain SET NX PX never succeeds while a reader has the lock, nor a reader's request while it
// has; and readers whose lock was deleted learn that it is lost, whoever has it now.
func (s *suite) sharedForeign(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	tries := 300
	if server.IsDeep() {
		tries = 10_000
	}
	foreign := func() bool { return do(t, srv, "SET", theLock, "foreign", "NX", "PX", "3600000") != nil }
	var tried, overlapped atomic.Int64
	var readers sync.WaitGroup
	long := s.reads(theLock)
	long.TTL = time.Hour
	l := drivertest.Grant(t, b, long) // one of them always has it
	for range 3 {
		readers.Go(func() {
			for tried.Load() < int64(tries) {
				unlock(t, drivertest.Grant(t, b, s.reads(theLock)))
				overlapped.Add(1)
			}
		})
	}
	for range tries {
		if foreign() {
			t.Error("SET NX PX succeeded beside a reader")
		}
		tried.Add(1)
	}
	readers.Wait()
	t.Logf("%d tries, beside one reader and %d more", tries, overlapped.Load())

	second := drivertest.Grant(t, b, s.reads(theLock))
	do(t, srv, "DEL", theLock)
	if !foreign() {
		t.Error("SET NX PX failed though the lock was deleted")
	}
	for range tries {
		var held *driver.HeldError
		if _, err := b.Acquire(t.Context(), s.reads(theLock)); !errors.As(err, &held) || held.Holder != "foreign" {
			t.Fatalf("a reader beside another library: %v", err)
		}
	}
	if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew beside a foreign lock: %v", err)
	}
	if err := l.Release(t.Context()); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Release beside a foreign lock: %v", err)
	}
	do(t, srv, "DEL", theLock)
	third := drivertest.Grant(t, b, s.reads(theLock))
	if _, err := second.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of a reader of a deleted lock, beside a new reader: %v", err)
	}
	unlock(t, third)
	noLocks(t, srv)
}

// sharedOperators: Lookup and List show each reader. What somebody else has put into the set hurts nobody.
func (s *suite) sharedOperators(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	in := patient{b.(driver.Inspector)}
	first, second := drivertest.Grant(t, b, s.reads(theLock)), drivertest.Grant(t, b, s.reads(theLock))
	fences := []uint64{first.Grant().Fence, second.Grant().Fence}
	tokens := func(st *driver.State) (all []uint64) {
		for _, h := range st.Holders {
			if h.TTL <= 50*time.Second || h.Owner == "" {
				t.Errorf("a reader is shown as %+v", h)
			}
			all = append(all, h.Fence)
		}
		slices.Sort(all)
		return all
	}
	st, err := in.Lookup(t.Context(), theLock)
	if err != nil || st.Mode != driver.Shared || !slices.Equal(tokens(st), fences) || st.Verdict() != "held" || st.ReservedFor != 0 {
		t.Errorf("Lookup: %+v, %v, want the tokens %v", st, err, fences)
	}
	if err := in.List(t.Context(), "", func(st *driver.State) bool {
		if st.Mode != driver.Shared || !slices.Equal(tokens(st), fences) {
			t.Errorf("List: %+v", st)
		}
		return true
	}); err != nil {
		t.Error(err)
	}
	do(t, srv, "ZADD", theReaders, "inf", "x", "-inf", "y|z", "9e15", "redlock1:next|")
	third := drivertest.Grant(t, b, s.reads(theLock))
	drivertest.Renew(t, third, time.Minute)
	if st, err := in.Lookup(t.Context(), theLock); err != nil || len(st.Holders) != 4 {
		t.Errorf("Lookup beside other members: %+v, %v", st, err)
	}
	do(t, srv, "ZREM", theReaders, "x", "redlock1:next|")
	for _, l := range []driver.Lease{first, second, third} {
		unlock(t, l)
	}
	noLocks(t, srv)

	// A lock that is kept for readers is not free, and a set that is none refuses readers, and nobody else.
	do(t, srv, "ZADD", theReaders, fmt.Sprint(time.Now().Add(time.Minute).UnixMicro()), "redlock1:next|a.r1.30")
	do(t, srv, "SET", theLock, "redlock1:next|0|a.r1.30", "PX", "60000")
	if st, err := in.Lookup(t.Context(), theLock); err != nil || st.ReservedFor < 50*time.Second || len(st.Holders) != 0 {
		t.Errorf("a lock that is kept for a reader: %+v, %v", st, err)
	}
	do(t, srv, "SET", theLock, "redlock1:shared", "PX", "60000")
	do(t, srv, "SET", theReaders, "x")
	if st, err := in.Lookup(t.Context(), theLock); err != nil || len(st.Holders) != 1 {
		t.Errorf("a lock of readers that nobody knows: %+v, %v", st, err)
	}
	var refused *driver.RefusedError
	if _, err := b.Acquire(t.Context(), s.reads(theLock)); !errors.As(err, &refused) || refused.RetryAfter != 0 {
		t.Errorf("the set is none: %v", err)
	}
	do(t, srv, "DEL", theLock)
	unlock(t, s.lock(t, b, theLock, time.Minute))
}

// sharedLeases: a lost answer makes no second reader; a restart guard and Keep are as with a writer.
func (s *suite) sharedLeases(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	link := fault.NewProxy(t, srv.Addr())
	b := s.open(t, s.url(link.Addr(), "?restart_guard=2m&bootstrap=true"))
	unlock(t, drivertest.Grant(t, b, s.reads(theLock)))
	link.Judge(fault.ToClient, fault.Lose(1, fault.Cut))
	l, err := b.Acquire(t.Context(), s.reads(theLock))
	if err != nil {
		t.Fatalf("Acquire, whose first answer was lost: %v", err)
	}
	if n := do(t, srv, "ZCARD", theReaders); n != int64(1) {
		t.Errorf("%v members of one reader", n)
	}
	if _, err := l.Renew(t.Context(), &driver.Renewal{Keep: 2 * time.Minute}); err != nil {
		t.Errorf("Renew with Keep: %v", err)
	}
	if left := do(t, srv, "PTTL", theLock).(int64); left <= 110_000 || left > 120_000 {
		t.Errorf("the lock is kept for %d ms", left)
	}
	unlock(t, l)
	if n := do(t, srv, "EXISTS", theLock, theReaders); n != int64(0) {
		t.Errorf("%v of the lock's keys were left behind", n)
	}
	held := drivertest.Grant(t, b, s.reads(theLock))
	drivertest.Must(t, srv.Restart())
	eventually(t, func() error {
		var refused *driver.RefusedError
		if _, err := b.Acquire(context.Background(), s.reads(theLock)); !errors.As(err, &refused) {
			return fmt.Errorf("a reader after a restart: %w", err)
		}
		return nil
	})
	drivertest.Renew(t, held, time.Minute) // the server has it on its disk
}

// TestAnExclusiveLockCostsWhatItDid: these are all commands that the server runs for locks that are taken, renewed
// and released, and all bytes that it receives. Shared mode has added nothing to either.
func TestAnExclusiveLockCostsWhatItDid(t *testing.T) {
	const n, commands, bytes = 10, "del 10, evalsha 30, get 30, pexpire 20, set 20, time 20, zpopmin 10", 5824
	srv := server.Redis(t)
	if _, err := srv.Do("SET", "k", "v", "NX", "GET"); err != nil {
		t.Skipf("the commands are those of Redis 7: %v", err)
	}
	cycle := func(s *suite, b driver.Backend) {
		l := s.lock(t, b, "key", time.Minute)
		drivertest.Renew(t, l, time.Minute)
		unlock(t, l)
	}
	period := func() string { // of ten seconds, each of which makes one more lock write the counter
		seconds := fmt.Sprint(do(t, srv, "TIME").([]any)[0])
		return seconds[:len(seconds)-1]
	}
	var stats, received string
	for from := ""; from != period(); {
		from = period()
		s := &suite{library: libraries[0], kind: server.KindRedis} // it counts the owners: those of a second try would have more digits
		b := s.open(t, s.url(srv.Addr(), ""))
		cycle(s, b)
		do(t, srv, "CONFIG", "RESETSTAT")
		for range n {
			cycle(s, b)
		}
		stats, received = fmt.Sprint(do(t, srv, "INFO", "commandstats")), fmt.Sprint(do(t, srv, "INFO", "stats"))
	}
	var ran []string
	for _, m := range regexp.MustCompile(`cmdstat_(\w+):calls=(\d+)`).FindAllStringSubmatch(stats, -1) {
		ran = append(ran, m[1]+" "+m[2])
	}
	slices.Sort(ran)
	if got := strings.Join(ran, ", "); got != commands {
		t.Errorf("%d locks ran %s; want %s", n, got, commands)
	}
	if _, received, _ = strings.Cut(received, "total_net_input_bytes:"); !strings.HasPrefix(received, fmt.Sprint(bytes)+"\r") {
		t.Errorf("the server received %.8s bytes, want %d", received, bytes)
	}
}
