package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

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
		ahead := 40 * time.Millisecond // the new servers' clock
		var olds, news []*dlock.Client
		for range 6 {
			olds = append(olds, newClient(t, oldSpace.Peer()))
			s := &spy{Backend: newSpace.Peer()}
			s.granted = func(g *driver.Grant) { g.Fence += uint64(ahead / time.Microsecond) }
			news = append(news, newSpyClient(t, s))
		}
		old := func(i int) dlock.Locker { return olds[i] }
		both := func(i int) dlock.Locker { return dlock.Both(olds[i], news[i]) }
		new := func(i int) dlock.Locker { return news[i] }
		if doubles, tokens := rollout(t, old, both, new); doubles != 0 || tokens != 0 {
			t.Errorf("%d times two had the lock, %d tokens did not rise", doubles, tokens)
		}
		ahead = -ahead
		if _, tokens := rollout(t, both, old); tokens != 0 {
			t.Errorf("back again: %d tokens did not rise", tokens)
		}
		if doubles, _ := rollout(t, old, new); doubles == 0 {
			t.Error("without Both no two instances had the lock at once: this test shows nothing")
		}
	})
}

// pairOf returns a Both of two memory spaces, and the spies on them.
func pairOf(t *testing.T, opts ...dlock.Option) (locks dlock.Locker, old, new *spy) {
	old, new = newSpy(), newSpy()
	return dlock.Both(newSpyClient(t, old, opts...), newSpyClient(t, new, opts...)), old, new
}

func TestALeaseOfBothHoldsAndReleasesBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, old, new := pairOf(t)
		l := lock(t, locks, "k")
		time.Sleep(time.Minute)
		if l.Err() != nil || free(t, old, "k") || free(t, new, "k") {
			t.Errorf("after a minute: %v", l.Err())
		}
		if d, ok := l.Deadline(); !ok || time.Until(d) <= 0 {
			t.Errorf("Deadline = %v, %t", d, ok)
		}
		for name, s := range map[string]*spy{"old": old, "new": new} {
			if n := s.renewals.Load(); n < 17 || n > 26 {
				t.Errorf("%s: %d renewals in a minute, with a TTL of 10 s", name, n)
			}
		}
		if _, err := locks.TryLock(t.Context(), "k"); !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("a second one: %v", err)
		}
		unlock(t, l)
		if !free(t, old, "k") || !free(t, new, "k") {
			t.Error("a lock is left")
		}
	})
}

func TestALeaseOfBothIsLostWithEither(t *testing.T) {
	for _, which := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			locks, old, new := pairOf(t)
			spies := []*spy{old, new}
			l := lock(t, locks, "k")
			ctx, cancel := l.Context(t.Context())
			defer cancel()
			spies[which].Backend.(*memory.Backend).Expire("k")
			<-ctx.Done()
			if !errors.Is(l.Err(), dlock.ErrLost) {
				t.Errorf("Err = %v", l.Err())
			}
			if err := l.Unlock(); !errors.Is(err, dlock.ErrLost) {
				t.Errorf("Unlock = %v", err)
			}
			if !free(t, old, "k") || !free(t, new, "k") {
				t.Error("a lock is left")
			}
			// After an outage of either backend the lease ends by its deadline.
			l = lock(t, locks, "j")
			spies[which].set(func() { spies[which].renew = func(context.Context, *driver.Renewal) error { return errOutage } })
			for l.Err() == nil {
				d, _ := l.Deadline()
				if !time.Now().Before(d) {
					t.Fatal("it outlives its deadline")
				}
				time.Sleep(10 * time.Millisecond)
			}
			_ = l.Unlock()
		})
	}
}

func TestBothGivesOldBackWhereNewIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, old, new := pairOf(t, dlock.WithMinHold(time.Hour))
		release := new.Backend.(*memory.Backend).Peer().Hold("k")
		_, err := locks.TryLock(t.Context(), "k")
		if !errors.Is(err, dlock.ErrHeld) || !strings.Contains(err.Error(), "new backend") {
			t.Errorf("TryLock: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := locks.Lock(ctx, "k"); !errors.Is(err, dlock.ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Lock: %v", err)
		}
		if !free(t, old, "k") {
			t.Error("old is left")
		}
		old.Backend.(*memory.Backend).Expire("k") // free took it
		release()
		l := lock(t, locks, "k")
		unlock(t, l)
		time.Sleep(59 * time.Minute)
		if free(t, old, "k") || free(t, new, "k") {
			t.Error("WithMinHold was not kept")
		}
		time.Sleep(2 * time.Minute)
		if !free(t, old, "k") || !free(t, new, "k") {
			t.Error("a lock is left")
		}
	})
}

