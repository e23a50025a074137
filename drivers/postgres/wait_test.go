package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// slack is the delay that a slow machine may add.
const slack = 15 * time.Second

// waits starts a wait and returns when it is in the server's queue.
func waits(t *testing.T, b *postgres.Backend, line func() int64, key string, got func(driver.Lease, error)) {
	t.Helper()
	before := line()
	go func() {
		r := request(key, 10*time.Second)
		r.Wait = true
		got(b.Acquire(context.Background(), r))
	}()
	eventually(t, "the wait is in the server's queue", func() bool { return line() == before+1 })
}

// Of one process's waiters only the first is in the server's queue.
func TestAProcessWaitsForAKeyOnOneConnection(t *testing.T) {
	t.Parallel()
	const n = 20
	s := database(t)
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
	eventually(t, "all callers are in the queue", func() bool { return b.Queued("k") == n })
	eventually(t, "one waits on the server", func() bool { return count(t, db, advisory+" AND NOT granted") == 1 })
	if got := b.Conns(); got > 2 {
		t.Errorf("%d connections", got)
	}
	_ = l.Release(context.Background())
	wg.Wait()
}

func TestACancelledWaitLeavesTheServersLine(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	a, b := opener(t, s.URL()), opener(t, s.URL())
	l := must(t, a, request("k", time.Minute))
	for i := range rounds(10, 3) {
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
	s := database(t)
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
	s := database(t)
	db := admin(t, s.URL())
	var events redlocktest.NoticeLog
	opened, err := new(postgres.Driver).Open(&driver.Config{
		DSN:    s.URL() + "&max_sessions=1&max_waiters=1",
		Notify: events.Add,
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
		return len(events.All()) == 1 && len(events.Of(driver.NoticeDegraded, "max_waiters")) == 1
	})
	_ = two.Release(context.Background())
	<-got
	if n := b.Conns(); n > 2 {
		t.Errorf("%d connections", n)
	}
	_ = one.Release(context.Background())
	<-got
}

// Waiters behind a dead network get their locks and cannot confirm them. An administrator
// cancels their waits, some just when the locks are granted.
func TestAGrantThatNobodyConfirmsIsTakenBackWithinASecond(t *testing.T) {
	t.Parallel()
	const n = 8
	s := database(t)
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
				t.Errorf("the server has not taken the lock back after %v: %v", time.Since(start), err)
				return
			}
			t.Logf("taken back after %v", time.Since(start))
			_ = next.Release(context.Background())
		})
	}
	wg.Wait()
}
