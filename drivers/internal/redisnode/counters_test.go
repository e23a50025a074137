package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// countersEnd: a counter expires some minutes after its last use, so that keys used once leave
// nothing behind for long. Tokens still rise, whatever the clock does.
func (s *suite) countersEnd(t *testing.T) {
	srv := server.StartFor(t, s.kind, server.WithClock(), server.WithMaxMemory("64mb", "noeviction"))
	b := s.open(t, s.url(srv.Addr(), ""))
	count := func() int64 {
		n, err := srv.Do("DBSIZE")
		drivertest.Must(t, err)
		return n.(int64)
	}
	use := func(key string) uint64 {
		var l driver.Lease
		eventually(t, func() (err error) { // the client first notices the clock's step
			l, err = b.Acquire(context.Background(), s.ask(key, 10*time.Second))
			return err
		})
		fence := l.Grant().Fence
		drivertest.Must(t, l.Release(context.Background()))
		return fence
	}
	n := int64(2000)
	if testing.Short() {
		n = 500
	}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range n / 20 {
				use(fmt.Sprintf("once/%d/%d", i, j))
			}
		})
	}
	wg.Wait()
	if k := count(); k < n {
		t.Fatalf("%d keys are stored: the counters are not there at all", k)
	}
	drivertest.Must(t, srv.SetClock(5*time.Minute))
	use("other")
	eventually(t, func() error {
		if k := count(); k > 10 {
			return fmt.Errorf("%d keys are left of %d that were used once", k, n)
		}
		return nil
	})

	// The counter expires while the clock is ahead; then the clock falls behind its earlier time.
	first := use("ends")
	drivertest.Must(t, srv.SetClock(time.Hour))
	use("other")
	eventually(t, func() error {
		if n, err := srv.Do("EXISTS", "redlock1:fence:{ends}"); err != nil || n != int64(0) {
			return fmt.Errorf("the counter has not ended: %v, %w", n, err)
		}
		return nil
	})
	reader := drivertest.Grant(t, b, s.reads("read"))
	drivertest.Must(t, srv.SetClock(4*time.Minute))
	if second := use("ends"); second <= first {
		t.Fatalf("token %d follows %d, whose counter has ended", second, first)
	}
	drivertest.Renew(t, reader, time.Minute)
	var held *driver.HeldError
	if _, err := b.Acquire(context.Background(), s.ask("read", time.Minute)); !errors.As(err, &held) || held.Mode != driver.Shared {
		t.Errorf("beside a reader, after the clock fell: %v", err)
	}
	unlock(t, reader)
	if token := use("read"); token <= reader.Grant().Fence {
		t.Errorf("a writer's token %d follows a reader's %d", token, reader.Grant().Fence)
	}

	// The clock goes ahead and back, the server restarts with its memory, and counters expire
	// meanwhile.
	last := map[string]uint64{}
	rng := rand.New(rand.NewPCG(1, uint64(len(s.Scheme))))
	steps := []time.Duration{-time.Hour, -7 * time.Minute, -30 * time.Second, -3 * time.Second, 0, 0, time.Second, 15 * time.Second, 4 * time.Minute, 2 * time.Hour}
	offset := 5 * time.Minute
	for range 150 {
		key := fmt.Sprintf("k%d", rng.IntN(3))
		fence := use(key)
		if fence <= last[key] {
			t.Fatalf("token %d of %q follows %d", fence, key, last[key])
		}
		last[key] = fence
		use("look") // the guarantee excludes a clock that nobody looks at between two steps
		offset += steps[rng.IntN(len(steps))]
		drivertest.Must(t, srv.SetClock(offset))
		if rng.IntN(2) == 0 {
			use(fmt.Sprintf("look%d", rng.IntN(1000)))
		}
	}
}