// The old lock is lost during the wait for the new one: no caller gets a lease.
func TestBothBeginsAgainIfOldIsLostOnTheWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, old, new := pairOf(t)
		release := new.Backend.(*memory.Backend).Peer().Hold("k")
		var l *dlock.Lease
		var wg sync.WaitGroup
		wg.Go(func() { l = lock(t, locks, "k") })
		time.Sleep(time.Minute)
		old.Backend.(*memory.Backend).Expire("k")
		time.Sleep(time.Minute)
		if free(t, old, "k") {
			t.Fatal("it does not wait any more")
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
			old, new := newSpy(), newSpy()
			new.granted = func(g *driver.Grant) { g.Fence += uint64(apart / time.Microsecond) }
			a, b := newSpyClient(t, old), newSpyClient(t, new)
			last := uint64(0)
			for i, locks := range []dlock.Locker{a, dlock.Both(a, b), a, dlock.Both(a, b), b, dlock.Both(a, b), b} {
				if apart != 0 && (i == 0 || i == 4) {
					last = 0 // before the rollout; and between its halves, where all have Both
				}
				l := lock(t, locks, "k")
				if l.Fence() <= last {
					t.Errorf("%v apart: token %d of lock %d after %d", apart, l.Fence(), i, last)
				}
				last = l.Fence()
				unlock(t, l)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		locks, old, new := pairOf(t)
		new.granted = func(g *driver.Grant) { g.Fence += uint64(time.Minute / time.Microsecond) }
		if _, err := locks.TryLock(t.Context(), "k"); !errors.Is(err, dlock.ErrUnavailable) || !strings.Contains(err.Error(), "clocks") {
			t.Errorf("a minute apart: %v", err)
		}
		if !free(t, old, "k") || !free(t, new, "k") {
			t.Error("a lock is left")
		}
	})
}

func TestBothOfASessionAndATTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lost := make(chan struct{})
		old, new := newSpy(), newSpy()
		old.session(lost)
		locks := dlock.Both(newSpyClient(t, old), newSpyClient(t, new))
		l := lock(t, locks, "k", dlock.WithTTL(3*time.Second))
		time.Sleep(time.Minute)
		if d, ok := l.Deadline(); l.Err() != nil || !ok || time.Until(d) > 3*time.Second {
			t.Errorf("%v, %t: %v", d, ok, l.Err())
		}
		close(lost)
		<-l.Done()
		_ = l.Unlock()
	})
	synctest.Test(t, func(t *testing.T) {
		lost := make(chan struct{})
		old, new := newSpy(), newSpy()
		old.session(lost)
		new.session(nil)
		l := lock(t, dlock.Both(newSpyClient(t, old), newSpyClient(t, new)), "k")
		if _, ok := l.Deadline(); ok {
			t.Error("two sessions have a deadline")
		}
		close(lost)
		<-l.Done()
		_ = l.Unlock()
	})
}

func TestOptionsReachBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, old, new := pairOf(t, dlock.WithTTL(4*time.Second))
		l := lock(t, locks, "k", dlock.WithRenewal(false))
		d, _ := l.Deadline()
		if left := time.Until(d); left > 4*time.Second || left < 3*time.Second {
			t.Errorf("the TTL is %v", left)
		}
		<-l.Done()
		if old.renewals.Load()+new.renewals.Load() != 0 {
			t.Error("it was renewed")
		}
		_ = l.Unlock()
		a := lock(t, locks, "k", dlock.WithMode(dlock.Shared))
		b := lock(t, locks, "k", dlock.WithMode(dlock.Shared))
		unlock(t, a)
		unlock(t, b)
		slots := map[int]bool{}
		for range 3 {
			l := lock(t, locks, "s", dlock.WithSlots(3))
			slots[l.Slot()] = true
			defer unlock(t, l)
		}
		if _, err := locks.TryLock(t.Context(), "s", dlock.WithSlots(3)); len(slots) != 3 || !errors.Is(err, dlock.ErrHeld) {
			t.Errorf("slots %v: %v", slots, err)
		}
		err := dlock.DoAll(t.Context(), locks, []string{"x", "y"}, func(context.Context) error { return nil })
		if err != nil {
			t.Error(err)
		}
		nested := lock(t, dlock.Both(locks, newSpyClient(t, newSpy())), "n")
		unlock(t, nested)
		_, err = locks.TryLock(t.Context(), "k", dlock.WithTTL(time.Nanosecond))
		if !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("a TTL that cannot be: %v", err)
		}
		if _, err := dlock.Both(nil, locks).Lock(t.Context(), "k"); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("nil: %v", err)
		}
	})
}

func TestToCloseOneEndsTheLeasesOfBoth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, err := dlock.New(memory.New(), dlock.WithLogger(nil))
		if err != nil {
			t.Fatal(err)
		}
		new := newSpy()
		locks := dlock.Both(old, newSpyClient(t, new))
		l := lock(t, locks, "k")
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		<-l.Done()
		_ = l.Unlock()
		if !free(t, new, "k") {
			t.Error("new is left")
		}
		_, err = locks.Lock(t.Context(), "k")
		if !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if text := fmt.Sprint(err); strings.Count(text, "dlock:") != 1 {
			t.Errorf("said twice: %s", text)
		}
	})
}
