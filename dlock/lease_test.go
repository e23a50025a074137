package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

func newSpyClient(t *testing.T, b driver.Backend, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.New(b, append([]dlock.Option{dlock.WithLogger(nil)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func hang(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

var errOutage = errors.New("connection refused")

func TestDoneComesBeforeTheDeadlineThoughARenewalHangs(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpy()
			free := make(chan struct{})
			defer close(free)
			s.renew = func(ctx context.Context, _ *driver.Renewal) error {
				if !deaf {
					return hang(ctx)
				}
				<-free // not even its context ends it
				return errOutage
			}
			c := newSpyClient(t, s)
			start := time.Now()
			l := lock(t, c, "k", dlock.WithTTL(10*time.Second))
			deadline, ok := l.Deadline()
			if want := driver.Expires(start, 10*time.Second); !ok || !deadline.Equal(want) {
				t.Fatalf("Deadline = %v, want %v", deadline, want)
			}
			<-l.Done()
			if early := time.Until(deadline); early != 200*time.Millisecond {
				t.Errorf("Done came %v before the deadline, want 200 ms (TTL/50)", early)
			}
			if !errors.Is(l.Err(), dlock.ErrLost) {
				t.Errorf("Err = %v, want ErrLost", l.Err())
			}
			if s.releases.Load() != 0 {
				t.Error("the deadline released the lock: a paused holder keeps its grace")
			}
			if err := l.Unlock(); !errors.Is(err, dlock.ErrLost) || errors.Is(err, dlock.ErrUnavailable) {
				t.Errorf("Unlock = %v, want ErrLost", err)
			}
			if s.releases.Load() != 1 {
				t.Error("Unlock did not release")
			}
		})
	}
}

// WithMargin says how long before the deadline Done comes; the lease is renewed before that.
func TestDoneComesTheMarginBeforeTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		c := newSpyClient(t, s)
		for _, margin := range []time.Duration{time.Millisecond, 3 * time.Second, 5 * time.Second} {
			l := lock(t, c, "k", dlock.WithMargin(margin))
			time.Sleep(time.Minute)
			if err := l.Err(); err != nil {
				t.Fatalf("%v: %v", margin, err)
			}
			s.set(func() { s.renew = func(ctx context.Context, _ *driver.Renewal) error { return hang(ctx) } })
			<-l.Done()
			deadline, _ := l.Deadline()
			if early := time.Until(deadline); early != margin {
				t.Errorf("Done came %v before the deadline, want %v", early, margin)
			}
			_ = l.Unlock()
			s.set(func() { s.renew = nil })
		}
		s.set(func() { s.renew = func(ctx context.Context, _ *driver.Renewal) error { return hang(ctx) } })
		l := lock(t, c, "k", dlock.WithTTL(20*time.Millisecond))
		deadline, _ := l.Deadline()
		<-l.Done()
		if early := time.Until(deadline); early != 5*time.Millisecond {
			t.Errorf("with a short TTL Done came %v before the deadline, want 5 ms", early)
		}
		_ = l.Unlock()
		for _, margin := range []time.Duration{-1, 0, 5*time.Second + 1} {
			if _, err := c.TryLock(t.Context(), "k", dlock.WithMargin(margin)); !errors.Is(err, dlock.ErrInvalid) {
				t.Errorf("%v: %v", margin, err)
			}
		}
		if _, err := dlock.New(newSpy(), dlock.WithTTL(time.Second), dlock.WithMargin(time.Second)); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("New: %v", err)
		}
		session := newSpy()
		session.session(nil)
		if _, err := dlock.New(session, dlock.WithMargin(time.Second)); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("without a TTL: %v", err)
		}
	})
}

func TestALossIsDefiniteAndQuick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.renew = func(context.Context, *driver.Renewal) error { return fmt.Errorf("gone: %w", driver.ErrLost) }
		c := newSpyClient(t, s)
		start := time.Now()
		l := lock(t, c, "k", dlock.WithTTL(9*time.Second))
		ctx, cancel := l.Context(t.Context())
		defer cancel()
		<-l.Done()
		if took := time.Since(start); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("the loss was known after %v, want at the first renewal, between TTL/4 and TTL/3", took)
		}
		<-ctx.Done()
		if cause := context.Cause(ctx); !errors.Is(cause, dlock.ErrLost) {
			t.Errorf("the context's cause = %v, want ErrLost", cause)
		}
		_ = l.Unlock()
	})
}

func TestARenewalConfirmedAfterDoneRevivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		l := lock(t, newSpyClient(t, s), "k", dlock.WithTTL(time.Second))
		s.set(func() { s.renewed = func() error { time.Sleep(5 * time.Second); return nil } })
		time.Sleep(10 * time.Second)
		if err := l.Err(); !errors.Is(err, dlock.ErrLost) {
			t.Errorf("Err = %v, want ErrLost", err)
		}
		select {
		case <-l.Done():
		default:
			t.Error("Done is open again")
		}
		_ = l.Unlock()
	})
}

func TestASessionsLeasesEndWithItAndShareOneGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := make(chan struct{})
		s := newSpy()
		s.session(gone)
		c := newSpyClient(t, s)
		before := goroutines()
		var leases []*dlock.Lease
		for i := range 100 {
			leases = append(leases, lock(t, c, fmt.Sprint(i)))
		}
		if n := goroutines() - before; n > 1 {
			t.Errorf("100 leases of one session cost %d goroutines", n)
		}
		if _, ok := leases[0].Deadline(); ok {
			t.Error("a session's lease has a deadline")
		}
		unlock(t, leases[99])
		close(gone)
		synctest.Wait()
		for _, l := range leases[:99] {
			if !errors.Is(l.Err(), dlock.ErrLost) {
				t.Fatalf("%s: Err = %v, want ErrLost", l.Key(), l.Err())
			}
		}
		if !errors.Is(leases[99].Err(), dlock.ErrReleased) {
			t.Errorf("the one released before: %v", leases[99].Err())
		}
	})
}

// A driver that closes a shared channel for one of its leases gives the others a new one.
func TestALeaseIsTakenToAnotherChannelOfLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		first, second := make(chan struct{}), make(chan struct{})
		s.session(first)
		l := lock(t, newSpyClient(t, s), "k")
		s.set(func() { s.session(second) })
		close(first)
		synctest.Wait()
		if err := l.Err(); err != nil {
			t.Errorf("the lease has another channel: %v", err)
		}
		close(second)
		synctest.Wait()
		select {
		case <-l.Done():
		default:
			t.Error("the loss was not noticed")
		}
	})
}

// It is watched as long as there are leases, and again when there are new ones.
func TestAChannelOfLossIsWatchedWhileItHasLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		before := goroutines()
		c := newSpyClient(t, s)
		watching := func() int { synctest.Wait(); return goroutines() - before }
		var first, second chan struct{}
		for range 2 {
			first, second = make(chan struct{}), make(chan struct{})
			s.set(func() { s.granted = func(g *driver.Grant) { g.Lost = first } })
			for range 2 {
				leases := []*dlock.Lease{lock(t, c, "a"), lock(t, c, "b")}
				time.Sleep(5 * time.Second)
				if n := watching(); n != 1 {
					t.Errorf("%d goroutines watch the channel of two leases", n)
				}
				unlock(t, leases[0])
				unlock(t, leases[1])
				time.Sleep(5 * time.Second)
				if n := watching(); n != 0 {
					t.Errorf("%d goroutines watch a channel without leases", n)
				}
			}
			l := lock(t, c, "k")
			s.set(func() { s.granted = func(g *driver.Grant) { g.Lost = second } })
			close(first)
			synctest.Wait()
			unlock(t, l)
			time.Sleep(5 * time.Second)
			if n := watching(); n != 0 {
				t.Errorf("%d goroutines watch a channel that the lease was taken to", n)
			}
		}
		l := lock(t, c, "k")
		time.Sleep(5 * time.Second)
		close(second)
		synctest.Wait()
		select {
		case <-l.Done():
		default:
			t.Error("the loss was not noticed")
		}
	})
}

