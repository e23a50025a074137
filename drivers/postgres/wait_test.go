package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// slack is what a slow machine may add.
const slack = 15 * time.Second

// waits starts a wait and returns when it stands in the server's line.
func waits(t *testing.T, b *postgres.Backend, line func() int64, key string, got func(driver.Lease, error)) {
	t.Helper()
	before := line()
	go func() {
		r := request(key, 10*time.Second)
		r.Wait = true
		got(b.Acquire(context.Background(), r))
	}()
	eventually(t, "the wait stands in line", func() bool { return line() == before+1 })
}

// Of one process only the first in its own line stands in the server's.
func TestAProcessWaitsForAKeyOnOneConnection(t *testing.T) {
	t.Parallel()
	const n = 20
	s := server.Postgres(t)
	db := admin(t, s.URL())
	// One session: beside one that does not answer for a while another is opened.
	a, b := opener(t, s.URL()), opener(t, s.URL()+"&max_sessions=1")
	l := must(t, a, request("k", time.Minute))
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			r := request("k", time.Minute)
			r.Wait = true
			l, err := b.Acquire(context.Background(), r)
			if err == nil {
				err = l.Release(context.Background())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "all stand in line", func() bool { return b.Queued("k") == n })
	eventually(t, "one waits on the server", func() bool { return count(t, db, advisory+" AND NOT granted") == 1 })
	if got := b.Conns(); got > 2 {
		t.Errorf("%d connections", got)
	}
	_ = l.Release(context.Background())
	wg.Wait()
}

func TestACancelledWaitLeavesTheServersLine(t *testing.T) {
	t.Parallel()
	s := server.Postgres(t)
	db := admin(t, s.URL())
	a, b := opener(t, s.URL()), opener(t, s.URL())
	l := must(t, a, request("k", time.Minute))
	for i := range 10 {
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() {
			r := request("k", time.Minute)
			r.Wait = true
			_, err := b.Acquire(ctx, r)
			done <- err
		}()
		eventually(t, "it waits", func() bool { return count(t, db, advisory+" AND NOT granted") == 1 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrHeld) {
			t.Fatalf("wait %d: %v", i, err)
		}
		eventually(t, "nobody waits", func() bool { return count(t, db, advisory+" AND NOT granted") == 0 })
	}
	if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: time.Minute}); err != nil {
		t.Error(err)
	}
}

func TestAReleaseNeverQueuesBehindAWait(t *testing.T) {
	t.Parallel()
	s := server.Postgres(t)
	db := admin(t, s.URL())
	line := func() int64 { return count(t, db, advisory+" AND NOT granted") }
	a, b := opener(t, s.URL()+"&max_sessions=1"), opener(t, s.URL())
	mine := must(t, a, request("mine", time.Minute))
	theirs := must(t, b, request("theirs", time.Minute))
	got := make(chan driver.Lease, 1)
	waits(t, a, line, "theirs", func(l driver.Lease, err error) {
		if err != nil {
			t.Error(err)
		}
		got <- l
	})
	if err := mine.Release(context.Background()); err != nil {
		t.Errorf("a release beside a wait: %v", err)
	}
	_ = theirs.Release(context.Background())
	if l := <-got; l != nil {
		_ = l.Release(context.Background())
	}
}

func TestWaitsBeyondTheirConnectionsPollAndSaySo(t *testing.T) {
	t.Parallel()
	s := server.Postgres(t)
	db := admin(t, s.URL())
	var mu sync.Mutex
	var events []driver.Notice
	opened, err := new(postgres.Driver).Open(&driver.Config{
		DSN:    s.URL() + "&max_sessions=1&max_waiters=1",
		Notify: func(e driver.Notice) { mu.Lock(); events = append(events, e); mu.Unlock() },
	})
	if err != nil {
		t.Fatal(err)
	}
	b := opened.(*postgres.Backend)
	defer b.Close() //nolint:errcheck // the test's own
	other := opener(t, s.URL())
	one, two := must(t, other, request("one", time.Minute)), must(t, other, request("two", time.Minute))
	got := make(chan driver.Lease, 2)
	keep := func(l driver.Lease, err error) {
		if err != nil {
			t.Error(err)
		}
		got <- l
	}
	waits(t, b, func() int64 { return count(t, db, advisory+" AND NOT granted") }, "one", keep)
	go func() {
		r := request("two", time.Minute)
		r.Wait = true
		keep(b.Acquire(context.Background(), r))
	}()
	eventually(t, "an event says that it polls", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(events) == 1 && events[0].Kind == driver.NoticeDegraded && strings.Contains(events[0].Detail, "max_waiters")
	})
	_ = two.Release(context.Background())
	<-got
	if n := b.Conns(); n > 2 {
		t.Errorf("%d connections", n)
	}
	_ = one.Release(context.Background())
	<-got
}

