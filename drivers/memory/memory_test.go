package memory

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
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

func shared(r *driver.Request)  { r.Mode = driver.Shared }
func waiting(r *driver.Request) { r.Wait = true }

func acquire(t *testing.T, b *Backend, r *driver.Request) driver.Lease {
	t.Helper()
	l, err := b.Acquire(t.Context(), r)
	if err != nil {
		t.Fatalf("acquire %q: %v", r.Key, err)
	}
	return l
}

func release(t *testing.T, l driver.Lease) {
	t.Helper()
	if err := l.Release(t.Context()); err != nil {
		t.Fatalf("release: %v", err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// wantHeld checks that nobody can take key with req's mode now.
func wantHeld(t *testing.T, b *Backend, req *driver.Request) driver.HeldError {
	t.Helper()
	_, err := b.Acquire(t.Context(), req)
	var held *driver.HeldError
	if !errors.As(err, &held) {
		t.Fatalf("acquire %q: got %v, want a *HeldError", req.Key, err)
	}
	return *held
}

type result struct {
	lease driver.Lease
	err   error
}

// start calls Acquire in a goroutine, and returns when it stands in line.
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

func TestOfAHundredExactlyOneWins(t *testing.T) {
	b := New()
	var wg sync.WaitGroup
	var won, held atomic.Int32
	for range 100 {
		wg.Go(func() {
			switch _, err := b.Peer().Acquire(context.Background(), request("k")); {
			case err == nil:
				won.Add(1)
			case errors.Is(err, driver.ErrHeld):
				held.Add(1)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 || held.Load() != 99 {
		t.Errorf("%d won and %d saw it held, want 1 and 99", won.Load(), held.Load())
	}
}

func TestHeldNamesTheHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		r := request("k")
		l := acquire(t, b, r)
		since := time.Now()
		time.Sleep(3 * time.Second)
		h := wantHeld(t, b, request("k"))
		want := driver.HeldError{Holder: r.Owner, RetryAfter: 7 * time.Second, Since: since.Round(0), Server: l.Grant().Server, Clock: time.Now().Round(0)}
		if h != want {
			t.Errorf("got %+v, want %+v", h, want)
		}
		if s, want := h.Error(), "held by "+r.Owner+" for 3s; its lease ends in 7s unless it is renewed"; s != want {
			t.Errorf("Error() = %q, want %q", s, want)
		}
	})
}

func TestALeaseEndsWithItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		start := time.Now()
		l := acquire(t, b, request("k"))
		if got, want := l.Grant().Expires, start.Add(ttl-driver.Drift(ttl)); !got.Equal(want) {
			t.Errorf("Expires = %v, want %v", got, want)
		}
		time.Sleep(ttl - 1)
		wantHeld(t, b, request("k"))
		time.Sleep(time.Nanosecond)
		second := acquire(t, b, request("k"))

		_, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		wantErr(t, "renewal of a lease that has ended", err, driver.ErrLost)
		wantErr(t, "its release", l.Release(t.Context()), driver.ErrLost)
		wantErr(t, "its second release", l.Release(t.Context()), nil)
		wantHeld(t, b, request("k"))
		release(t, second)
	})
}

func TestRenewalExtendsFromNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		l := acquire(t, b, request("k"))
		for range 5 {
			time.Sleep(ttl - 1)
			g, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
			if err != nil {
				t.Fatal(err)
			}
			if want := driver.Expires(time.Now(), ttl); !g.Expires.Equal(want) || !l.Grant().Expires.Equal(want) {
				t.Errorf("Expires = %v and %v, want %v", g.Expires, l.Grant().Expires, want)
			}
			if g.Fence != l.Grant().Fence {
				t.Errorf("the renewal changed the token to %d", g.Fence)
			}
		}
		release(t, l)
		_, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		wantErr(t, "renewal after the release", err, driver.ErrLost)
	})
}

