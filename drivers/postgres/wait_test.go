package postgres_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// slack is the delay that a slow machine may add.
const slack = time.Minute

// waits starts a wait and returns when it is in the server's queue.
func waits(t *testing.T, b *postgres.Backend, queued func() int64, key string, got func(driver.Lease, error)) {
	t.Helper()
	before := queued()
	go func() { got(awaited(context.Background(), b, request(key, 10*time.Second))) }()
	eventually(t, "the wait is in the server's queue", func() bool { return queued() == before+1 })
}

// Of one process's waiters only the first is in the server's queue.
func TestAProcessWaitsForAKeyOnOneConnection(t *testing.T) {
	t.Parallel()
	const n = 20
	s := database(t)
	db := admin(t, s.URL())
	a, b := opener(t, s.URL()), opener(t, s.URL())
	l := must(t, a, request("k", time.Minute))
	var wg sync.WaitGroup
	for range n {
		wg.Go(func() {
			l, err := awaited(context.Background(), b, request("k", time.Minute))
			if err == nil {
				err = release(l)
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

func TestAReleaseNeverQueuesBehindAWait(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	queued := func() int64 { return count(t, db, advisory+" AND NOT granted") }
	a, b := opener(t, s.URL()), opener(t, s.URL())
	mine := must(t, a, request("mine", time.Hour))
	theirs := must(t, b, request("theirs", time.Hour))
	got := make(chan driver.Lease, 1)
	waits(t, a, queued, "theirs", func(l driver.Lease, err error) {
		if err != nil {
			t.Error(err)
		}
		got <- l
	})
	if err := release(mine); err != nil {
		t.Errorf("a release beside a wait: %v", err)
	}
	_ = release(theirs)
	if l := <-got; l != nil {
		_ = l.Release(context.Background())
	}
}

func TestWaitsBeyondTheirConnectionsPollAndSaySo(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	var notices drivertest.NoticeLog
	opened, err := new(postgres.Driver).Open(&driver.Config{
		DSN:    s.URL() + "&max_conns=2",
		Notify: notices.Add,
	})
	if err != nil {
		t.Fatal(err)
	}
	b := opened.(*postgres.Backend)
	defer b.Close() //nolint:errcheck // the test's own
	other := opener(t, s.URL())
	one, two := must(t, other, request("one", time.Hour)), must(t, other, request("two", time.Hour))
	got := make(chan driver.Lease, 2)
	keep := func(l driver.Lease, err error) {
		if err != nil {
			t.Error(err)
		}
		got <- l
	}
	waits(t, b, func() int64 { return count(t, db, advisory+" AND NOT granted") }, "one", keep)
	go func() { keep(awaited(context.Background(), b, request("two", time.Minute))) }()
	eventually(t, "a notice says that it polls", func() bool { return len(notices.Of(driver.NoticeDegraded, "max_conns")) > 0 })
	_ = release(two)
	<-got
	if n := b.Conns(); n > 2 {
		t.Errorf("%d connections", n)
	}
	_ = release(one)
	<-got
}

// Waiters behind a dead network get their locks. The server takes a lock back after the TTL and its
// grace, as from a holder that died.
func TestAGrantThatNobodyReceivesIsTakenBack(t *testing.T) {
	t.Parallel()
	const n = 8
	s := database(t)
	db := admin(t, s.URL())
	a := opener(t, s.URL())
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for i := range n {
		key := fmt.Sprint("k", i)
		l := must(t, a, request(key, time.Hour))
		p := fault.NewProxy(t, s.Addr())
		b := opener(t, through(s, p))
		var cut atomic.Bool
		wg.Go(func() {
			for !cut.Load() {
				r := request(key, time.Second)
				r.Wait = true
				_, _ = b.Acquire(ctx, r)
			}
		})
		eventually(t, key+" is waited for", func() bool {
			return count(t, db, advisory+" AND NOT granted AND classid::int8 << 32 | objid::int8 = $1", a.Number(key)) == 1
		})
		cut.Store(true)
		p.HalfOpen(fault.ToClient)
		start := time.Now()
		if err := release(l); err != nil {
			t.Error(err)
		}
		wg.Go(func() {
			soon, cancel := context.WithTimeout(ctx, patience)
			defer cancel()
			next, err := awaited(soon, a, request(key, time.Minute))
			if err != nil {
				t.Errorf("the server has not taken the lock back after %v: %v", time.Since(start), err)
				return
			}
			t.Logf("taken back after %v", time.Since(start))
			_ = release(next)
		})
	}
	wg.Wait()
}
