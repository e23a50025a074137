package redisnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// library is a client whose calls take a while, and may ignore deadlines.
type library struct {
	takes          atomic.Int64 // nanoseconds
	batches, under atomic.Int64
	most, sent     atomic.Int64
	heeds          bool
	closed         chan struct{} // ends what is under way
}

func newLibrary(takes time.Duration, heeds bool) *library {
	l := &library{heeds: heeds, closed: make(chan struct{})}
	l.takes.Store(int64(takes))
	return l
}

func (l *library) exec(ctx context.Context, calls []*Call) {
	l.batches.Add(1)
	l.sent.Add(int64(len(calls)))
	if n := l.under.Add(1); n > l.most.Load() {
		l.most.Store(n)
	}
	defer l.under.Add(-1)
	var deadline <-chan time.Time
	if d, ok := ctx.Deadline(); ok && l.heeds {
		deadline = time.After(time.Until(d))
	}
	err := errors.New("i/o timeout")
	select {
	case <-time.After(time.Duration(l.takes.Load())): // virtual
		err = nil
	case <-deadline:
	case <-l.closed:
	}
	for _, c := range calls {
		c.Reply, c.Err = []any{int64(1)}, err
	}
}

const second = time.Second // the call timeout

func (l *library) pipelines(most int, direct bool) *pipelines {
	return newPipelines(l.exec, most, Direct{Heeds: direct}, second, &tracker{}, &tracker{})
}

// try makes one call and returns its error.
func try(l *pipelines, timeout time.Duration) error {
	return l.do(within(context.Background(), timeout), &Call{})
}

// try100 makes a hundred calls at once.
func try100(t *testing.T, l *pipelines) {
	t.Helper()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if err := try(l, second); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestCallsGatherBehindThoseUnderWay(t *testing.T) {
	for _, direct := range []bool{true, false} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lib := newLibrary(time.Millisecond, direct)
				l := lib.pipelines(2, direct)
				try100(t, l)
				if n := lib.batches.Load(); n != 2 {
					t.Errorf("the first 100 calls took %d round trips, want 2: one, and the rest together", n)
				}
				<-l.wg.wait()
				l.proven, l.most = 2, 0
				lib.batches.Store(0)
				try100(t, l)
				if n := lib.most.Load(); n != 2 {
					t.Errorf("%d calls were under way at once, want 2", n)
				}
				if n := lib.batches.Load(); n != 3 {
					t.Errorf("100 calls took %d round trips, want 3: two alone, and the rest together", n)
				}
				<-l.calls.wait()
				<-l.wg.wait()
			})
		})
	}
}

// Many callers share few pipelines where a round trip is short, so that more gathers, and all of them
// where it is long.
func TestACrowdSharesFewLanes(t *testing.T) {
	for _, c := range []struct {
		takes         time.Duration
		callers, most int64
	}{{time.Millisecond, 4, 4}, {time.Millisecond, 16, 2}, {time.Millisecond, 64, 1}, {10 * time.Millisecond, 64, 4}} {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(c.takes, true)
			l := lib.pipelines(4, true)
			var wg sync.WaitGroup
			callers := func(calls int) {
				for i := range c.callers {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * time.Microsecond)
						for range calls {
							if err := try(l, second); err != nil {
								t.Error(err)
							}
							time.Sleep(time.Duration(i) * time.Microsecond)
						}
					})
				}
				wg.Wait()
				<-l.wg.wait()
			}
			callers(50)
			lib.most.Store(0)
			lib.batches.Store(0)
			callers(50)
			if n := lib.most.Load(); n != c.most {
				t.Errorf("%d callers, round trips of %v: %d calls were under way at once, want %d", c.callers, c.takes, n, c.most)
			}
			if l.calling != 0 {
				t.Errorf("%d calls are under way when all are over", l.calling)
			}
		})
	}
}

// Callers that keep coming get all the pipelines, each of which connects first.
func TestAllLanesComeIntoUse(t *testing.T) {
	for _, direct := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(time.Millisecond, direct)
			l := lib.pipelines(4, direct)
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					for range 50 {
						time.Sleep(time.Duration(i) * 100 * time.Microsecond)
						if err := try(l, second); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			<-l.wg.wait()
			if n := lib.most.Load(); n != 4 || l.proven != 4 {
				t.Errorf("direct=%v: at most %d calls were under way at once, and %d proven, want 4", direct, n, l.proven)
			}
		})
	}
}

