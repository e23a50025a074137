package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
)

const ttl = 10 * time.Second

var owners atomic.Int64

// request returns a request of a new owner.
func request(key string, change ...func(*driver.Request)) *driver.Request {
	r := &driver.Request{Key: key, Owner: fmt.Sprintf("test/%d", owners.Add(1)), TTL: ttl}
	for _, f := range change {
		f(r)
	}
	return r
}

var (
	acquire, release, must = drivertest.Grant, drivertest.Release, drivertest.Must
	wantErr, wantHeld      = drivertest.WantErr, drivertest.WantHeld
)

type result struct {
	lease driver.Lease
	err   error
}

// start calls Acquire in a goroutine, and returns when it waits in the queue.
func start(ctx context.Context, b *Backend, r *driver.Request) <-chan result {
	r.Wait = true
	ch := make(chan result, 1)
	go func() {
		l, err := b.Acquire(ctx, r)
		ch <- result{l, err}
	}()
	synctest.Wait()
	return ch
}

func pending(t *testing.T, what string, ch <-chan result) {
	t.Helper()
	synctest.Wait()
	select {
	case r := <-ch:
		t.Fatalf("%s: returned %v, %v; want it to wait", what, r.lease, r.err)
	default:
	}
}

func granted(t *testing.T, what string, ch <-chan result) driver.Lease {
	t.Helper()
	synctest.Wait()
	select {
	case r := <-ch:
		if r.err != nil {
			t.Fatalf("%s: %v", what, r.err)
		}
		return r.lease
	default:
		t.Fatalf("%s: still waits; want a grant", what)
		return nil
	}
}

func TestACycleAllocatesTheLeaseAlone(t *testing.T) {
	s := New()
	r := request("k")
	if got := testing.AllocsPerRun(100, func() {
		l, err := s.Acquire(context.Background(), r)
		must(t, err)
		must(t, l.Release(context.Background()))
	}); got > 1 || s.space.entries["k"].timer != nil {
		t.Errorf("%v allocations per Acquire and Release, want 1 and no timer", got)
	}
}

func TestARetriedRequestHasTheLeaseThatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		r := request("k")
		l := acquire(t, b, r)
		alone := request("other")
		acquire(t, b, alone)
		time.Sleep(ttl / 2)
		renewed := make(chan error)
		go func() { // at the same time
			_, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
			renewed <- err
		}()
		again := acquire(t, b.Peer(), r)
		must(t, <-renewed)
		if again != l || !l.Grant().Expires.Equal(driver.Expires(time.Now(), ttl)) {
			t.Errorf("another lease, or one until %v", again.Grant().Expires)
		}
		other := acquire(t, b, alone)
		time.Sleep(ttl - 1)
		wantHeld(t, b, request("k"))
		wantHeld(t, b, request("other"))
		wantHeld(t, b, &driver.Request{Key: "k", Owner: r.Owner, TTL: ttl, Mode: driver.Shared}) // is another request
		time.Sleep(time.Nanosecond)
		_, err := other.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		wantErr(t, "renewal after the end", err, driver.ErrLost)
		b.Fail(errCut) // the peer's lease goes on
		wantErr(t, "release after the end", l.Release(t.Context()), driver.ErrLost)
	})
}

// both is of a backend whose locks may have a TTL or not.
var both = driver.Info{Name: "both", Features: own.Features | driver.FeatureSession, MaxTTL: MaxTTL}

