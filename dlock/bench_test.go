package dlock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// A backend whose renewals hang, even beyond the end of their contexts, costs a bounded number of
// goroutines, however many leases there are, and all leases end in time. Held leases cost none.
func TestRenewalsThatHangCostABoundedNumberOfGoroutines(t *testing.T) {
	for _, leases := range []int{100, 3000} {
		synctest.Test(t, func(t *testing.T) {
			s, free := newSpy(), make(chan struct{})
			defer close(free)
			s.renew = func(context.Context, *driver.Renewal) error { <-free; return errOutage }
			c := newSpyClient(t, s)
			before, most := goroutines(), 0
			for i := range leases {
				lock(t, c, fmt.Sprint(i))
			}
			if n := goroutines() - before; n > 0 {
				t.Errorf("%d held leases cost %d goroutines", leases, n)
			}
			for range 30 {
				time.Sleep(time.Second)
				synctest.Wait() // the end of a context's time has a goroutine for a moment
				most = max(most, goroutines()-before)
			}
			t.Logf("%d leases: %d goroutines", leases, most)
			if most > min(leases, 512)+5 || c.Stats().Held != 0 {
				t.Errorf("%d leases cost %d goroutines, and %d are held after 30 s", leases, most, c.Stats().Held)
			}
		})
	}
}

// What dlock itself costs: a lock and an unlock on memory.
func BenchmarkLockUnlock(b *testing.B) {
	c, err := dlock.New(memory.New())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	b.ReportAllocs()
	for b.Loop() {
		l, err := c.Lock(b.Context(), "k")
		if err != nil {
			b.Fatal(err)
		}
		if err := l.Unlock(); err != nil {
			b.Fatal(err)
		}
	}
}
