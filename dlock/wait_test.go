package dlock_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if testing.Short() {
		_ = flag.Set("test.parallel", "8") // that flag exists, and half of the parallel tests wait for servers
		debug.SetGCPercent(400)            // a small heap, of which collecting was a tenth of the work
	}
	code := m.Run()
	// goleak gives up after less than half a second, in which a goroutine may not end on a busy
	// machine.
	for end := time.Now().Add(20 * time.Second); code == 0; {
		err := goleak.Find()
		if err == nil {
			break
		}
		if time.Now().After(end) {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// ways are the three ways of waiting, over the same backend.
var ways = map[string]func(*spy) driver.Backend{
	"native":  func(s *spy) driver.Backend { return s },
	"watched": func(s *spy) driver.Backend { s.hide = driver.FeatureQueueing; return watching{s} },
	"polled":  func(s *spy) driver.Backend { s.hide = driver.FeatureQueueing; return s },
}

func eachWay(t *testing.T, f func(t *testing.T, s *spy, b driver.Backend)) {
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newSpy()
				f(t, s, way(s))
			})
		})
	}
}

func TestAWaiterGetsTheReleasedLock(t *testing.T) {
	eachWay(t, func(t *testing.T, s *spy, b driver.Backend) {
		free := s.Backend.(*memory.Backend).Hold("k")
		c := newSpyClient(t, b)
		got := make(chan *dlock.Lease)
		go func() { l, _ := c.Lock(t.Context(), "k"); got <- l }()
		synctest.Wait()
		if n := s.acquires.Load(); s.hide == 0 && n != 2 || b != driver.Backend(s) && n != 2 {
			t.Errorf("%d requests at once, want one that tries, and one that waits or comes after subscribing", n)
		}
		time.Sleep(90 * time.Second)
		if c.Stats().Waiting != 1 {
			t.Errorf("Stats = %+v, want one waiting", c.Stats())
		}
		released := time.Now()
		free()
		l := <-got
		most := 150 * time.Millisecond // polled: the longest pause, with its jitter
		if b == driver.Backend(s) && s.hide == 0 || s.hide != 0 && b != driver.Backend(s) {
			most = 0
		}
		if took := time.Since(released); took > most {
			t.Errorf("took %v, want at most %v", took, most)
		}
		if n := c.Stats(); n.WaitTime < 90*time.Second || n.WaitTime > 91*time.Second {
			t.Errorf("Stats = %+v, want the time of the wait", n)
		}
		unlock(t, l)
	})
}

func TestAWaiterGetsTheLockOfADeadHolder(t *testing.T) {
	eachWay(t, func(t *testing.T, s *spy, b driver.Backend) {
		req := &driver.Request{Key: "k", Owner: "dead/1", TTL: 10 * time.Second}
		if _, err := s.Backend.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		unlock(t, lock(t, newSpyClient(t, b), "k"))
		if took := time.Since(start); took < 10*time.Second || took > 11200*time.Millisecond {
			t.Errorf("took %v, want about the TTL of 10 s", took)
		}
	})
}

// A release in this process wakes the next waiter without a poll. A signal of it may never come, if
// the server does not allow publishing: then the waiter asks a little later.
func TestALocalReleaseWakesTheFirstWaiter(t *testing.T) {
	for _, tt := range []struct {
		way         func(*spy) driver.Backend
		least, most time.Duration
	}{
		{ways["polled"], 0, 0},
		{func(s *spy) driver.Backend { s.hide = driver.FeatureQueueing; return silent{s} }, 25 * time.Millisecond, 75 * time.Millisecond},
	} {
		synctest.Test(t, func(t *testing.T) {
			c := newSpyClient(t, tt.way(newSpy()), dlock.WithPassOn(0))
			for range 30 { // the pause is random
				first := lock(t, c, "k")
				served := waitInOrder(1, func(int) *dlock.Lease { return lock(t, c, "k") }, func(_ int, l *dlock.Lease) { unlock(t, l) })
				start := time.Now()
				unlock(t, first)
				served()
				if took := time.Since(start); took < tt.least || took > tt.most {
					t.Errorf("took %v, want %v to %v", took, tt.least, tt.most)
				}
			}
		})
	}
}

