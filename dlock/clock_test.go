package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// granting is a backend that always grants.
type granting struct{ releases atomic.Int64 }

func (*granting) Info() driver.Info {
	return driver.Info{Name: "granting", MinTTL: driver.MinTTL, MaxTTL: time.Hour}
}
func (*granting) Close() error { return nil }
func (b *granting) Acquire(_ context.Context, r *driver.Request) (driver.Lease, error) {
	return &grant{driver.Grant{Expires: driver.Expires(time.Now(), r.TTL)}, b}, nil
}

type grant struct {
	g driver.Grant
	b *granting
}

func (g *grant) Grant() driver.Grant           { return g.g }
func (g *grant) Release(context.Context) error { g.b.releases.Add(1); return nil }
func (g *grant) Renew(_ context.Context, r *driver.Renewal) (driver.Grant, error) {
	return driver.Grant{Expires: driver.Expires(time.Now(), r.TTL)}, nil
}

// sleeper is a client on a machine that can sleep.
func sleeper(t *testing.T, opts ...Option) (*Client, *atomic.Int64) {
	t.Helper()
	c, err := New(&granting{}, append([]Option{WithLogger(nil)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	slept := new(atomic.Int64)
	slept.Store(int64(time.Hour)) // since it booted
	c.clock = boot.New(boot.Source{Suspended: func() time.Duration { return time.Duration(slept.Load()) }})
	return c, slept
}

func TestErrKnowsOfASleepBeforeAnyTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, slept := sleeper(t)
		l, err := c.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := l.Context(t.Context())
		defer cancel()
		slept.Add(int64(9 * time.Second))
		if l.Err() != nil {
			t.Errorf("after 9 s of sleep: %v", l.Err())
		}
		slept.Add(int64(time.Second))
		if ctx.Err() == nil || !errors.Is(l.Err(), ErrLost) || !errors.Is(context.Cause(ctx), ErrLost) {
			t.Errorf("after 10 s of sleep: %v, %v", ctx.Err(), l.Err())
		}
	})
}

// TestAStoppedProcessBlamesNoBackend: a process that was stopped (SIGSTOP) lost its lease, and the
// log says nothing of the backend, which was never away.
func TestAStoppedProcessBlamesNoBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		c, slept := sleeper(t, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		for _, key := range []string{"a", "b"} {
			if _, err := c.Lock(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
		slept.Add(int64(time.Minute))
		time.Sleep(time.Minute)
		if _, err := c.Lock(t.Context(), "afterwards"); err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if got := log.String(); strings.Contains(got, "available") || !strings.Contains(got, "lease lost") {
			t.Errorf("the log says:\n%s", got)
		}
	})
}

func TestATickNoticesASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, slept := sleeper(t)
		l, err := c.Lock(t.Context(), "k", WithTTL(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		woke := time.Now()
		slept.Add(int64(10 * time.Minute))
		<-l.Done()
		if took := time.Since(woke); took > tick {
			t.Errorf("Done came %v after the machine woke", took)
		}
		if l, err = c.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if l.Err() != nil {
			t.Errorf("a lease that was taken after the sleep: %v", l.Err())
		}
	})
}

