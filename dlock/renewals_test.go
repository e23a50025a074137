package dlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

func TestRenewalsAreSpreadAndBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const leases, ttl = 1000, 10 * time.Second
		s := newSpy()
		const interval = 100 * time.Millisecond
		begin := time.Now()
		var mu sync.Mutex
		now, most, byInterval := 0, 0, map[time.Duration]int{}
		s.renew = func(context.Context, *driver.Renewal) error {
			add := func(n int) {
				mu.Lock()
				defer mu.Unlock()
				now += n
				most = max(most, now)
				byInterval[time.Since(begin)/interval] += max(n, 0)
			}
			add(1)
			defer add(-1)
			time.Sleep(10 * time.Millisecond)
			return nil
		}
		c := newSpyClient(t, s, dlock.WithTTL(ttl))
		for i := range leases {
			lock(t, c, fmt.Sprint(i))
		}
		time.Sleep(time.Minute)
		if held := c.Stats().Held; held != leases {
			t.Errorf("%d of %d leases are held", held, leases)
		}
		mu.Lock()
		defer mu.Unlock()
		if most > 512 {
			t.Errorf("%d renewals at a time", most)
		}
		// After a while they are spread over TTL/3: at no time come four times as many as on
		// the average.
		for i, n := range byInterval {
			if i > 30*time.Second/interval && n > 4*leases*int(interval)/int(ttl/3) {
				t.Errorf("%d renewals within %v", n, interval)
			}
		}
	})
}

func TestAServerThatHangsTakesNoLeaseOfTheOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const leases, ttl = 3000, 10 * time.Second
		s := newSpy()
		s.renew = func(ctx context.Context, r *driver.Renewal) error {
			if r.TTL != ttl {
				return hang(ctx)
			}
			return nil
		}
		c := newSpyClient(t, s)
		for i := range leases {
			if i%3 == 0 {
				lock(t, c, fmt.Sprint(i), dlock.WithTTL(ttl+time.Second)) // of the server that hangs
			} else {
				lock(t, c, fmt.Sprint(i), dlock.WithTTL(ttl))
			}
		}
		time.Sleep(time.Minute)
		if held := c.Stats().Held; held != leases*2/3 {
			t.Errorf("%d leases are held, want %d", held, leases*2/3)
		}
	})
}

// With so many leases, a third of the TTL leaves each renewal less time than this server takes. A client that
// gave up each of them after that time would lose all its leases.
func TestAServerThatIsSlowTakesNoLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const leases = 3000
		s := newSpy()
		c := newSpyClient(t, s)
		for i := range leases {
			lock(t, c, fmt.Sprint(i))
		}
		s.set(func() {
			s.renew = func(ctx context.Context, _ *driver.Renewal) error {
				select {
				case <-time.After(700 * time.Millisecond):
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		})
		time.Sleep(20 * time.Second)
		if held := c.Stats().Held; held != leases {
			t.Errorf("%d of %d leases are held", held, leases)
		}
	})
}

func TestLeasesOfTheShortestTTLsArePromptBesideManyOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.renew = func(context.Context, *driver.Renewal) error { time.Sleep(2 * time.Millisecond); return nil }
		c := newSpyClient(t, s)
		for i := range 2000 {
			lock(t, c, fmt.Sprint(i))
		}
		short := lock(t, c, "short", dlock.WithTTL(100*time.Millisecond))
		time.Sleep(8 * time.Second)
		if err := short.Err(); err != nil {
			t.Error(err)
		}
	})
}

// A renewal may take a third of the TTL, also that of an Unlock that keeps the lock; and one that failed
// is tried again after TTL/20, more or less.
func TestARenewalMayTakeAThirdOfTheTTLAndIsTriedAgainSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.renew = func(ctx context.Context, _ *driver.Renewal) error {
			select {
			case <-time.After(3 * time.Second):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		c := newSpyClient(t, s)
		l, kept := lock(t, c, "k"), lock(t, c, "kept", dlock.WithMinHold(8*time.Second))
		unlock(t, kept)
		time.Sleep(time.Minute)
		if n := c.Stats().RenewalFailed; l.Err() != nil || n != 0 {
			t.Errorf("%d renewals failed, and the lease is over: %v", n, l.Err())
		}
		unlock(t, l)

		var last time.Time
		s.set(func() {
			s.renew = func(context.Context, *driver.Renewal) error {
				if after := time.Since(last); !last.IsZero() && (after < 250*time.Millisecond || after >= 750*time.Millisecond) {
					t.Errorf("it is tried again after %v", after)
				}
				last = time.Now()
				return errOutage
			}
		})
		for range 10 {
			last = time.Time{}
			<-lock(t, c, "k").Done()
			if last.IsZero() {
				t.Fatal("it was not tried")
			}
			s.Backend.(*memory.Backend).Expire("k")
		}
	})
}