// Each release of many readers would put off the writer's next attempt, if more than the first did.
func TestReleasesThatFollowEachOtherPutNothingOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.hide = driver.FeatureQueueing
		c := newSpyClient(t, silent{s})
		var readers []*dlock.Lease
		for range 20 {
			readers = append(readers, lock(t, c, "k", dlock.WithShared()))
		}
		served := waitInOrder(1, func(int) *dlock.Lease { return lock(t, c, "k") }, func(_ int, l *dlock.Lease) { unlock(t, l) })
		before := s.acquires.Load()
		for _, l := range readers[1:] {
			unlock(t, l)
			time.Sleep(20 * time.Millisecond)
		}
		if n := s.acquires.Load() - before; n == 0 {
			t.Error("no attempt in 380 ms of releases")
		}
		unlock(t, readers[0])
		served()
	})
}

// Readers have no order among themselves, and wait for writers as any call does.
func TestReadersWaitForWritersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.acquire = func(context.Context, *driver.Request) error { time.Sleep(time.Second); return nil }
		c := newSpyClient(t, s)
		start := time.Now()
		read := func(int) *dlock.Lease { return lock(t, c, "k", dlock.WithShared()) }
		waitInOrder(2, read, func(_ int, l *dlock.Lease) { unlock(t, l) })()
		if took := time.Since(start); took != time.Second {
			t.Errorf("two readers took %v, want one request's time", took)
		}
		s.set(func() { s.acquire = nil })
		writer := lock(t, c, "k")
		served := waitInOrder(3, func(i int) *dlock.Lease {
			if i == 0 {
				return lock(t, c, "k")
			}
			return read(i)
		}, func(_ int, l *dlock.Lease) { unlock(t, l) })
		if n := s.acquires.Load(); n != 5 {
			t.Errorf("%d requests, want those of two readers and the writer, and two of the writer that waits", n)
		}
		unlock(t, writer)
		if got := served(); !slices.IsSorted(got) {
			t.Errorf("the waiters are served in the order %v", got)
		}
	})
}

// A client that has waited for a key and soon wants it again subscribes before its attempt, and
// so needs one attempt instead of two.
func TestAHotKeyIsWatchedBeforeItIsAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		c := newSpyClient(t, ways["watched"](s))
		for i, want := range []int64{2, 1, 1, 2} {
			free := s.Backend.(*memory.Backend).Hold("k")
			before := s.acquires.Load()
			got := make(chan *dlock.Lease)
			go func() { l, _ := c.Lock(t.Context(), "k"); got <- l }()
			synctest.Wait()
			if n := s.acquires.Load() - before; n != want {
				t.Errorf("wait %d: %d requests until it waits, want %d", i+1, n, want)
			}
			free()
			unlock(t, <-got)
			if i == 2 {
				time.Sleep(2 * time.Second) // it cools
			}
		}
	})
}

func TestACancelledWaitLeavesNothing(t *testing.T) {
	eachWay(t, func(t *testing.T, s *spy, b driver.Backend) {
		c := newSpyClient(t, b)
		first := lock(t, c, "k")
		// Waiters at every place of the queue are cancelled: at the start, in the middle and at
		// the end.
		var wg sync.WaitGroup
		for i := range 30 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*7*time.Millisecond)
			wg.Go(func() {
				defer cancel()
				if _, err := c.Lock(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v, want DeadlineExceeded", err)
				}
			})
		}
		wg.Wait()
		unlock(t, first)
		if c.Stats().Waiting != 0 {
			t.Errorf("Stats = %+v", c.Stats())
		}
		unlock(t, lock(t, c, "k"))
		var held []string
		_ = s.Backend.(driver.Inspector).List(t.Context(), "", func(st *driver.State) bool {
			held = append(held, st.Key)
			return true
		})
		if len(held) > 0 {
			t.Errorf("keys are left: %q", held)
		}
	})
}

func TestEveryAttemptIsAnOwnerOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		n := 0
		s.acquire = func(context.Context, *driver.Request) error {
			if n++; n < 50 {
				return errOutage
			}
			return nil
		}
		unlock(t, lock(t, newSpyClient(t, s, dlock.WithOwnerLabel("web-4/2211")), "k"))
		seen := map[string]bool{}
		for _, o := range s.owners {
			if seen[o] || !strings.HasPrefix(o, "web-4/2211/") || len(o) < len("web-4/2211/")+16 {
				t.Fatalf("owner %q: want a label and a random part, never twice", o)
			}
			seen[o] = true
		}
		if len(seen) != 50 {
			t.Errorf("%d owners of 50 attempts", len(seen))
		}
	})
}