func TestOnlyTheExactInstanceRenewsAndReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		r := request("k")
		old := acquire(t, b, r)
		time.Sleep(ttl)
		again := acquire(t, b, r) // the same owner, a new token
		if again.Grant().Fence <= old.Grant().Fence {
			t.Errorf("tokens %d, then %d", old.Grant().Fence, again.Grant().Fence)
		}
		_, err := old.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		wantErr(t, "renewal of the old instance", err, driver.ErrLost)
		wantErr(t, "release of the old instance", old.Release(t.Context()), driver.ErrLost)
		wantHeld(t, b, request("k"))
		release(t, again)
		release(t, acquire(t, b, request("k")))
	})
}

func TestARetriedRequestHasTheTokenThatItHas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		r := request("k")
		first := acquire(t, b, r)
		time.Sleep(ttl / 2)
		second := acquire(t, b, r)
		if first.Grant().Fence != second.Grant().Fence {
			t.Errorf("tokens %d and %d", first.Grant().Fence, second.Grant().Fence)
		}
		time.Sleep(ttl - 1)
		wantHeld(t, b, request("k"))
		wantHeld(t, b, &driver.Request{Key: "k", Owner: r.Owner, TTL: ttl, Mode: driver.Shared}) // is another request
		release(t, second)
		wantErr(t, "release by the first handle", first.Release(t.Context()), driver.ErrLost)
	})
}

func TestWaitersAreServedInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		l := acquire(t, b, request("k"))
		var line []<-chan result
		for range 5 {
			line = append(line, start(t.Context(), b.Peer(), request("k")))
		}
		fence := l.Grant().Fence
		for i, ch := range line {
			release(t, l)
			l = granted(t, fmt.Sprint("waiter ", i), ch)
			if f := l.Grant().Fence; f <= fence {
				t.Errorf("token %d after %d", f, fence)
			} else {
				fence = f
			}
			for _, later := range line[i+1:] {
				pending(t, "a later waiter", later)
			}
			wantHeld(t, b, request("k")) // and nobody jumps the line
		}
		release(t, l)
	})
}

func TestSharedRequestsDoNotOvertakeAnExclusiveOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		s1 := acquire(t, b, request("k", shared))
		s2 := acquire(t, b, request("k", shared))
		x := start(t.Context(), b, request("k"))
		s3 := start(t.Context(), b, request("k", shared))
		s4 := start(t.Context(), b, request("k", shared))
		x2 := start(t.Context(), b, request("k"))
		s5 := start(t.Context(), b, request("k", shared))
		wantHeld(t, b, request("k", shared))

		release(t, s1)
		pending(t, "exclusive beside a shared holder", x)
		release(t, s2)
		lx := granted(t, "exclusive", x)
		pending(t, "shared beside an exclusive holder", s3)
		release(t, lx)
		l3, l4 := granted(t, "shared", s3), granted(t, "the shared one next to it", s4)
		if l3.Grant().Fence == l4.Grant().Fence {
			t.Errorf("two shared holders have one token, %d", l3.Grant().Fence)
		}
		pending(t, "the second exclusive", x2)
		pending(t, "the shared one behind it", s5)
		release(t, l3)
		release(t, l4)
		release(t, granted(t, "the second exclusive", x2))
		release(t, granted(t, "the last shared", s5))
	})
}

func TestExpiryWakesTheFirstInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		l := acquire(t, b, request("k"))
		began := time.Now()
		ch := start(t.Context(), b, request("k"))
		time.Sleep(ttl / 2)
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl}); err != nil {
			t.Fatal(err)
		}
		r := <-ch
		if r.err != nil {
			t.Fatal(r.err)
		}
		if d := time.Since(began); d != ttl/2+ttl {
			t.Errorf("granted after %v, want %v", d, ttl/2+ttl)
		}
		wantErr(t, "release of the expired lease", l.Release(t.Context()), driver.ErrLost)
		release(t, r.lease)
	})
}

func TestSharedHoldersExpireOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		acquire(t, b, request("k", shared))
		time.Sleep(time.Second)
		acquire(t, b, request("k", shared))
		began := time.Now()
		if h := wantHeld(t, b, request("k")); h.RetryAfter != ttl {
			t.Errorf("RetryAfter = %v, want the time of the holder that stays longest, %v", h.RetryAfter, ttl)
		}
		r := <-start(t.Context(), b, request("k"))
		if d := time.Since(began); r.err != nil || d != ttl {
			t.Errorf("granted after %v (%v), want %v", d, r.err, ttl)
		}
	})
}

