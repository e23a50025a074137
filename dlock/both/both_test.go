package both_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/dlock/both"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/file"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/redlocktest"
)

func TestConformance(t *testing.T) {
	old, new := memory.New(), memory.New()
	redlocktest.Run(t, redlocktest.Harness{
		Open:    func() (driver.Backend, error) { return both.New(old.Peer(), new.Peer()), nil },
		Virtual: true,
	})
}

// skewed is a backend whose servers' clock is ahead.
type skewed struct {
	driver.Backend
	ahead time.Duration
}

type skewedLease struct {
	driver.Lease
	by time.Duration
}

func (s skewed) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := s.Backend.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return skewedLease{l, s.ahead}, nil
}

func (l skewedLease) Grant() driver.Grant {
	g := l.Lease.Grant()
	g.Fence += uint64(l.by / time.Microsecond)
	return g
}

// lagging is a backend whose tokens follow the clock only when they would be further behind it.
type lagging struct {
	driver.Backend
	by   time.Duration // less than zero: they do not follow it
	last uint64
}

func (g *lagging) Info() driver.Info {
	info := g.Backend.Info()
	info.TokenLag = g.by
	return info
}

func (g *lagging) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := g.Backend.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	now := l.Grant().Fence
	if g.last++; g.by >= 0 && now > g.last+uint64(g.by/time.Microsecond) {
		g.last = now
	}
	return skewedLease{l, time.Duration(int64(g.last)-int64(now)) * time.Microsecond}, nil
}

func client(t *testing.T, b driver.Backend) *dlock.Client {
	t.Helper()
	c, err := dlock.New(b, dlock.WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func lock(t *testing.T, c dlock.Locker, opts ...dlock.LockOption) *dlock.Lease {
	t.Helper()
	l, err := c.Lock(t.Context(), "k", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func unlock(t *testing.T, l *dlock.Lease) {
	t.Helper()
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
}

// free fails unless nobody has the key on any of the spaces.
func free(t *testing.T, spaces ...*memory.Backend) {
	t.Helper()
	for i, space := range spaces {
		if s, err := space.Lookup(t.Context(), "k"); err != nil || len(s.Holders) > 0 {
			t.Errorf("space %d: a lock is left: %+v, %v", i, s, err)
		}
	}
}

// rollout runs six instances, which change from each locker to the next, one instance after the
// other. It returns how often two instances had the lock at once, and how often a token was not
// larger than all before it.
func rollout(t *testing.T, steps ...func(instance int) dlock.Locker) (doubles, tokens int) {
	const instances = 6
	var (
		mu   sync.Mutex
		in   int
		last uint64
	)
	work := func(ctx context.Context, locks dlock.Locker) {
		for ctx.Err() == nil {
			l, err := locks.Lock(ctx, "k", dlock.WithTTL(3*time.Second))
			if err != nil {
				continue
			}
			mu.Lock()
			if in++; in > 1 {
				doubles++
			}
			if l.Fence() <= last {
				tokens++
			}
			last = l.Fence()
			mu.Unlock()
			time.Sleep(time.Duration(rand.IntN(int(20 * time.Millisecond))))
			mu.Lock()
			in--
			mu.Unlock()
			_ = l.Unlock()
			time.Sleep(time.Duration(rand.IntN(int(20 * time.Millisecond))))
		}
	}
	start := time.Now()
	var wg sync.WaitGroup
	for i := range instances {
		wg.Go(func() {
			for s, step := range steps {
				// Instance i changes to step s at this time; the rollouts follow each other.
				until := start.Add(time.Duration(s+1)*instances*time.Second + time.Duration(i)*time.Second/2)
				ctx, cancel := context.WithDeadline(t.Context(), until)
				work(ctx, step(i))
				cancel()
			}
		})
	}
	wg.Wait()
	return doubles, tokens
}

// The three steps of a rollout: old, both, new.
func TestARolloutOverBothNeverLetsTwoHaveTheLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		oldSpace, newSpace := memory.New(), memory.New()
		var olds, boths, news, backs []*dlock.Client
		for range 6 {
			ahead, behind := skewed{newSpace.Peer(), 40 * time.Millisecond}, skewed{newSpace.Peer(), -40 * time.Millisecond}
			olds = append(olds, client(t, oldSpace.Peer()))
			boths = append(boths, client(t, both.New(oldSpace.Peer(), ahead)))
			news = append(news, client(t, ahead))
			backs = append(backs, client(t, both.New(oldSpace.Peer(), behind)))
		}
		of := func(all []*dlock.Client) func(int) dlock.Locker { return func(i int) dlock.Locker { return all[i] } }
		if doubles, tokens := rollout(t, of(olds), of(boths), of(news)); doubles != 0 || tokens != 0 {
			t.Errorf("%d times two had the lock, %d tokens did not rise", doubles, tokens)
		}
		if _, tokens := rollout(t, of(backs), of(olds)); tokens != 0 {
			t.Errorf("back again: %d tokens did not rise", tokens)
		}
		if doubles, _ := rollout(t, of(olds), of(news)); doubles == 0 {
			t.Error("without both no two instances had the lock at once: this test shows nothing")
		}
	})
}

func TestALeaseOfBothIsLostWithEither(t *testing.T) {
	for which := range 2 {
		synctest.Test(t, func(t *testing.T) {
			spaces := []*memory.Backend{memory.New(), memory.New()}
			c := client(t, both.New(spaces[0].Peer(), spaces[1].Peer()))
			l := lock(t, c)
			time.Sleep(time.Minute) // renewed
			if err := l.Err(); err != nil {
				t.Fatal(err)
			}
			// The losses of peers are told by the next renewal.
			spaces[which].Expire("k")
			<-l.Done()
			if !errors.Is(l.Err(), dlock.ErrLost) {
				t.Errorf("Err = %v", l.Err())
			}
			_ = l.Unlock()
			free(t, spaces...)
		})
		synctest.Test(t, func(t *testing.T) {
			// In an outage of either the lease ends by its deadline.
			backends := []*memory.Backend{memory.New(), memory.New()}
			l := lock(t, client(t, both.New(backends[0], backends[1])))
			backends[which].Fail(errors.New("connection refused"))
			start := time.Now()
			<-l.Done()
			if took := time.Since(start); took > dlock.DefaultTTL {
				t.Errorf("it lasted %v", took)
			}
			backends[which].Fail(nil)
			_ = l.Unlock()
		})
	}
}

func TestBothGivesOldBackWhereNewIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, new := memory.New(), memory.New()
		c := client(t, both.New(old.Peer(), new.Peer()))
		release := new.Hold("k")
		_, err := c.TryLock(t.Context(), "k")
		if !errors.Is(err, dlock.ErrHeld) || !strings.Contains(err.Error(), "new backend") {
			t.Errorf("TryLock: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := c.Lock(ctx, "k"); !errors.Is(err, dlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock: %v", err)
		}
		free(t, old)
		release()
		unlock(t, lock(t, c))
		free(t, old, new)
	})
}