func TestUnlockWorksAfterCancellationAndTwice(t *testing.T) {
	type key struct{}
	s := newSpy()
	var got any
	s.release = func(ctx context.Context) error { got = ctx.Value(key{}); return ctx.Err() }
	c := newSpyClient(t, s)
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "trace"))
	l, err := c.Lock(ctx, "k")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	unlock(t, l)
	unlock(t, l)
	if got != "trace" {
		t.Errorf("the release's context has %v, want the values of Lock's", got)
	}
	unlock(t, lock(t, c, "k"))
	if n := s.releases.Load(); n != 2 {
		t.Errorf("%d releases, want 2", n)
	}
}

func TestAReleaseThatMayNotHaveArrivedIsReported(t *testing.T) {
	for end, of := range map[string]func(s *spy){
		"(the lock ends with its TTL of 10s, if it was not released)":                      func(*spy) {},
		"(the lock ends with its session, and not before its TTL, if it was not released)": func(s *spy) { s.info = func(i *driver.Info) { i.Features |= driver.FeatureSession } },
		errOutage.Error(): func(s *spy) { s.session(make(chan struct{})) },
	} {
		s := newSpy()
		s.release = func(context.Context) error { return errOutage }
		of(s)
		c := newSpyClient(t, s)
		err := lock(t, c, "k").Unlock()
		var e *dlock.Error
		if !errors.Is(err, dlock.ErrUnavailable) || !strings.HasSuffix(err.Error(), end) || !errors.As(err, &e) || e.Attempts != 1 || c.Stats().ReleaseFailed != 1 {
			t.Errorf("got %v, want ErrUnavailable and %q; %+v", err, end, c.Stats())
		}
	}
}

func TestDoReturnsItsFunctionsErrorReleasesOnPanicAndJoinsTheLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		c := newSpyClient(t, s)
		for _, want := range []error{nil, io.EOF} {
			if err := dlock.Do(t.Context(), c, "k", func(context.Context) error { return want }); err != want { //nolint:errorlint // as it is
				t.Errorf("got %v, want %v", err, want)
			}
		}
		before := s.releases.Load()
		func() {
			defer func() {
				if recover() != "boom" {
					t.Error("the panic did not pass")
				}
			}()
			_ = dlock.Do(t.Context(), c, "k", func(context.Context) error { panic("boom") })
		}()
		if s.releases.Load() != before+1 {
			t.Error("the panic left the lock")
		}
		errWork := errors.New("half done")
		err := dlock.Do(t.Context(), c, "k", func(ctx context.Context) error {
			l, ok := dlock.LeaseFor(ctx, "k")
			if !ok || l.Key() != "k" || l.Fence() == 0 {
				t.Error("LeaseFor does not find the lease")
			}
			s.set(func() { s.renew = func(context.Context, *driver.Renewal) error { return driver.ErrLost } })
			<-ctx.Done()
			return errWork
		})
		if !errors.Is(err, dlock.ErrLost) || !errors.Is(err, errWork) {
			t.Errorf("got %v, want the loss joined with the work's error", err)
		}
		if _, ok := dlock.LeaseFor(t.Context(), "k"); ok {
			t.Error("LeaseFor finds a lease outside Do")
		}
	})
}

func TestTheLeasesContextEndsWithTheLeaseAndWithItsParent(t *testing.T) {
	c := newSpyClient(t, newSpy())
	l := lock(t, c, "k")
	parent, cancelParent := context.WithCancel(t.Context())
	ctx, cancel := l.Context(parent)
	defer cancel()
	child, cancelChild := context.WithTimeout(ctx, time.Hour)
	defer cancelChild()
	if ctx.Err() != nil || child.Err() != nil {
		t.Fatal("ended at once")
	}
	cancelParent()
	if ctx.Err() == nil {
		t.Error("outlives its parent")
	}
	ctx2, cancel2 := l.Context(t.Context())
	cancel2()
	if ctx2.Err() == nil || l.Err() != nil {
		t.Error("cancel must end the context and not the lease")
	}
	ctx3, cancel3 := l.Context(t.Context())
	defer cancel3()
	unlock(t, l)
	<-ctx3.Done()
	if !errors.Is(context.Cause(ctx3), dlock.ErrReleased) {
		t.Errorf("cause = %v", context.Cause(ctx3))
	}
}

// lockedBuilder is a strings.Builder for several goroutines.
type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *lockedBuilder) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuilder) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