func TestAWaitCountsFromItsConfirmation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		l := acquire(t, b, request("k"))
		e := b.space.entries["k"]
		w := e.enqueue(b, request("k"), time.Now())
		release(t, l) // grants it to w, whose goroutine is slow to hear of it
		time.Sleep(ttl - time.Second)
		got, err := b.confirm(t.Context(), w)
		if err != nil || got == nil {
			t.Fatalf("confirm: %v, %v", got, err)
		}
		if want := driver.Expires(time.Now(), ttl); !got.Grant().Expires.Equal(want) {
			t.Errorf("Expires = %v, want %v", got.Grant().Expires, want)
		}
		time.Sleep(ttl - 1)
		wantHeld(t, b, request("k"))
	})
}

func TestAGrantThatEndsBeforeItsConfirmationIsNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		l := acquire(t, b, request("k"))
		w := b.space.entries["k"].enqueue(b, request("k"), time.Now())
		release(t, l)
		time.Sleep(2 * idle) // its TTL passes
		other := acquire(t, b, request("k"))
		if got, err := b.confirm(t.Context(), w); got != nil || err != nil {
			t.Fatalf("confirm: %v, %v; another owner has the key", got, err)
		}
		release(t, other)
		got, err := b.confirm(t.Context(), w)
		if err != nil || got == nil {
			t.Fatalf("confirm: %v, %v; want the second grant", got, err)
		}
		if got.Grant().Fence <= other.Grant().Fence {
			t.Errorf("token %d after %d", got.Grant().Fence, other.Grant().Fence)
		}

		// The same once more, and the entry is dropped in between.
		w = b.space.entries["k"].enqueue(b, request("k"), time.Now())
		release(t, got)
		time.Sleep(2 * idle)
		b.space.mu.Lock()
		b.space.sweep(time.Now())
		b.space.mu.Unlock()
		if len(b.space.entries) != 0 {
			t.Fatal("the sweep kept the entry")
		}
		other = acquire(t, b, request("k"))
		for range 2 {
			if got, err := b.confirm(t.Context(), w); got != nil || err != nil {
				t.Fatalf("confirm after a sweep: %v, %v; another owner has the key", got, err)
			}
		}
		release(t, other)
		if got, err := b.confirm(t.Context(), w); got == nil || err != nil {
			t.Fatalf("confirm after a sweep: %v, %v; want a grant", got, err)
		}
	})
}

func TestACancelledWaitLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		r := request("k", shared)
		l := acquire(t, b, r)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		x := start(ctx, b, request("k"))
		s := start(t.Context(), b, request("k", shared))
		pending(t, "a shared request behind an exclusive one", s)
		got := <-x
		wantErr(t, "a wait that timed out", got.err, context.DeadlineExceeded)
		var held *driver.HeldError
		if !errors.As(got.err, &held) || held.Holder != r.Owner {
			t.Errorf("a wait that timed out: %v, want the holder too", got.err)
		}
		release(t, granted(t, "the shared request once the exclusive one has gone", s))
		release(t, l)
		if st, _ := b.Lookup(t.Context(), "k"); st.Waiters != 0 || len(st.Holders) != 0 {
			t.Errorf("left: %+v", st)
		}
	})
}

func TestAGrantThatCrossesTheCancellationIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		l := acquire(t, b, request("k"))
		ctx, cancel := context.WithCancel(t.Context())
		w := b.space.entries["k"].enqueue(b, request("k"), time.Now())
		next := start(t.Context(), b, request("k"))
		release(t, l)
		cancel()
		if got, err := b.confirm(ctx, w); got != nil || !errors.Is(err, context.Canceled) {
			t.Fatalf("confirm: %v, %v", got, err)
		}
		release(t, granted(t, "the next in line", next))
	})
}

