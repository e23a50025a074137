package memory_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/memory"
)

var must = drivertest.Must

func newClient(t *testing.T, b *memory.Backend, opts ...dlock.Option) *dlock.Client {
	t.Helper()
	c, err := dlock.New(b, append(opts, dlock.WithLogger(nil))...)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func lock(t *testing.T, c *dlock.Client, key string, opts ...dlock.LockOption) *dlock.Lease {
	t.Helper()
	l, err := c.TryLock(t.Context(), key, opts...)
	must(t, err)
	return l
}

// A double of Redis refuses what Redis refuses.
func TestADoubleHasTheFeaturesModesAndTTLsOfWhatItStandsFor(t *testing.T) {
	info := driver.Info{Name: "redis", Features: driver.FeatureFencing, MinTTL: 100 * time.Millisecond, MaxTTL: time.Hour}
	b := memory.New(&memory.Options{Info: info})
	if b.Info() != info || b.Peer().Info() != info {
		t.Errorf("Info = %+v", b.Info())
	}
	c := newClient(t, b)
	for what, opt := range map[string]dlock.LockOption{
		"shared": dlock.WithShared(), "short": dlock.WithTTL(50 * time.Millisecond), "long": dlock.WithTTL(2 * time.Hour),
	} {
		if _, err := c.TryLock(t.Context(), "k", opt); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", what, err)
		}
	}
	if lock(t, c, "k").Fence() == 0 {
		t.Error("no token")
	}
	if _, err := b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o/2", TTL: time.Second, Wait: true}); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("without Queueing a request that may wait gets %v", err)
	}
	plain := newClient(t, memory.New(&memory.Options{Info: driver.Info{Name: "plain", MinTTL: time.Second, MaxTTL: time.Hour}}))
	if f := lock(t, plain, "k").Fence(); f != 0 {
		t.Errorf("token %d of a backend without any", f)
	}
	for _, o := range []*memory.Options{nil, {}} {
		if memory.New(o).Info() != memory.New().Info() {
			t.Error("the zero Options are not the default")
		}
	}
}

// A double of the file driver has no TTL, and its locks end with it.
func TestADoubleOfASessionHasNoTTLAndItsLocksEndWithIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New(&memory.Options{Info: driver.Info{Name: "file", Features: driver.FeatureShared | driver.FeatureFencing | driver.FeatureSession}})
		c, other := newClient(t, b), newClient(t, b.Peer())
		if _, err := c.TryLock(t.Context(), "k", dlock.WithTTL(time.Second)); !errors.Is(err, dlock.ErrInvalid) {
			t.Errorf("a TTL gives %v, want ErrInvalid", err)
		}
		l := lock(t, c, "k")
		if _, ok := l.Deadline(); ok {
			t.Error("it has a deadline")
		}
		time.Sleep(48 * time.Hour)
		if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, dlock.ErrHeld) || l.Err() != nil {
			t.Errorf("two days later: %v, %v", err, l.Err())
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if !errors.Is(l.Err(), dlock.ErrLost) {
			t.Errorf("after the end of its session: %v", l.Err())
		}
		if err := lock(t, other, "k").Unlock(); err != nil {
			t.Error(err)
		}
	})
}

func TestALossIsToldAtOnce(t *testing.T) {
	b := memory.New()
	c := newClient(t, b)
	for name, lose := range map[string]func(l *dlock.Lease){
		"Expire": func(*dlock.Lease) { b.Expire("k") },
		"Hold":   func(*dlock.Lease) { b.Hold("k")() },
		"Break":  func(l *dlock.Lease) { _ = b.Peer().Break(t.Context(), "k", driver.Holder{Fence: l.Fence()}) },
	} {
		l := lock(t, c, "k", dlock.WithTTL(time.Hour))
		lose(l)
		if !errors.Is(l.Err(), dlock.ErrLost) {
			t.Errorf("%s: %v", name, l.Err())
		}
		<-l.Done()
	}
	l := lock(t, c, "k")
	must(t, l.Unlock())
	b.Expire("k")
	if !errors.Is(l.Err(), dlock.ErrReleased) || c.Stats().Lost != 3 {
		t.Errorf("after its release: %v, and %d were lost", l.Err(), c.Stats().Lost)
	}
}

func TestALossBeforeAnybodyAskedIsTold(t *testing.T) {
	b := memory.New()
	l, err := b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o/1", TTL: time.Hour})
	must(t, err)
	b.Expire("k")
	select {
	case <-l.Grant().Lost:
	default:
		t.Error("Lost is open")
	}
}

func TestAnOutageCanHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		c := newClient(t, b)
		l := lock(t, c, "held")
		b.SetOutage(memory.Outage{Hang: true})
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := c.TryLock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 300*time.Millisecond {
			t.Errorf("%v after %v, want the context's end", err, time.Since(start))
		}
		start = time.Now()
		if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, dlock.ErrUnavailable) || time.Since(start) != time.Second {
			t.Errorf("%v after %v, want ErrUnavailable after a second", err, time.Since(start))
		}
		start = time.Now()
		if err := l.Unlock(); !errors.Is(err, dlock.ErrUnavailable) || time.Since(start) != time.Second {
			t.Errorf("Unlock = %v after %v", err, time.Since(start))
		}
		time.AfterFunc(100*time.Millisecond, func() { b.SetOutage(memory.Outage{}) })
		start = time.Now()
		l = lock(t, c, "k", dlock.WithTTL(2*time.Second))
		if d, _ := l.Deadline(); time.Since(start) != 100*time.Millisecond || !d.Equal(driver.Expires(start, 2*time.Second)) {
			t.Errorf("served after %v, want the end of the outage; the lease ends %v after the request", time.Since(start), d.Sub(start))
		}
	})
}

func TestCloseEndsCallsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := memory.New()
		b.SetOutage(memory.Outage{Hang: true})
		got := make(chan error)
		go func() {
			_, err := b.Acquire(context.Background(), &driver.Request{Key: "k", Owner: "o/1", TTL: time.Second})
			got <- err
		}()
		synctest.Wait()
		start := time.Now()
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if err := <-got; !errors.Is(err, driver.ErrClosed) || time.Since(start) != 0 {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}