// Waiters behind a dead network are granted their locks, and nobody confirms. Their
// processes ask the server to cancel the waits, some just when the locks come.
func TestAGrantThatNobodyConfirmsIsTakenBackWithinASecond(t *testing.T) {
	t.Parallel()
	const n = 8
	s := server.Postgres(t)
	db := admin(t, s.URL())
	a := opener(t, s.URL())
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var locks []driver.Lease
	var ways []*fault.Proxy
	for i := range n {
		r := request(fmt.Sprint("k", i), time.Minute)
		locks = append(locks, must(t, a, r))
		p := fault.NewProxy(t, s.Addr())
		ways = append(ways, p)
		b := opener(t, through(s, p))
		wg.Go(func() {
			w := request(r.Key, time.Minute)
			w.Wait = true
			_, _ = b.Acquire(ctx, w)
		})
	}
	eventually(t, "all wait", func() bool { return count(t, db, advisory+" AND NOT granted") == n })
	for i, p := range ways {
		p.HalfOpen(fault.ToClient)
		start := time.Now()
		if err := locks[i].Release(context.Background()); err != nil {
			t.Error(err)
		}
		wg.Go(func() {
			r := request(fmt.Sprint("k", i), time.Minute)
			r.Wait = true
			next, err := a.Acquire(ctx, r)
			if err != nil {
				t.Errorf("never taken back, not after %v: %v", time.Since(start), err)
				return
			}
			t.Logf("taken back after %v", time.Since(start))
			_ = next.Release(context.Background())
		})
	}
	wg.Wait()
}

// The server is told nothing half: wherever a connection stops, at a message's end or
// within one, the lock goes with the session's timeout.
func TestAConnectionCutAnywhereFreesItsLockInTime(t *testing.T) {
	t.Parallel()
	s := server.Postgres(t, server.WithSetting("max_connections", "200"))
	direct := opener(t, s.URL())
	const ttl = 300 * time.Millisecond
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			p, err := fault.Start(s.Addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Close() //nolint:errcheck // the test's own
			b, err := open(through(s, p))
			if err != nil {
				t.Error(err)
				return
			}
			defer b.Close() //nolint:errcheck // the test's own
			key := fmt.Sprint("k", i)
			l, err := b.Acquire(context.Background(), request(key, ttl))
			if err != nil {
				t.Logf("%s: %v", key, err)
				return
			}
			cut := time.Now()
			if i%2 == 0 {
				p.StopAtMessage(fault.ToServer, i/2%4, fault.Postgres, fault.Freeze)
			} else {
				p.StopAfter(fault.ToServer, int64(i), fault.Freeze)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*ttl)
			for ctx.Err() == nil { // locks, unlocks and heartbeats, until one is cut
				_, _ = l.Renew(ctx, &driver.Renewal{TTL: ttl})
				if x, err := b.Acquire(ctx, request(key+"x", ttl)); err == nil {
					go x.Release(ctx) //nolint:errcheck // cut
				}
			}
			cancel()
			bound := 2*ttl + ttl + postgres.Grace(ttl)
			for {
				if l, err := direct.Acquire(context.Background(), request(key, ttl)); err == nil {
					_ = l.Release(context.Background())
					break
				}
				if time.Since(cut) > bound+20*time.Second {
					t.Errorf("%s: held %v after the cut", key, time.Since(cut))
					return
				}
				<-time.After(5 * time.Millisecond)
			}
			if took := time.Since(cut); took > bound+slack {
				t.Errorf("%s: freed %v after the cut, the bound is %v", key, took, bound)
			}
		})
	}
	wg.Wait()
}