func TestAnEndedContextTakesNothing(t *testing.T) {
	b := New()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := b.Acquire(ctx, request("k"))
	wantErr(t, "acquire", err, context.Canceled)
	l := acquire(t, b, request("k"))
	_, err = l.Renew(ctx, &driver.Renewal{TTL: ttl})
	wantErr(t, "renew", err, context.Canceled)
	if err := l.Release(ctx); err != nil {
		t.Errorf("release works after cancellation: %v", err)
	}
	release(t, acquire(t, b, request("k")))
}

// lateContext has a deadline in the past, and its timer has not fired.
type lateContext struct{ context.Context }

func (lateContext) Deadline() (time.Time, bool) { return time.Now().Add(-time.Second), true }

func TestARequestAfterItsDeadlineIsRefused(t *testing.T) {
	b := New()
	_, err := b.Acquire(lateContext{t.Context()}, request("k"))
	wantErr(t, "acquire", err, context.DeadlineExceeded)
	l := acquire(t, b, request("k"))
	_, err = l.Renew(lateContext{t.Context()}, &driver.Renewal{TTL: ttl})
	wantErr(t, "renew", err, context.DeadlineExceeded)
}

func TestTokensRiseFromTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		l := acquire(t, b, request("k"))
		if got, want := l.Grant().Fence, uint64(time.Now().UnixMicro()); got != want {
			t.Errorf("the first token is %d, want the clock in microseconds, %d", got, want)
		}
		if g := l.Grant(); !g.Clock.Equal(time.Now()) || g.Server == "" {
			t.Errorf("Clock = %v, Server = %q", g.Clock, g.Server)
		}
		last := l.Grant().Fence
		for range 10 { // the clock stands still
			release(t, l)
			l = acquire(t, b, request("k"))
			if got := l.Grant().Fence; got != last+1 {
				t.Errorf("token %d after %d", got, last)
			}
			last = l.Grant().Fence
		}
	})
}

func TestFenceFloorIsHonouredUpToTheSlack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		now := uint64(time.Now().UnixMicro())
		slack := uint64(driver.FenceSlack / time.Microsecond)
		for floor, want := range map[uint64]uint64{
			now - 5:             now - 5,
			now + 7:             now + 7,
			now + slack:         now + slack,
			now + slack + 1:     now + slack,
			driver.MaxFence * 2: now + slack,
		} {
			l := acquire(t, New(), request("k", func(r *driver.Request) { r.FenceFloor = floor }))
			if got := l.Grant().Fence; got != want {
				t.Errorf("floor %d gave token %d, want %d", floor, got, want)
			}
		}
	})
}

func TestJoinTakesAKeyAtExactlyTheToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := func(fence uint64) func(*driver.Request) {
			return func(r *driver.Request) { r.ExactFence = fence }
		}
		b := New()
		if got := acquire(t, b, request("free", at(77))).Grant().Fence; got != 77 {
			t.Errorf("join of a free key at 77 gave %d", got)
		}

		r := request("mine")
		l := acquire(t, b, r)
		r.ExactFence = l.Grant().Fence + 100
		if got := acquire(t, b, r).Grant().Fence; got != l.Grant().Fence {
			t.Errorf("join of a key that it has gave %d, want its token %d", got, l.Grant().Fence)
		}
		wantHeld(t, b, request("mine", at(l.Grant().Fence+100)))
		release(t, l)

		var refused *driver.RefusedError
		_, err := b.Acquire(t.Context(), request("mine", at(l.Grant().Fence-1)))
		if !errors.As(err, &refused) || refused.RetryAfter != 0 {
			t.Errorf("join below the counter: %v, want a *RefusedError for ever", err)
		}
		again := acquire(t, b, request("mine", at(l.Grant().Fence)))
		if got := again.Grant().Fence; got != l.Grant().Fence {
			t.Errorf("join at the counter gave %d, want %d", got, l.Grant().Fence)
		}
		release(t, again)
		if got := acquire(t, b, request("mine")).Grant().Fence; got <= l.Grant().Fence {
			t.Errorf("token %d after a join at %d", got, l.Grant().Fence)
		}

		// A token that was joined twice is still two acquisitions.
		first := acquire(t, b, request("twice", at(77)))
		b.Expire("twice")
		acquire(t, b, request("twice", at(77)))
		_, err = first.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		wantErr(t, "renewal of the first of them", err, driver.ErrLost)
		wantErr(t, "its release", first.Release(t.Context()), driver.ErrLost)
		wantHeld(t, b, request("twice"))

		_, err = b.Acquire(t.Context(), request("far", at(driver.MaxFence+1)))
		wantErr(t, "join above the largest token", err, driver.ErrInvalid)
	})
}

