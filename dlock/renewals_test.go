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
)

func TestRenewalsAreSpreadAndBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const leases, ttl = 3000, 10 * time.Second
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