// The callers of a library that ignores deadlines return at theirs; what is under way
// is bounded; and when it is overdue later callers fail at once.
func TestDeadlinesHoldWhateverTheLibraryDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Hour, false)
		l := lib.pipelines(4, false)
		l.proven = 4
		start := time.Now()
		var sent, unsent atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				err := try(l, second)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				if errors.Is(err, ErrNotSent) {
					unsent.Add(1)
				} else {
					sent.Add(1)
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); d != second {
			t.Errorf("the callers came back after %v", d)
		}
		if sent.Load() != 4 || unsent.Load() != 46 || lib.sent.Load() != 4 {
			t.Errorf("%d were sent, %d were not; the library had %d", sent.Load(), unsent.Load(), lib.sent.Load())
		}
		time.Sleep(time.Second)
		start = time.Now()
		if err := try(l, second); !errors.Is(err, ErrNotSent) || errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 0 {
			t.Errorf("behind a server that hangs: %v after %v", err, time.Since(start))
		}
		<-l.wg.wait()
		if lib.sent.Load() != 4 {
			t.Errorf("calls whose callers had left were sent: %d", lib.sent.Load())
		}
		if err := try(l, 2*time.Hour); err != nil {
			t.Errorf("when it answers again: %v", err)
		}
	})
}

// A caller with little time leaves when it is over, and the call stays: a library would
// close its connection, and the next caller would have to wait for another.
func TestAShortDeadlineEndsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(20*time.Millisecond, true)
		l := lib.pipelines(2, true)
		for range 10 {
			start := time.Now()
			if err := try(l, 15*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 15*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			time.Sleep(5 * time.Millisecond)
		}
		<-l.wg.wait()
		if l.proven == 0 || lib.sent.Load() != 10 {
			t.Errorf("of %d calls the last was broken off", lib.sent.Load())
		}
	})
}

// lateContext is one whose timer has not run yet, though its deadline has passed.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// A library that heeds deadlines may be back before the context's timer: what failed then is
// not sent again, behind its own deadline.
func TestNothingIsSentBehindADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, true)
		n, err := New(Config{Client: hanging{lib, true}, Connections: 4, Direct: Direct{Heeds: true}})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(ctx context.Context, key string) (driver.Lease, error) {
			return n.Acquire(ctx, &driver.Request{Key: key, Owner: "o/" + key, TTL: time.Minute})
		}
		late := func() context.Context { return lateContext{t.Context(), time.Now().Add(100 * time.Millisecond)} }
		l, err := ask(late(), "a")
		if err != nil {
			t.Fatal(err)
		}
		lib.takes.Store(int64(time.Hour))
		before := lib.sent.Load()
		if _, err := l.Renew(late(), &driver.Renewal{TTL: time.Minute}); err == nil || errors.Is(err, ErrNotSent) || lib.sent.Load() != before+1 {
			t.Errorf("a renewal was sent %d times: %v", lib.sent.Load()-before, err)
		}
		before = lib.sent.Load()
		if err := n.router.slots[0].Load().pipelines.do(lateContext{t.Context(), time.Now()}, &Call{}); !errors.Is(err, ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) || lib.sent.Load() != before {
			t.Errorf("a call was sent %d times when its time was over: %v", lib.sent.Load()-before, err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A call goes on its caller's goroutine where its answer must be expected long before
// its deadline, unless it may have to connect, or another does.
func TestACallerCarriesItsCallWhereTheAnswerIsNear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, true)
		l := lib.pipelines(2, true)
		enter := func(left time.Duration) (int, mode) {
			c := &Call{deadline: time.Now().Add(left)}
			conn, m, err := l.enter(c)
			if err != nil {
				t.Fatal(err)
			}
			return conn, m
		}
		leave := func(conn int, took time.Duration) {
			if b := l.next(conn, took, nil); b != nil {
				t.Fatalf("%d calls are left", len(b))
			}
		}
		a, m := enter(second)
		if m != connecting {
			t.Errorf("the first call goes in mode %v", m)
		}
		if conn, _ := enter(second); conn >= 0 {
			t.Error("a second call goes before a first one was answered")
		}
		l.queue = nil
		leave(a, time.Millisecond)
		if a, m = enter(second); m != onCaller {
			t.Errorf("a call goes in mode %v when the last was answered at once", m)
		}
		if conn, _ := enter(second); conn >= 0 {
			t.Error("a call connects beside one that may wait for that on its caller's goroutine")
		}
		l.queue = nil
		leave(a, time.Millisecond)
		if a, m = enter(promptly*time.Millisecond - 1); m != passed {
			t.Errorf("a call with little time goes in mode %v", m)
		}
		b, m := enter(second)
		if m != connecting {
			t.Errorf("a call for which no connection was proven goes in mode %v", m)
		}
		leave(a, time.Millisecond)
		if a, m = enter(second); m != passed {
			t.Errorf("a call beside one that connects goes in mode %v", m)
		}
		leave(b, time.Millisecond)
		if b, m = enter(second); m != passed {
			t.Errorf("a call beside another goes in mode %v: the two that were answered may have had one connection", m)
		}
		leave(b, 0)
		leave(a, 0)
		if _, m = enter(second); m != connecting {
			t.Errorf("a call goes in mode %v when the last was not answered", m)
		}
	})
}