func TestMinFenceRaisesTheCounterWithTheRenewal(t *testing.T) {
	b := New()
	l := acquire(t, b, request("k"))
	fence := l.Grant().Fence
	min := fence + 1e9
	g, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl, MinFence: min})
	if err != nil || g.Fence != fence {
		t.Fatalf("renew: %+v, %v; want the lease's own token %d", g, err, fence)
	}
	if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl, MinFence: 1}); err != nil {
		t.Fatal(err)
	}
	release(t, l)
	next := acquire(t, b, request("k"))
	if got := next.Grant().Fence; got != min+1 {
		t.Errorf("the next token is %d, want %d", got, min+1)
	}

	// Whoever has lost the key raises nothing.
	b.Expire("k")
	_, err = next.Renew(t.Context(), &driver.Renewal{TTL: ttl, MinFence: min + 1e9})
	wantErr(t, "a raise without the lock", err, driver.ErrLost)
	if got := acquire(t, b, request("k")).Grant().Fence; got != min+2 {
		t.Errorf("the next token is %d, want %d", got, min+2)
	}
	_, err = next.Renew(t.Context(), &driver.Renewal{TTL: ttl, MinFence: driver.MaxFence + 1})
	wantErr(t, "a raise above the largest token", err, driver.ErrInvalid)
}

func TestAQuorumsGuardBoundsAndItsGraceExtends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		quorum := func(r *driver.Request) {
			r.Quorum = &driver.Quorum{Terms: driver.Terms{N: 3, Guard: 30 * time.Second, Grace: time.Second}}
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
		release(t, acquire(t, b, request("k", quorum)))

		_, err := b.Acquire(t.Context(), request("k", quorum, func(r *driver.Request) { r.TTL = 31 * time.Second }))
		var refused *driver.RefusedError
		if !errors.As(err, &refused) || refused.RetryAfter != 0 || !strings.Contains(refused.Reason, "30s") {
			t.Errorf("a TTL over the guard: %v, want a *RefusedError that names the guard", err)
		}
	})
}

func TestDroppedCountersNeverLowerATokenAndFreeTheirMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		var last uint64
		for i := range 10 * sweepMin {
			l := acquire(t, b, request(fmt.Sprint("key", i)))
			last = l.Grant().Fence
			release(t, l)
			time.Sleep(100 * time.Millisecond)
		}
		if n := len(b.space.entries); n > 2*sweepMin {
			t.Errorf("%d entries are kept", n)
		}
		kept := acquire(t, b, request("kept"))
		time.Sleep(time.Second)
		b.space.mu.Lock()
		b.space.sweep(time.Now().Add(2 * idle))
		b.space.mu.Unlock()
		if n := len(b.space.entries); n != 0 && n != 1 {
			t.Errorf("%d entries are kept, want at most the one that is held", n)
		}
		if _, err := kept.Renew(t.Context(), &driver.Renewal{TTL: ttl}); err != nil && !errors.Is(err, driver.ErrLost) {
			t.Errorf("renew: %v", err)
		}
		// Even a proposal from a clock far behind gives a larger token than any that
		// was forgotten.
		l := acquire(t, b, request("key0", func(r *driver.Request) { r.FenceFloor = 1 }))
		if got := l.Grant().Fence; got <= last {
			t.Errorf("token %d after %d", got, last)
		}
	})
}

func TestASweepKeepsWhatIsHeldWatchedOrWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		held := acquire(t, b, request("held", func(r *driver.Request) { r.TTL = MaxTTL }))
		watched, err := b.Watch(t.Context(), "watched")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		b.space.mu.Lock()
		b.space.sweep(time.Now())
		b.space.mu.Unlock()
		wantHeld(t, b, request("held"))
		release(t, held)
		release(t, acquire(t, b, request("watched")))
		if len(watched) != 1 {
			t.Error("the watcher missed a release after a sweep")
		}
	})
}