// The old lock is renewed during the wait for the new one, and if it is lost, no caller gets a
// lease.
func TestBothBeginsAgainIfOldIsLostOnTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, new := memory.New(), memory.New()
		c := client(t, both.New(old.Peer(), new.Peer()))
		release := new.Hold("k")
		var l *dlock.Lease
		var wg sync.WaitGroup
		wg.Go(func() { l = lock(t, c) })
		time.Sleep(time.Minute)
		before, err := old.Lookup(t.Context(), "k")
		if err != nil || len(before.Holders) != 1 {
			t.Fatalf("old is not held during the wait: %+v, %v", before, err)
		}
		old.Expire("k")
		time.Sleep(time.Minute)
		after, err := old.Lookup(t.Context(), "k")
		if err != nil || len(after.Holders) != 1 || after.Holders[0].Fence == before.Holders[0].Fence {
			t.Fatalf("it does not wait any more: %+v, %v", after, err)
		}
		release()
		wg.Wait()
		time.Sleep(time.Minute)
		if err := l.Err(); err != nil {
			t.Error(err)
		}
		unlock(t, l)
	})
}

func TestTokensOfBothRiseHoweverTheClocksDiffer(t *testing.T) {
	for _, apart := range []time.Duration{0, time.Millisecond, -time.Millisecond, 3 * time.Second, -3 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			old, new := memory.New(), skewed{memory.New(), apart}
			a, b, ab := client(t, old.Peer()), client(t, new), client(t, both.New(old.Peer(), new))
			last := uint64(0)
			for i, c := range []*dlock.Client{a, ab, a, ab, b, ab, b} {
				if apart != 0 && (i == 0 || i == 4) {
					last = 0 // before the rollout; and between its halves, where all have both
				}
				l := lock(t, c)
				if l.Fence() <= last {
					t.Errorf("%v apart: token %d of lock %d after %d", apart, l.Fence(), i, last)
				}
				last = l.Fence()
				unlock(t, l)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		old, new := memory.New(), memory.New()
		c := client(t, both.New(old.Peer(), skewed{new.Peer(), time.Minute}))
		if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, dlock.ErrUnavailable) || !strings.Contains(err.Error(), "clocks") {
			t.Errorf("a minute apart: %v", err)
		}
		free(t, old, new)
	})
}