func TestOutagesAndTimedRefusalsAreWaitedOut(t *testing.T) {
	for verdict, pauses := range map[error][2]time.Duration{
		errOutage: {5 * time.Millisecond, 100 * time.Millisecond},
		&driver.RefusedError{Reason: "loading", RetryAfter: time.Minute}: {time.Second, time.Second},
	} {
		eachWay(t, func(t *testing.T, s *spy, b driver.Backend) {
			ready, pause := time.Now().Add(time.Minute), pauses[0]
			last := time.Time{}
			s.acquire = func(context.Context, *driver.Request) error {
				if took := time.Since(last); !last.IsZero() {
					if took < pause/2 || took >= 3*pause/2 {
						t.Errorf("asked again after %v, want about %v", took, pause)
					}
					pause = min(2*pause, pauses[1])
				}
				last = time.Now()
				if time.Now().Before(ready) {
					return verdict
				}
				return nil
			}
			c := newSpyClient(t, b)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err := c.Lock(ctx, "k")
			if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, dlock.ErrUnavailable) || errors.Is(err, dlock.ErrHeld) {
				t.Errorf("gave up with %v, want DeadlineExceeded and ErrUnavailable", err)
			}
			last, pause = time.Time{}, pauses[0]
			unlock(t, lock(t, c, "k"))
			if late := time.Since(ready); late > 2*time.Second {
				t.Errorf("got it %v after the outage", late)
			}
		})
	}
}

func TestTheLastVerdictIsTheOneReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		c := newSpyClient(t, ways["polled"](s))
		defer s.Backend.(*memory.Backend).Hold("k")()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		time.AfterFunc(5*time.Second, func() {
			s.set(func() { s.acquire = func(context.Context, *driver.Request) error { return errOutage } })
		})
		_, err := c.Lock(ctx, "k")
		if errors.Is(err, dlock.ErrHeld) || !errors.Is(err, dlock.ErrUnavailable) || !errors.Is(err, errOutage) {
			t.Errorf("the last verdict was an outage: got %v, want ErrUnavailable and not ErrHeld", err)
		}
	})
}

// A call that ends before it has heard anything reports what the call before it has heard last.
func TestTheVerdictOfACallThatLeavesIsTheNextOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.acquire = func(ctx context.Context, _ *driver.Request) error {
			if s.acquires.Load() > 1 {
				return hang(ctx)
			}
			time.Sleep(time.Second)
			return &driver.HeldError{Holder: "another/1"}
		}
		c := newSpyClient(t, s)
		calls := func(err func(i int) error) {
			var wg sync.WaitGroup
			for i := range 2 {
				wg.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i+1)*time.Second)
					defer cancel()
					if l, got := c.Lock(ctx, "k"); !errors.Is(got, err(i)) || errors.Is(got, dlock.ErrUnavailable) {
						t.Errorf("call %d: %v, want %v", i, got, err(i))
					} else if got == nil {
						defer l.Unlock()
						time.Sleep(2 * time.Second)
					}
				})
				synctest.Wait()
			}
			wg.Wait()
		}
		calls(func(int) error { return dlock.ErrHeld })

		// The first hears of an outage and then gets the lock: that outage is over.
		before := s.acquires.Load()
		s.set(func() {
			s.acquire = func(ctx context.Context, _ *driver.Request) error {
				switch s.acquires.Load() - before {
				case 1:
					return errOutage
				case 2:
					return nil
				}
				return hang(ctx)
			}
		})
		calls(func(i int) error { return [...]error{nil, context.DeadlineExceeded}[i] })
	})
}

// A TryLock, and a refusal for ever, are one request.
func TestSomeVerdictsEndALockAtOnce(t *testing.T) {
	for _, tt := range []struct {
		try     bool
		verdict error
		want    error
	}{
		{false, &driver.RefusedError{Reason: "the server wants a password"}, dlock.ErrUnavailable},
		{true, errOutage, dlock.ErrUnavailable},
		{true, &driver.HeldError{Holder: "another/1"}, dlock.ErrHeld},
		{false, driver.Invalid("key", "has a slash"), dlock.ErrInvalid},
		{false, driver.ErrClosed, dlock.ErrClosed},
	} {
		s := newSpy()
		s.acquire = func(context.Context, *driver.Request) error { return tt.verdict }
		c := newSpyClient(t, s)
		take := c.Lock
		if tt.try {
			take = c.TryLock
		}
		_, err := take(t.Context(), "k")
		var e *dlock.Error
		if !errors.Is(err, tt.verdict) || !errors.Is(err, tt.want) || s.acquires.Load() != 1 || !errors.As(err, &e) || e.Attempts != 1 {
			t.Errorf("got %v after %d requests, want %v", err, s.acquires.Load(), tt.want)
		}
		if n := c.Stats(); n.Failed+n.Contended != 1 || n.Failed == 0 != (tt.want == dlock.ErrHeld) { //nolint:errorlint // of the table
			t.Errorf("%v: %+v", tt.verdict, n)
		}
	}
}