func TestWatchHearsOfEveryWayAKeyComesFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		ctx, cancel := context.WithCancel(t.Context())
		var l driver.Lease
		for what, free := range map[string]func(){
			"release": func() { release(t, l) },
			"expiry":  func() { time.Sleep(ttl) },
			"Expire":  func() { b.Expire("k") },
			"Break": func() {
				if err := b.Break(ctx, "k", l.Grant().Fence); err != nil {
					t.Fatal(err)
				}
			},
			"outage": func() { b.Fail(errors.New("cut")); b.Fail(nil); b.Expire("k") },
		} {
			l = acquire(t, b.Peer(), request("k"))
			ch, err := b.Watch(ctx, "k")
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if len(ch) != 0 {
				t.Errorf("%s: a value before it", what)
			}
			free()
			synctest.Wait()
			if len(ch) != 1 {
				t.Errorf("%s: no value", what)
			}
		}
		cancel()
		synctest.Wait()
		if n := len(b.watches) + len(b.space.entries["k"].watches); n != 0 {
			t.Errorf("%d watches outlive their context", n)
		}
		_, err := b.Watch(t.Context(), "")
		wantErr(t, "watch of an empty key", err, driver.ErrInvalid)
	})
}

func TestCloseEndsTheBackendAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		peer := b.Peer()
		l := acquire(t, b, request("k"))
		theirs := acquire(t, peer, request("theirs"))
		mine := start(t.Context(), b, request("theirs"))
		next := start(t.Context(), peer, request("k"))
		watch, err := b.Watch(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
		}
		wantErr(t, "a waiting call", (<-mine).err, driver.ErrClosed)
		if len(watch) != 1 || len(b.watches) != 0 {
			t.Errorf("the watcher has %d values and %d registrations, want 1 and 0", len(watch), len(b.watches))
		}
		_, err = b.Acquire(t.Context(), request("other"))
		wantErr(t, "acquire", err, driver.ErrClosed)
		_, err = b.Watch(t.Context(), "k")
		wantErr(t, "watch", err, driver.ErrClosed)
		_, err = b.Lookup(t.Context(), "k")
		wantErr(t, "lookup", err, driver.ErrClosed)
		wantErr(t, "list", b.List(t.Context(), "", nil), driver.ErrClosed)
		_, err = b.Check(t.Context())
		wantErr(t, "check", err, driver.ErrClosed)
		wantErr(t, "break", b.Break(t.Context(), "k", 1), driver.ErrClosed)
		_, err = l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		wantErr(t, "renew", err, driver.ErrClosed)
		wantErr(t, "release", l.Release(t.Context()), driver.ErrClosed)

		pending(t, "a peer's wait for what the closed backend holds", next)
		release(t, theirs)
		if r := <-next; r.err != nil { // when the TTL has ended
			t.Error(r.err)
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
	})
}

func TestExpireTakesTheKeyFromItsHolder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		b.Expire("nobody's")
		l := acquire(t, b, request("k"))
		next := start(t.Context(), b, request("k"))
		b.Expire("k")
		granted(t, "the next in line", next)
		_, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		wantErr(t, "renew", err, driver.ErrLost)
		wantErr(t, "release", l.Release(t.Context()), driver.ErrLost)
	})
}

func TestFailAnswersEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New()
		cut := errors.New("connection refused")
		l := acquire(t, b, request("k"))
		wait := start(t.Context(), b, request("k"))
		b.Fail(cut)
		r := <-wait
		wantErr(t, "a waiting call", r.err, cut)
		if errors.Is(r.err, driver.ErrHeld) {
			t.Errorf("an outage looks like contention: %v", r.err)
		}
		_, err := b.Acquire(t.Context(), request("other"))
		wantErr(t, "acquire", err, cut)
		_, err = l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		wantErr(t, "renew", err, cut)
		wantErr(t, "release", l.Release(t.Context()), cut)
		_, err = b.Watch(t.Context(), "k")
		wantErr(t, "watch", err, cut)
		_, err = b.Lookup(t.Context(), "k")
		wantErr(t, "lookup", err, cut)
		wantHeld(t, b.Peer(), request("k"))
		b.Fail(nil)
		release(t, l)
		release(t, acquire(t, b, request("k")))
	})
}

