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

func TestThirtyTwoProcessesAreServedInTheOrderInWhichTheyCame(t *testing.T) {
	s := server.Postgres(t)
	db := admin(t, s.URL())
	line := func() int64 { return count(t, db, advisory+" AND NOT granted") }
	first := must(t, opener(t, s.URL()), request("k", time.Minute))
	const n = 32
	var mu sync.Mutex
	var order []int
	last := first.Grant().Fence
	var wg sync.WaitGroup
	for i := range n {
		wg.Add(1)
		waits(t, opener(t, s.URL()+"&max_sessions=1"), line, "k", func(l driver.Lease, err error) {
			defer wg.Done()
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			order = append(order, i)
			if f := l.Grant().Fence; f <= last {
				t.Errorf("token %d after %d", f, last)
			}
			last = l.Grant().Fence
			mu.Unlock()
			if err := l.Release(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	if err := first.Release(context.Background()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	for i, got := range order {
		if i != got {
			t.Fatalf("the order is %v", order)
		}
	}
}

func TestACancelledWaitLeavesTheServersLine(t *testing.T) {
	s := server.Postgres(t)
	db := admin(t, s.URL())
	a, b := opener(t, s.URL()), opener(t, s.URL())
	l := must(t, a, request("k", time.Minute))
	for i := range 10 { // the first with the attempt before the wait, the others at once
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
	s := server.Postgres(t)
	db := admin(t, s.URL())
	var mu sync.Mutex
	var events []driver.Event
	opened, err := new(postgres.Driver).Open(&driver.Config{
		DSN:   s.URL() + "&max_sessions=1&max_waiters=1",
		Event: func(e driver.Event) { mu.Lock(); events = append(events, e); mu.Unlock() },
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
		return len(events) == 1 && events[0].Kind == driver.Degraded && strings.Contains(events[0].Detail, "max_waiters")
	})
	_ = two.Release(context.Background())
	<-got
	if n := b.Conns(); n > 2 {
		t.Errorf("%d connections", n)
	}
	_ = one.Release(context.Background())
	<-got
}

// A waiter behind a dead network is granted its lock, and nobody confirms.
func TestAGrantThatNobodyConfirmsIsTakenBackWithinASecond(t *testing.T) {
	s := server.Postgres(t)
	db := admin(t, s.URL())
	p := fault.NewProxy(t, s.Addr())
	b, a := opener(t, through(s, p)), opener(t, s.URL())
	l := must(t, a, request("k", time.Minute))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r := request("k", time.Minute)
		r.Wait = true
		_, _ = b.Acquire(ctx, r)
	}()
	eventually(t, "it waits", func() bool { return count(t, db, advisory+" AND NOT granted") == 1 })
	p.HalfOpen(fault.ToClient)
	start := time.Now()
	_ = l.Release(context.Background())
	r := request("k", time.Minute)
	r.Wait = true
	next := must(t, a, r)
	if took := time.Since(start); took > 10*time.Second { // one second where nothing else runs
		t.Errorf("taken back after %v", took)
	}
	_ = next.Release(context.Background())
	cancel()
	<-done
}

// The server is told nothing half: wherever a connection stops, at a message's end or
// within one, the lock goes with the session's timeout.
func TestAConnectionCutAnywhereFreesItsLockInTime(t *testing.T) {
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
			if took := time.Since(cut); took > bound+2*time.Second {
				t.Errorf("%s: freed %v after the cut, the bound is %v", key, took, bound)
			}
		})
	}
	wg.Wait()
}