// Later tokens of a backend whose tokens may lag are larger, too; and if they lag without a bound,
// both backends have no tokens, and need not wait.
func TestTokensOfBothRiseWhereTheyLag(t *testing.T) {
	for _, lag := range []time.Duration{200 * time.Millisecond, -1} {
		synctest.Test(t, func(t *testing.T) {
			old, new := skewed{memory.New(), time.Millisecond}, &lagging{Backend: memory.New(), by: lag}
			ab, b := client(t, both.New(old, new)), client(t, new)
			for range 3 {
				start := time.Now()
				l := lock(t, ab)
				unlock(t, l)
				next := lock(t, b)
				unlock(t, next)
				switch {
				case lag < 0 && (l.Fence() != 0 || time.Since(start) > 0):
					t.Errorf("token %d after %v, and there is none", l.Fence(), time.Since(start))
				case next.Fence() <= l.Fence():
					t.Errorf("token %d after %d", next.Fence(), l.Fence())
				}
				time.Sleep(10 * time.Second)
			}
		})
	}
}

func TestBothOfASessionAndATTL(t *testing.T) {
	session := driver.Info{Name: "session", Features: driver.FeatureSession | driver.FeatureFencing}
	synctest.Test(t, func(t *testing.T) {
		old := memory.New(&memory.Options{Info: session})
		l := lock(t, client(t, both.New(old, memory.New())), dlock.WithTTL(3*time.Second))
		time.Sleep(time.Minute)
		if d, ok := l.Deadline(); l.Err() != nil || !ok || time.Until(d) > 3*time.Second {
			t.Errorf("%v, %t: %v", d, ok, l.Err())
		}
		old.Expire("k") // the end of its session
		<-l.Done()
		_ = l.Unlock()
	})
	synctest.Test(t, func(t *testing.T) {
		old, new := memory.New(&memory.Options{Info: session}), memory.New(&memory.Options{Info: session})
		l := lock(t, client(t, both.New(old, new)))
		if _, ok := l.Deadline(); ok {
			t.Error("two sessions have a deadline")
		}
		new.Expire("k")
		<-l.Done()
		_ = l.Unlock()
	})
}

// session is a backend each of whose leases has a Lost of its own, as those of file have.
type session struct{ driver.Backend }

type sessionLease struct {
	driver.Lease
	lost chan struct{}
}

func (s session) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := s.Backend.Acquire(ctx, r)
	if err != nil {
		return nil, err
	}
	return sessionLease{l, make(chan struct{})}, nil
}

func (l sessionLease) Grant() driver.Grant {
	g := l.Lease.Grant()
	g.Lost = l.lost
	return g
}

func TestAReleasedLeaseOfBothLeavesNoGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := client(t, both.New(session{memory.New()}, session{memory.New()}))
		unlock(t, lock(t, c))
		synctest.Wait()
		before := runtime.NumGoroutine()
		for range 10 {
			unlock(t, lock(t, c))
		}
		time.Sleep(time.Minute) // the client watches a channel for a second more
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("%d goroutines after ten locks, and %d before them", n, before)
		}
	})
}

func TestCloseOfBothTellsOfTheSessionsEnd(t *testing.T) {
	folders := [2]driver.Backend{}
	for i := range folders {
		f, err := file.New(&file.Options{Folder: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		folders[i] = f
	}
	b := both.New(folders[0], folders[1])
	l, err := b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o"})
	if err != nil {
		t.Fatal(err)
	}
	lost := l.Grant().Lost
	for range 2 {
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-lost:
	default:
		t.Error("the session has ended, and Lost is open")
	}
}

func TestAURLOpensBoth(t *testing.T) {
	c, err := dlock.OpenURL("both:memory:both-old memory:both-new prefix=app: ttl=3s", dlock.WithLogger(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // the lock is released earlier
	l := lock(t, c)
	for _, url := range []string{"memory:both-old?prefix=app:", "memory:both-new?prefix=app:"} {
		b, err := dlock.OpenBackend(url)
		if err != nil {
			t.Fatal(err)
		}
		if s, err := b.(driver.Inspector).Lookup(t.Context(), "k"); err != nil || len(s.Holders) != 1 {
			t.Errorf("%s: %+v, %v", url, s, err)
		}
	}
	if c.TTL() != 3*time.Second {
		t.Errorf("the TTL is %v", c.TTL())
	}
	unlock(t, l)
	for _, url := range []string{"both:", "both:memory:a", "both:memory:a memory:b memory:c", "both:memory:a nosuch:", "both:memory:a memory:b?dbb=1", "both:memory:a memory:b?prefix=x:", "both:memory:a memory:a"} {
		if _, err := dlock.OpenURL(url); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s: %v", url, err)
		}
	}
}