func TestBreakNeedsTheToken(t *testing.T) {
	b := New()
	wantErr(t, "break of an unknown key", b.Break(t.Context(), "k", 1), driver.ErrLost)
	l := acquire(t, b, request("k", shared))
	other := acquire(t, b, request("k", shared))
	wantErr(t, "break with a wrong token", b.Break(t.Context(), "k", other.Grant().Fence+1), driver.ErrLost)
	wantErr(t, "break", b.Break(t.Context(), "k", l.Grant().Fence), nil)
	_, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
	wantErr(t, "renewal of the broken lease", err, driver.ErrLost)
	if _, err := other.Renew(t.Context(), &driver.Renewal{TTL: ttl}); err != nil {
		t.Errorf("renewal of the other lease: %v", err)
	}
}

func TestInspection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Driver{}
		b := open(t, d, "memory:x", "app:")
		r := request("a1", shared)
		l := acquire(t, b, r)
		acquire(t, b, request("a2"))
		acquire(t, b, request("b"))
		release(t, acquire(t, b, request("a3")))
		acquire(t, open(t, d, "memory:x", ""), request("a4"))
		wait := start(t.Context(), b, request("a1"))
		time.Sleep(time.Second)

		st, err := b.Lookup(t.Context(), "a1")
		if err != nil {
			t.Fatal(err)
		}
		if st.Key != "a1" || st.Mode != driver.Shared || st.Waiters != 1 || st.Fence != l.Grant().Fence || len(st.Holders) != 1 {
			t.Fatalf("state %+v", st)
		}
		want := driver.Holder{Owner: r.Owner, Fence: l.Grant().Fence, Since: l.Grant().Clock, TTL: ttl - time.Second}
		if st.Holders[0] != want {
			t.Errorf("holder %+v, want %+v", st.Holders[0], want)
		}
		list := func(prefix string, limit int) (keys []string) {
			err := b.List(t.Context(), prefix, func(s *driver.State) bool {
				keys = append(keys, s.Key)
				return len(keys) < limit
			})
			if err != nil {
				t.Error(err)
			}
			slices.Sort(keys)
			return keys
		}
		if got := list("a", 9); !slices.Equal(got, []string{"a1", "a2"}) {
			t.Errorf("list a: %q", got)
		}
		if got := list("", 9); !slices.Equal(got, []string{"a1", "a2", "b"}) {
			t.Errorf("list: %q", got)
		}
		if got := list("", 1); len(got) != 1 {
			t.Errorf("list went on after yield returned false: %q", got)
		}
		time.Sleep(ttl)
		if st, _ := b.Lookup(t.Context(), "a2"); len(st.Holders) != 0 || st.Fence == 0 {
			t.Errorf("after its TTL: %+v", st)
		}
		if st, err := b.Lookup(t.Context(), "never"); err != nil || st.Key != "never" || len(st.Holders) != 0 {
			t.Errorf("a key that nobody used: %+v, %v", st, err)
		}
		release(t, granted(t, "the waiter", wait))
		if found, err := b.Check(t.Context()); err != nil || len(found) != 1 {
			t.Errorf("check: %v, %v", found, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		wantErr(t, "list with an ended context", b.List(ctx, "", nil), context.Canceled)
	})
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
	acquire(t, open(t, d, "memory:a", ""), request("k"))
	acquire(t, open(t, d, "memory:", ""), request("k"))
	acquire(t, open(t, d, "memory:a", "p:"), request("k"))
	acquire(t, New(), request("k"))
	wantHeld(t, open(t, d, "memory:a", ""), request("k"))
	wantHeld(t, open(t, d, "memory:", ""), request("k"))
	wantHeld(t, open(t, d, "memory:a", "p:"), request("k"))
	wantHeld(t, open(t, d, "memory:a", ""), request("p:k"))
	if s := open(t, d, "memory:a", "").String(); s != "memory:a" {
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

func TestWhatCannotBeHonouredIsRefusedByName(t *testing.T) {
	b := New()
	for part, change := range map[string]func(*driver.Request){
		"key":   func(r *driver.Request) { r.Key = "" },
		"512":   func(r *driver.Request) { r.Key = strings.Repeat("k", 513) },
		"owner": func(r *driver.Request) { r.Owner = "" },
		"mode":  func(r *driver.Request) { r.Mode = 7 },
		"10ms":  func(r *driver.Request) { r.TTL = 9 * time.Millisecond },
		"24h":   func(r *driver.Request) { r.TTL = MaxTTL + 1 },
	} {
		_, err := b.Acquire(t.Context(), request("k", change))
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("got %v, want ErrInvalid that names %s", err, part)
		}
	}
	l := acquire(t, b, request("k"))
	_, err := l.Renew(t.Context(), &driver.Renewal{})
	wantErr(t, "renewal without a TTL", err, driver.ErrInvalid)
}