func TestAnEndedLeaseIsForgotten(t *testing.T) {
	c, _ := sleeper(t)
	for range 10 {
		l, err := c.Lock(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Unlock(); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(c.leases) + len(c.queues.byKey); n != 0 {
		t.Errorf("%d entries are left of leases that ended", n)
	}
}

// The first event of a kind has a line, and then every ten seconds a count; Close tells what is left.
func TestWhatIsLoggedSeldomIsCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		c, _ := sleeper(t, WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		for i, events := range []int{3, 2, 0, 2} {
			for _, s := range []*seldom{&c.outages, &c.losts, &c.polling} {
				for range events {
					s.log(t.Context())
				}
			}
			if i < 3 {
				time.Sleep(10*time.Second + 1)
			}
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		for _, s := range []*seldom{&c.outages, &c.losts, &c.polling} {
			var got []string
			for line := range strings.Lines(log.String()) {
				switch {
				case strings.Contains(line, s.first):
					got = append(got, "first")
				case strings.Contains(line, s.more):
					_, times, _ := strings.Cut(line, "times=")
					got = append(got, strings.TrimSpace(times))
				}
			}
			if want := "[first 2 2 first 1]"; fmt.Sprint(got) != want {
				t.Errorf("%s: got %v, want %s:\n%s", s.first, got, want, log.String())
			}
		}
	})
}

func TestTheEarliestStepIsFirstInTheHeap(t *testing.T) {
	var h leaseHeap
	for range 100 {
		h = append(h, &Lease{stepAt: boot.Instant(rand.N(1000))})
		h.fix(len(h) - 1)
	}
	for range 1000 {
		i := rand.N(len(h))
		h[i].stepAt = boot.Instant(rand.N(1000))
		h.fix(i)
		for i, l := range h {
			if h[(i-1)/2].stepAt > l.stepAt && i > 0 || int(l.index) != i {
				t.Fatalf("%d, with index %d, is below %d", l.stepAt, l.index, h[max(i-1, 0)/2].stepAt)
			}
		}
	}
}

// A lease that is over by the clock is none that Close releases: a paused holder keeps its grace.
func TestCloseReleasesNothingThatEndedInASleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, slept := sleeper(t)
		if _, err := c.Lock(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		slept.Add(int64(time.Minute))
		if err, n := c.Close(), c.backend.(*granting).releases.Load(); err != nil || n != 0 || c.count.lost.Load() != 1 {
			t.Errorf("Close = %v, and %d releases", err, n)
		}
	})
}

// A renewal that others wait behind has a part of the TTL, or ten times what one takes of late; and a third of
// the TTL if hardly any succeeds.
func TestARenewalsPatience(t *testing.T) {
	c, _ := sleeper(t)
	l := &Lease{c: c, ttl: 9 * time.Second}
	var r renewals
	c.count.held.Store(512)
	if d := r.patience(l); d != 3*time.Second {
		t.Errorf("%v, though each has a place", d)
	}
	c.count.held.Store(3072)
	for _, tt := range []struct {
		fails int
		took  time.Duration
		want  time.Duration
	}{
		{512, time.Hour, 500 * time.Millisecond}, {1, time.Hour, 3 * time.Second}, {0, 1600 * time.Millisecond, time.Second},
		{512, time.Hour, time.Second}, {1, time.Hour, 3 * time.Second},
	} {
		for range tt.fails {
			r.note(ErrUnavailable, tt.took)
		}
		if tt.fails == 0 {
			r.note(nil, tt.took)
		}
		if d := r.patience(l); d.Round(time.Millisecond) != tt.want {
			t.Errorf("%+v: %v", tt, d)
		}
	}
}

// What is known of keys takes bounded memory: a new key beyond the bound takes the place of all others.
func TestWhatIsKnownOfKeysIsBounded(t *testing.T) {
	c, _ := sleeper(t)
	for i := range 1024 {
		c.queues.heat(&request{name: strconv.Itoa(i)})
	}
	for _, key := range []string{"0", "new"} {
		c.queues.heat(&request{name: key})
		if n := len(c.queues.hot); key == "0" && n != 1024 || key == "new" && n != 1 {
			t.Errorf("%d keys are known after %q", n, key)
		}
	}
}

// Unlock looks at the clock after it has asked whether the client is closed, and Close before it ends a
// lease: meanwhile the other one comes.
func TestALockIsReleasedOnceThoughUnlockAndCloseMeet(t *testing.T) {
	for _, unlockFirst := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			c, _ := sleeper(t)
			l, err := c.Lock(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			unlocked, closed := make(chan error, 1), make(chan error, 1)
			unlock, shut := func() { unlocked <- l.Unlock() }, func() { closed <- c.Close() }
			first, second := shut, unlock
			if unlockFirst {
				first, second = unlock, func() { go shut(); synctest.Wait() }
			}
			var armed atomic.Bool
			c.clock = boot.New(boot.Source{Suspended: func() time.Duration {
				if armed.CompareAndSwap(true, false) {
					second()
				}
				return 0
			}})
			armed.Store(true)
			first()
			if err := <-unlocked; !errors.Is(err, ErrClosed) {
				t.Errorf("Unlock = %v, want ErrClosed", err)
			}
			if err, n := <-closed, c.backend.(*granting).releases.Load(); err != nil || n != 1 {
				t.Errorf("Close = %v, and %d releases", err, n)
			}
		})
	}
}