func TestARenewalSetsTheEndsOfLockAndLease(t *testing.T) {
	const s = time.Second
	for _, c := range []struct{ ttl, keep, lock time.Duration }{{5 * s, 0, 5 * s}, {5 * s, 20 * s, 20 * s}, {0, 3 * s, 3 * s}, {0, 0, 0}} {
		synctest.Test(t, func(t *testing.T) {
			b := New(&Options{Info: both})
			ch, err := b.Watch(t.Context(), "k")
			must(t, err)
			l := acquire(t, b, request("k"))
			g, err := l.Renew(t.Context(), &driver.Renewal{TTL: c.ttl, Keep: c.keep})
			must(t, err)
			end := time.Time{}
			switch {
			case c.ttl > 0:
				end = driver.Expires(time.Now(), c.ttl)
			case c.keep > 0: // the lease is over
				end = time.Now()
			}
			if !g.Expires.Equal(end) {
				t.Errorf("%+v: the lease ends %v from now", c, time.Until(g.Expires))
			}
			time.Sleep(cmp.Or(c.lock, time.Hour) - 1)
			synctest.Wait()
			early := len(ch)
			time.Sleep(time.Nanosecond)
			if synctest.Wait(); early != 0 || len(ch) != int(min(c.lock, 1)) {
				t.Errorf("%+v: %d signals before the end, and %d after it", c, early, len(ch))
			}
		})
	}
}

func reader(change ...func(*driver.Request)) *driver.Request {
	return request("k", append(change, func(r *driver.Request) { r.Mode = driver.Shared })...)
}

// Of several readers the one that ends last counts.
func TestAWriterHearsWhenTheLastReaderEnds(t *testing.T) {
	b := New(&Options{Info: both})
	for _, c := range []struct{ ttl, want time.Duration }{{10, 10}, {30, 30}, {20, 30}, {0, 0}, {40, 0}} {
		acquire(t, b, reader(func(r *driver.Request) { r.TTL = c.ttl * time.Minute }))
		if h := wantHeld(t, b, request("k", func(r *driver.Request) { r.Owner = "w" })); h.RetryAfter.Round(time.Minute) != c.want*time.Minute {
			t.Errorf("after a reader of %d minutes: %v, want %d minutes", c.ttl, h.RetryAfter, c.want)
		}
	}
}

// The tokens of readers need not be below one another's, only above those of before.
func TestReadersJoinAboveTheLastWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		w := acquire(t, b, request("k"))
		last := w.Grant().Fence
		release(t, w)
		time.Sleep(time.Second)
		readers := []driver.Lease{acquire(t, b, reader())}
		at := func(fence uint64) func(*driver.Request) {
			return func(r *driver.Request) { r.ExactFence = fence }
		}
		for range 2 {
			readers = append(readers, acquire(t, b, reader(at(last))))
		}
		_, err := b.Acquire(t.Context(), reader(at(last-1)))
		wantErr(t, "a reader below the last writer", err, driver.ErrRefused)
		for _, l := range readers {
			release(t, l)
		}
		_, err = b.Acquire(t.Context(), reader(at(last)))
		wantErr(t, "a reader below those that have gone", err, driver.ErrRefused)
	})
}

func TestAWatchHearsWhenALockExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(&Options{Info: both})
		later, err := b.Watch(t.Context(), "k")
		must(t, err)
		acquire(t, b, reader())
		acquire(t, b, reader(func(r *driver.Request) { r.TTL = 0 })) // and it lasts as long as its session
		acquire(t, b, request("held"))
		held, err := b.Watch(t.Context(), "held")
		must(t, err)
		time.Sleep(ttl)
		if synctest.Wait(); len(later) != 1 || len(held) != 1 {
			t.Errorf("%d signals of a later lock, and %d of one that was held", len(later), len(held))
		}
	})
}

// A slow confirmation of a grant, and a request that is repeated, lengthen a lock for which the timer is set.
func TestAWaiterGetsALockThatWasLengthened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		l := acquire(t, b, request("k"))
		w := b.space.entries["k"].enqueue(b, request("k"), time.Now())
		next := start(t.Context(), b, request("k"))
		release(t, l)
		time.Sleep(time.Second)
		if got, err := b.confirm(t.Context(), w); got == nil || err != nil {
			t.Fatalf("confirm: %v, %v", got, err)
		}
		time.Sleep(ttl)
		granted(t, "after a slow confirmation", next)

		again := request("again")
		acquire(t, b, again)
		next = start(t.Context(), b, request("again"))
		time.Sleep(time.Second)
		acquire(t, b, again)
		time.Sleep(ttl)
		granted(t, "after a repeated request", next)
	})
}

func TestAWaitCountsFromItsConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		l := acquire(t, b, request("k"))
		w := b.space.entries["k"].enqueue(b, request("k"), time.Now())
		release(t, l) // grants it to w, whose goroutine is slow to hear of it
		time.Sleep(ttl)
		if got, err := b.confirm(t.Context(), w); got != nil || err != nil { // granted anew
			t.Fatalf("confirm: %v, %v; the grant is over", got, err)
		}
		time.Sleep(ttl - time.Second)
		got, err := b.confirm(t.Context(), w)
		if err != nil || got == nil || !got.Grant().Expires.Equal(driver.Expires(time.Now(), ttl)) {
			t.Fatalf("confirm: %+v, %v", got, err)
		}
		time.Sleep(ttl - 1)
		wantHeld(t, b, request("k"))
	})
}

func TestAGrantThatEndsBeforeItsConfirmationIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, dropped := range []bool{false, true} { // the entry, in between
			b := New()
			l := acquire(t, b, request("k"))
			w := b.space.entries["k"].enqueue(b, request("k"), time.Now())
			release(t, l)
			time.Sleep(2 * idle) // its TTL passes
			if dropped {
				b.space.mu.Lock()
				b.space.sweep(time.Now())
				b.space.mu.Unlock()
				if len(b.space.entries) != 0 {
					t.Fatal("the sweep kept the entry")
				}
			}
			other := acquire(t, b, request("k"))
			for range 2 {
				if got, err := b.confirm(t.Context(), w); got != nil || err != nil {
					t.Fatalf("confirm: %v, %v; another owner has the key", got, err)
				}
			}
			release(t, other)
			got, err := b.confirm(t.Context(), w)
			if err != nil || got == nil || got.Grant().Fence <= other.Grant().Fence {
				t.Fatalf("confirm: %v, %v; want the second grant, with a token above %d", got, err, other.Grant().Fence)
			}
		}
	})
}

func TestAQuorumsGuardBoundsAndItsGraceExtends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		quorum := func(r *driver.Request) {
			r.Quorum = &quorum.Info{Terms: quorum.Terms{N: 3, Guard: 30 * time.Second, Grace: time.Second}}
		}
		l := acquire(t, b, request("k", quorum))
		if want := driver.Expires(time.Now(), ttl); !l.Grant().Expires.Equal(want) {
			t.Errorf("Expires = %v, want %v: the grace is not the holder's", l.Grant().Expires, want)
		}
		for range 2 {
			time.Sleep(ttl + time.Second - 1)
			wantHeld(t, b, request("k"))
			if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl}); err != nil {
				t.Fatalf("renewal within the grace: %v", err)
			}
		}
		time.Sleep(ttl + time.Second)
		l = acquire(t, b, request("k", quorum, func(r *driver.Request) { r.TTL = 30 * time.Second }))
		g, err := l.Renew(t.Context(), &driver.Renewal{Keep: 100 * time.Millisecond})
		if must(t, err); !g.Expires.Equal(time.Now()) {
			t.Errorf("a lock that is only kept has a lease until %v", g.Expires)
		}
		time.Sleep(100 * time.Millisecond)
		release(t, acquire(t, b, request("k", quorum)))

		_, err = b.Acquire(t.Context(), request("k", quorum, func(r *driver.Request) { r.TTL = 31 * time.Second }))
		var refused *driver.RefusedError
		if !errors.As(err, &refused) || refused.RetryAfter != 0 || !strings.Contains(refused.Reason, "30s") {
			t.Errorf("a TTL over the guard: %v, want a *RefusedError that names the guard", err)
		}
	})
}