// One call at a time finds out whether a server answers again; when it does, whoever
// waits goes at once.
func TestOneCallWaitsForAServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Hour, true)
		l := lib.pipelines(4, true)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for range 5 {
					if err := try(l, 300*time.Millisecond); err == nil {
						t.Error("an answer")
					}
				}
			})
		}
		wg.Wait()
		if n := lib.most.Load(); n != 1 {
			t.Errorf("%d calls were under way at once", n)
		}
		<-l.wg.wait()
		lib.takes.Store(int64(time.Millisecond))
		start := time.Now()
		try100(t, l)
		if d := time.Since(start); d != 2*time.Millisecond {
			t.Errorf("100 calls took %v when it answers again", d)
		}
	})
}

// hanging is the client of a node whose server does not answer any more.
type hanging struct {
	*library
	own bool
}

func (h hanging) Exec(ctx context.Context, calls []*Call) {
	h.exec(ctx, calls)
	for _, c := range calls {
		if c.Err == nil && c.Text == luaHello {
			c.Reply = []any{"run", time.Now().UnixMicro()}
		} else if c.Err == nil {
			c.Reply = []any{int64(1), time.Now().UnixMicro(), time.Now().UnixMicro()}
		}
	}
}

func (h hanging) Each(context.Context, func(context.Context, Server) error) error { return nil }

func (h hanging) Subscribe(context.Context, Sink, []string) (Subscription, error) {
	return nil, errors.New("no")
}

func (h hanging) Close() error {
	if h.own {
		close(h.closed)
	}
	return nil
}

// Close gives clean-ups about a call timeout, and leaves nothing: behind a client of
// the application's, which ends its calls itself, at the latest after another.
func TestCloseIsBoundedWhereTheServerHangs(t *testing.T) {
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("own=%v", own), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lib := newLibrary(time.Millisecond, true)
				n, err := New(Config{Client: hanging{lib, own}, Connections: 4, Direct: Direct{Heeds: true}})
				if err != nil {
					t.Fatal(err)
				}
				ask := func(key string) (driver.Lease, error) {
					return n.Acquire(t.Context(), &driver.Request{Key: key, Owner: "o/" + key, TTL: time.Minute})
				}
				l, err := ask("a")
				if err != nil {
					t.Fatal(err)
				}
				lib.takes.Store(int64(time.Hour))
				if _, err := ask("b"); err == nil {
					t.Fatal("a lock of a server that hangs")
				}
				returned := make(chan error, 1)
				go func() { returned <- l.Release(t.Context()) }()
				time.Sleep(time.Millisecond) // the release and the clean-up are under way
				start := time.Now()
				if err := n.Close(); err != nil {
					t.Error(err)
				}
				most := second + second/4
				if !own {
					most += second
				}
				if d := time.Since(start); d > most {
					t.Errorf("Close took %v", d)
				}
				if err := <-returned; err == nil {
					t.Error("a release that was never answered succeeded")
				}
				<-n.wg.wait()
			})
		})
	}
}

// A call has its caller's goroutine only where the client comes back in time by itself.
func TestDirectGoesByTheClientsTimeouts(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		direct      Direct
		left, usual time.Duration
		want        bool
	}{
		{Direct{}, time.Hour, 0, false},
		{Direct{Heeds: true}, second, ms, true},
		{Direct{Heeds: true}, minCallTimeout - 1, ms, false},
		{Direct{Heeds: true}, second, second / 10, false},
		{Direct{Longest: 900 * ms}, second, ms, true},
		{Direct{Longest: 900 * ms}, 800 * ms, ms, false},
		{Direct{Longest: 900 * ms, Attempt: 200 * ms}, second, 12 * ms, true},
		{Direct{Longest: 900 * ms, Attempt: 200 * ms}, second, 13 * ms, false},
	} {
		if got := c.direct.permits(c.left, c.usual); got != c.want {
			t.Errorf("%+v, %v left, %v a round trip: %v", c.direct, c.left, c.usual, got)
		}
	}
}