func TestKeysAreAnyBytes(t *testing.T) {
	b := New()
	for _, k := range []string{"\x00", "a\x00b", "ключ", "{a}b", "a b\n", "\xff\xfe", strings.Repeat("k", 512)} {
		l := acquire(t, b, request(k))
		if st, _ := b.Lookup(t.Context(), k); st.Key != k || len(st.Holders) != 1 {
			t.Errorf("key %q: %+v", k, st)
		}
		release(t, l)
	}
}

func TestRandomHistoriesExclude(t *testing.T) {
	b := New()
	var writers, readers [3]atomic.Int32
	var last [3]atomic.Uint64
	var grants atomic.Int32
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(1, uint64(i)))
			for range 300 {
				k := rng.IntN(3)
				r := request(fmt.Sprint(k))
				r.Wait = rng.IntN(4) > 0
				if rng.IntN(2) == 0 {
					r.Mode = driver.Shared
				}
				ctx, cancel := context.WithCancel(context.Background())
				if rng.IntN(4) == 0 {
					time.AfterFunc(time.Duration(rng.IntN(50))*time.Microsecond, cancel)
				}
				l, err := b.Acquire(ctx, r)
				if err != nil {
					cancel()
					continue
				}
				grants.Add(1)
				if r.Mode == driver.Shared {
					readers[k].Add(1)
					if writers[k].Load() != 0 {
						t.Error("a shared holder beside an exclusive one")
					}
					readers[k].Add(-1)
				} else {
					if writers[k].Add(1) != 1 || readers[k].Load() != 0 {
						t.Error("an exclusive holder is not alone")
					}
					if f := l.Grant().Fence; f <= last[k].Swap(f) {
						t.Error("a token does not rise")
					}
					writers[k].Add(-1)
				}
				if err := l.Release(ctx); err != nil {
					t.Errorf("release: %v", err)
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if grants.Load() < 1000 {
		t.Errorf("only %d grants", grants.Load())
	}
	for k, e := range b.space.entries {
		if len(e.holders)+len(e.queue) != 0 {
			t.Errorf("key %s: left %d holders and %d waiters", k, len(e.holders), len(e.queue))
		}
	}
}

func TestTheURLOpensIt(t *testing.T) {
	name := "memory:" + strings.ToLower(t.Name())
	one, err := dlock.OpenURL(name + "?ttl=5s&prefix=p:")
	if err != nil {
		t.Fatal(err)
	}
	defer one.Close() //nolint:errcheck // of memory
	two, err := dlock.OpenBackend(name)
	if err != nil {
		t.Fatal(err)
	}
	defer two.Close() //nolint:errcheck // of memory
	l, err := one.TryLock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := two.Acquire(t.Context(), request("p:k")); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the same name is another space: %v", err)
	}
	if err := l.Unlock(); err != nil {
		t.Error(err)
	}
	_, err = dlock.OpenURL("memory:?colour=red")
	wantErr(t, "an unknown parameter", err, driver.ErrInvalid)
}