func TestDroppedCountersNeverLowerATokenAndFreeTheirMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		old := func(r *driver.Request) { r.FenceFloor = 1 } // the proposal of a clock that is two seconds behind
		for i := range 1000 {
			release(t, acquire(t, b, request(fmt.Sprint("key", i))))
		}
		release(t, acquire(t, b, request("old", old)))
		time.Sleep(idle)
		release(t, acquire(t, b, request("new")))
		if n := len(b.space.entries); n != 1001 || b.space.entries["old"] != nil {
			t.Errorf("%d keys after a minute, want all but the old one", n)
		}
		time.Sleep(idle)
		l := acquire(t, b, request("new"))
		last := l.Grant().Fence
		release(t, l)
		if n := len(b.space.entries); n != 1 {
			t.Errorf("%d keys after another minute", n)
		}
		b.space.sweep(time.Now().Add(2 * idle)) // by a clock that is set back then
		if got := acquire(t, b, request("key0", old)).Grant().Fence; got <= last {
			t.Errorf("token %d after %d", got, last)
		}
	})
}

func TestASweepKeepsWhatIsHeldWatchedOrWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		held := acquire(t, b, request("held", func(r *driver.Request) { r.TTL = MaxTTL }))
		next := start(t.Context(), b, request("held"))
		busy := acquire(t, b, request("busy", func(r *driver.Request) { r.TTL = MaxTTL }))
		ctx, cancel := context.WithCancel(t.Context())
		_, err := b.Watch(ctx, "busy")
		must(t, err)
		watched, err := b.Watch(t.Context(), "watched")
		must(t, err)
		time.Sleep(time.Hour)
		b.space.mu.Lock()
		b.space.sweep(time.Now())
		b.space.mu.Unlock()
		wantHeld(t, b, request("held"))
		wantHeld(t, b, request("busy"))
		release(t, held)
		release(t, granted(t, "the waiter", next))
		release(t, busy)
		release(t, acquire(t, b, request("watched")))
		if len(watched) != 1 {
			t.Error("the watcher missed a release after a sweep")
		}
		cancel()
		if synctest.Wait(); len(b.space.entries["busy"].watches) != 0 {
			t.Error("a watch outlives its context")
		}
	})
}

func TestHoldTakesTheKeyUntilRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		mine := acquire(t, b, request("k"))
		free := b.Hold("k")
		_, err := mine.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		wantErr(t, "renewal after Hold", err, driver.ErrLost)
		if h := wantHeld(t, b, request("k")); h.RetryAfter != 0 || !strings.HasPrefix(h.Holder, "another/") {
			t.Errorf("held: %+v", h)
		}
		if st, _ := b.Lookup(t.Context(), "k"); st.Holders[0].TTL != 0 {
			t.Errorf("a hold has a TTL of %v", st.Holders[0].TTL)
		}
		ch := start(t.Context(), b, request("k"))
		time.Sleep(1000 * time.Hour)
		pending(t, "a wait for a hold", ch)
		free()
		l := granted(t, "after release", ch)
		if l.Grant().Fence <= mine.Grant().Fence {
			t.Errorf("token %d after %d", l.Grant().Fence, mine.Grant().Fence)
		}
		free()
		wantHeld(t, b, request("k"))
		ch = start(t.Context(), b, request("k"))
		b.Expire("k")
		granted(t, "after Expire", ch)
	})
}

// A call that waits hears of an outage that was over before it looked, and an outage is no contention,
// also if the caller gives up before.
func TestAWaitEndsWithAShortOutage(t *testing.T) {
	b := New()
	acquire(t, b, request("k"))
	cut := errors.New("connection refused")
	ctx, cancel := context.WithCancel(t.Context())
	w := b.space.entries["k"].enqueue(b, request("k"), time.Now())
	b.Fail(cut)
	b.Fail(nil)
	cancel()
	if _, err := b.wait(ctx, w); !errors.Is(err, cut) || errors.Is(err, driver.ErrHeld) {
		t.Errorf("the wait gives %v", err)
	}
}

func TestAnotherOutageGivesACallNoMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, begun := New(), time.Now()
		b.SetOutage(Outage{Hang: true})
		time.AfterFunc(600*time.Millisecond, func() { b.SetOutage(Outage{Hang: true}) })
		_, err := b.Acquire(t.Context(), request("k"))
		if took := time.Since(begun); err == nil || took != callTimeout {
			t.Errorf("%v after %v, want an error after %v", err, took, callTimeout)
		}
	})
}

func TestCloseWakesAndEndsItsOwnWatchesAlone(t *testing.T) {
	b := New()
	peer := b.Peer()
	own, err := b.Watch(t.Context(), "k")
	must(t, err)
	other, err := peer.Watch(t.Context(), "k")
	must(t, err)
	must(t, b.Close())
	if len(own) != 1 || len(other) != 0 || len(b.space.entries["k"].watches) != 1 {
		t.Errorf("%d values, and %d of another backend; %d watch", len(own), len(other), len(b.space.entries["k"].watches))
	}
	release(t, acquire(t, peer, request("k")))
	if len(other) != 1 {
		t.Error("the other backend's watch has ended")
	}
}

func TestTheLargestTokenIsAllowedAndNoLarger(t *testing.T) {
	b := New()
	exact := func(fence uint64) func(*driver.Request) {
		return func(r *driver.Request) { r.ExactFence = fence }
	}
	l := acquire(t, b, request("k"))
	_, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl, MinFence: driver.MaxFence + 1})
	wantErr(t, "a renewal above it", err, driver.ErrInvalid)
	_, err = l.Renew(t.Context(), &driver.Renewal{TTL: ttl, MinFence: driver.MaxFence})
	must(t, err)
	_, err = b.Acquire(t.Context(), request("other", exact(driver.MaxFence+1)))
	wantErr(t, "a request above it", err, driver.ErrInvalid)
	acquire(t, b, request("largest", exact(driver.MaxFence)))
	acquire(t, b, request("other", exact(driver.MaxFence-2)))
	for want := uint64(driver.MaxFence - 1); want <= driver.MaxFence; want++ {
		b.Expire("other")
		if got := acquire(t, b, request("other")).Grant().Fence; got != want {
			t.Errorf("token %d, want %d", got, want)
		}
	}
}

func open(t *testing.T, d *Driver, dsn, prefix string) *Backend {
	t.Helper()
	b, err := d.Open(&driver.Config{DSN: dsn, Prefix: prefix})
	if err != nil {
		t.Fatalf("open %q: %v", dsn, err)
	}
	return b.(*Backend)
}

func TestTheSameNameIsTheSameSpace(t *testing.T) {
	d := &Driver{}
	const named = "memory:azAZ09._-"
	acquire(t, open(t, d, named, ""), request("k"))
	acquire(t, open(t, d, "memory:", ""), request("k"))
	acquire(t, open(t, d, named, "p:"), request("k"))
	acquire(t, New(), request("k"))
	wantHeld(t, open(t, d, named, ""), request("k"))
	wantHeld(t, open(t, d, "memory:", ""), request("k"))
	wantHeld(t, open(t, d, named, "p:"), request("k"))
	wantHeld(t, open(t, d, named, ""), request("p:k"))
	if s := open(t, d, named, "").String(); s != named {
		t.Errorf("String() = %q", s)
	}
	if a, b := New().String(), New().String(); a == b {
		t.Errorf("two spaces have one address, %q", a)
	}
}

func TestABadURLNamesTheBadPart(t *testing.T) {
	for dsn, part := range map[string]string{
		"memory":             "URL",
		"memory://x":         "URL",
		"memory:a@b":         "URL",
		"memory:a?size=4":    `"size"`,
		"memory:?x=1&ttl=10": `"`,
	} {
		_, err := new(Driver).Open(&driver.Config{DSN: dsn})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: got %v, want ErrInvalid that names %s", dsn, err, part)
		}
	}
}