// An answer that came counts, also beside the end of the context; and the context's end is told once.
func TestWhichErrorsNameTheContextsEnd(t *testing.T) {
	held := &driver.HeldError{Holder: "another/1"}
	refused := &driver.RefusedError{Reason: "no password"}
	for _, tt := range []struct {
		try     bool
		answer  error
		ended   bool // the error names the context's end
		verdict error
	}{
		{true, held, false, dlock.ErrHeld},
		{true, errors.Join(held, context.Canceled), true, dlock.ErrHeld},
		{true, context.DeadlineExceeded, true, context.Canceled},
		{true, context.Canceled, true, context.Canceled},
		{true, errOutage, false, dlock.ErrUnavailable},
		{false, errOutage, true, dlock.ErrUnavailable},
		{false, refused, false, dlock.ErrUnavailable},
	} {
		s := newSpy()
		ctx, cancel := context.WithCancel(t.Context())
		s.acquire = func(context.Context, *driver.Request) error { cancel(); return tt.answer }
		take := newSpyClient(t, s).Lock
		if tt.try {
			take = newSpyClient(t, s).TryLock
		}
		_, err := take(ctx, "k")
		if errors.Is(err, context.Canceled) != tt.ended || !errors.Is(err, tt.verdict) || strings.Count(err.Error(), "canceled") > 1 {
			t.Errorf("%v of a call whose context ended, a try: %v: %v", tt.answer, tt.try, err)
		}
	}
}

func TestACancelledContextSendsNothing(t *testing.T) {
	s := newSpy()
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errOutage)
	for _, f := range []func(context.Context, string, ...dlock.LockOption) (*dlock.Lease, error){
		newSpyClient(t, s).Lock, newSpyClient(t, s).TryLock,
	} {
		_, err := f(ctx, "k")
		if !errors.Is(err, context.Canceled) || !errors.Is(err, errOutage) || errors.Is(err, dlock.ErrUnavailable) {
			t.Errorf("got %v, want Canceled and its cause", err)
		}
	}
	if s.acquires.Load() != 0 {
		t.Error("a request was sent")
	}
}

func TestAGrantThatIsTooLateIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const margin = 200 * time.Millisecond
		for left, late := range map[time.Duration]bool{3 * time.Millisecond: true, margin: true, margin + 1: false} {
			s := newSpy()
			s.granted = func(g *driver.Grant) { g.Expires = time.Now().Add(left) }
			_, err := newSpyClient(t, s).TryLock(t.Context(), "k")
			if !late && err == nil {
				continue
			}
			if !late || !errors.Is(err, dlock.ErrUnavailable) || !strings.Contains(err.Error(), "TTL") || s.releases.Load() != 1 {
				t.Errorf("%v before its end: %v and %d releases", left, err, s.releases.Load())
			}
		}
	})
}

func TestCloseEndsLeasesBeforeItReleasesThemAndFailsThoseWhoWait(t *testing.T) {
	eachWay(t, func(t *testing.T, s *spy, b driver.Backend) {
		c, err := dlock.New(b, dlock.WithLogger(nil))
		if err != nil {
			t.Fatal(err)
		}
		l := lock(t, c, "k")
		other := lock(t, c, "other")
		s.set(func() {
			s.release = func(context.Context) error {
				for _, l := range []*dlock.Lease{l, other} {
					select {
					case <-l.Done():
					default:
						t.Error("released before Done")
					}
				}
				return nil
			}
		})
		defer s.Backend.(*memory.Backend).Peer().Hold("theirs")()
		errs := make(chan error)
		for i := range 6 {
			go func() { _, err := c.Lock(t.Context(), [...]string{"k", "theirs"}[i%2]); errs <- err }()
		}
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for range 6 {
			if err := <-errs; !errors.Is(err, dlock.ErrClosed) || errors.Is(err, dlock.ErrUnavailable) {
				t.Errorf("a waiter got %v, want ErrClosed", err)
			}
		}
		if !errors.Is(l.Err(), dlock.ErrReleased) || !errors.Is(l.Unlock(), dlock.ErrClosed) {
			t.Errorf("Err = %v, want ErrReleased, and ErrClosed of Unlock: the work was not done", l.Err())
		}
		unlock(t, l)
		if _, err := c.TryLock(t.Context(), "k"); !errors.Is(err, dlock.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Errorf("a second Close: %v", err)
		}
		if s.releases.Load() != s.grants.Load() { // a waiter may have been granted in between
			t.Errorf("%d releases of %d grants", s.releases.Load(), s.grants.Load())
		}
	})
}

func TestCloseWaitsForRequestsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.acquire = func(context.Context, *driver.Request) error { time.Sleep(time.Second); return nil }
		c := newSpyClient(t, s)
		start := time.Now()
		after := make(chan time.Duration, 2)
		for range 2 { // one caller asks, one waits behind it
			go func() {
				if _, err := c.Lock(t.Context(), "k"); !errors.Is(err, dlock.ErrClosed) {
					t.Errorf("got %v, want ErrClosed", err)
				}
				after <- time.Since(start)
			}()
		}
		synctest.Wait()
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != time.Second || s.releases.Load() != 1 {
			t.Errorf("Close took %v and left a lock that was granted meanwhile (%d releases)", took, s.releases.Load())
		}
		if first, second := <-after, <-after; first != 0 || second != time.Second {
			t.Errorf("the waiters returned after %v and %v, want the waiting one at once", first, second)
		}
	})
}

// silent is a Watcher that never signals, as if every message were lost.
type silent struct{ *spy }

func (silent) Watch(context.Context, string) (<-chan struct{}, error) {
	return make(chan struct{}), nil
}

// A lock whose release will be signalled is asked for about every second, and slots every 0.7 s.
func TestHowOftenALockIsAskedForThatIsWatched(t *testing.T) {
	for slots, most := range map[int]time.Duration{0: 1500 * time.Millisecond, 1: 700 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpy()
			s.hide = driver.FeatureQueueing
			last, longest := time.Now(), time.Duration(0)
			s.acquire = func(context.Context, *driver.Request) error {
				took := time.Since(last)
				if last, longest = time.Now(), max(longest, took); took > 0 && took < most/3 {
					t.Errorf("%d slots: asked again after %v", slots, took)
				}
				return &driver.HeldError{}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var opts []dlock.LockOption
			if slots > 0 {
				opts = append(opts, dlock.WithSlots(slots))
			}
			_, _ = newSpyClient(t, silent{s}).Lock(ctx, "k", opts...)
			if longest > most || longest < most/2+200*time.Millisecond {
				t.Errorf("%d slots: asked again after %v at most, want %v", slots, longest, most)
			}
		})
	}
}

func TestTheHoldersTTLIsTheNextTimeToAsk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpy()
		s.hide = driver.FeatureQueueing
		s.acquire = func(context.Context, *driver.Request) error {
			return &driver.HeldError{RetryAfter: 100 * time.Millisecond}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, _ = newSpyClient(t, silent{s}).Lock(ctx, "k")
		if n := s.acquires.Load(); n < 50 || n > 102 {
			t.Errorf("%d requests in 10 s, want one each 100 to 200 ms", n)
		}
	})
}

// shut is a backend whose Close fails, and that says where it is.
type shut struct{ *spy }

func (shut) Close() error   { return errOutage }
func (shut) String() string { return "at home" }

func TestCloseReportsWhatTheBackendsCloseDoes(t *testing.T) {
	if got := newSpyClient(t, newSpy()).String(); got != "memory" {
		t.Errorf("a backend without an address is %q", got)
	}
	c := newSpyClient(t, shut{newSpy()})
	if err := c.Close(); !errors.Is(err, errOutage) || c.String() != "at home" {
		t.Errorf("%v: Close = %v", c, err)
	}
}

func TestCloseReportsEveryReleaseThatFailed(t *testing.T) {
	s := newSpy()
	c := newSpyClient(t, s)
	for i := range 100 {
		lock(t, c, fmt.Sprint("key-", i))
	}
	s.set(func() { s.release = func(context.Context) error { return errOutage } })
	err := c.Close()
	if !errors.Is(err, errOutage) || !strings.Contains(err.Error(), `"key-7"`) || !strings.Contains(err.Error(), `"key-93"`) {
		t.Errorf("got %v", err)
	}
}
