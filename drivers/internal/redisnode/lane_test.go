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

	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// A library is a client library without a server, for tests in virtual time: its round trips take as
// long as a test says, and it may ignore deadlines. Every reply is 1, and tells the clock.
type library struct {
	fake
	takes         atomic.Int64          // how long a round trip takes, in nanoseconds
	batches, sent atomic.Int64          // how many round trips there were, and calls in them
	most          atomic.Int64          // the greatest number of round trips under way at a time
	ended         atomic.Pointer[error] // the end of a context
	heeds, own    bool                  // returns at the deadline of its context; Close ends the round trips
	closed        chan struct{}

	under atomic.Int64
}

const second = time.Second // the call timeout

func newLibrary(takes time.Duration, heeds bool) *library {
	l := &library{heeds: heeds, own: true, closed: make(chan struct{})}
	l.takes.Store(int64(takes))
	return l
}

// node returns a node over the library.
func (l *library) node(t *testing.T) *Node {
	n, err := New(Config{Client: l, Abandon: func(time.Time) {}})
	drivertest.Must(t, err)
	t.Cleanup(func() { _ = n.Close() })
	return n
}

func (l *library) Exec(ctx context.Context, calls []*Call) {
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
	var err error
	defer func() {
		if end := ctx.Err(); end != nil {
			l.ended.Store(&end)
		}
	}()
	select {
	case <-time.After(time.Duration(l.takes.Load())):
	case <-deadline:
		err = errors.New("i/o timeout")
	case <-l.closed:
		err = errors.New("closed")
	}
	now := time.Now().UnixMicro()
	for _, c := range calls {
		if c.Reply, c.Err = []any{int64(1), now, now}, err; c.Text == lua.Hello {
			c.Reply = []any{"run", now}
		}
	}
}

func (l *library) Close() error {
	if l.own {
		close(l.closed)
	}
	return nil
}

// try makes one call and returns its error.
func try(l *lane, timeout time.Duration) error {
	return l.do(async.Within(context.Background(), timeout), &Call{Keys: []string{"k"}})
}

// crowd makes calls at once, and each caller some more.
func crowd(t *testing.T, l *lane, callers, each int) {
	t.Helper()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for range each {
				if err := try(l, second); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	<-l.node.wg.Idle()
}

// laneTest runs a test in virtual time over a lane whose server has answered once.
func laneTest(t *testing.T, takes time.Duration, heeds bool, test func(*testing.T, *library, *lane)) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(takes, heeds)
		l := newLane(lib.node(t))
		t.Cleanup(l.close)
		crowd(t, l, 1, 1)
		test(t, lib, l)
		<-l.node.work.Idle()
		if end := lib.ended.Load(); end != nil { // then valkey-go does not look for the next primary of one that hangs
			t.Errorf("the library's context ended: %v", *end)
		}
	})
}

// To a near server callers share one round trip at a time, so that more calls are gathered. To a far
// server there are two.
func TestCallsGatherBehindThoseUnderWay(t *testing.T) {
	for _, c := range []struct {
		takes                time.Duration
		callers              int
		most, trips, longest int64
	}{{time.Millisecond, 4, 1, 3, 2}, {time.Millisecond, 100, 1, 3, 2}, {10 * time.Millisecond, 100, 2, 3, 2}, {10 * time.Millisecond, 1500, 2, 5, 2}} {
		laneTest(t, c.takes, true, func(t *testing.T, lib *library, l *lane) {
			for range 2 {
				lib.batches.Store(0)
				start := time.Now()
				crowd(t, l, c.callers, 1)
				if n, took := lib.batches.Load(), time.Since(start); n > c.trips || took > time.Duration(c.longest)*c.takes {
					t.Errorf("%d calls to a server %v away took %d round trips, and %v", c.callers, c.takes, n, took)
				}
			}
			lib.most.Store(0)
			crowd(t, l, c.callers, 10)
			if n := lib.most.Load(); n != c.most || l.free() != 0 {
				t.Errorf("%d callers, round trips of %v: %d were under way at once, want %d; %v are left", c.callers, c.takes, n, c.most, l.trips)
			}
		})
	}
}

// If a library ignores deadlines, its callers still return at theirs. The calls under way are
// bounded, and none is sent whose caller has left.
func TestDeadlinesHoldWhateverTheLibraryDoes(t *testing.T) {
	laneTest(t, 0, false, func(t *testing.T, lib *library, l *lane) {
		l.node.cfg.Abandon = nil
		lib.takes.Store(int64(time.Hour))
		before, start := lib.sent.Load(), time.Now()
		var unsent atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				err := try(l, second)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				if errors.Is(err, ErrNotSent) {
					unsent.Add(1)
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); d != second {
			t.Errorf("the callers came back after %v", d)
		}
		<-l.node.wg.Idle()
		if unsent.Load() != 50-1 || lib.sent.Load() != before+1 {
			t.Errorf("%d were not sent; the library had %d", unsent.Load(), lib.sent.Load()-before)
		}
		if err := try(l, 2*time.Hour); err != nil {
			t.Errorf("when it answers again: %v", err)
		}
	})
}

// A caller with little time leaves at its deadline, but its call goes on: otherwise the library
// would close the connection, and the next caller would have to wait for a new one.
func TestAShortDeadlineEndsNoCall(t *testing.T) {
	laneTest(t, 20*time.Millisecond, true, func(t *testing.T, lib *library, l *lane) {
		for range 10 {
			start := time.Now()
			if err := try(l, 15*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 15*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			time.Sleep(5 * time.Millisecond)
		}
		<-l.node.wg.Idle()
		if l.missed > 0 || lib.sent.Load() != 11 { // with that of laneTest
			t.Errorf("of %d calls the last was broken off", lib.sent.Load())
		}
	})
}

// A caller whose goroutine makes its call returns soon after its context has ended.
func TestACallerThatMakesItsCallHearsItsContext(t *testing.T) {
	laneTest(t, time.Millisecond, true, func(t *testing.T, lib *library, l *lane) {
		var ends chan struct{}
		l.node.cfg.Client = hook{lib, func(calls []*Call) {
			select {
			case <-time.After(time.Hour):
			case <-ends:
				calls[0].Err = context.DeadlineExceeded
			}
		}}
		l.node.cfg.Abandon = func(since time.Time) {
			if time.Since(since) < second/2 {
				t.Error("the call has not been under way for so long")
			}
			close(ends)
		}
		for range 3 {
			l.missed, ends = 0, make(chan struct{})
			ctx, cancel := context.WithCancel(context.Background())
			start := time.Now()
			time.AfterFunc(second/2, cancel)
			if err := l.do(async.Within(ctx, 10*second), &Call{Keys: []string{"k"}}); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			if late := time.Since(start) - second/2; late > 100*time.Millisecond {
				t.Errorf("it returns %v after its context has ended", late)
			}
		}
	})
}

// A hook is a library with another Exec.
type hook struct {
	*library
	exec func(calls []*Call)
}

func (h hook) Exec(_ context.Context, calls []*Call) { h.exec(calls) }

// If another server replaces one that hangs, calls reach it soon, unless the hanging one has all of
// the call timeout at that moment. Only one call at a time finds out.
func TestCallsFindTheNextServerSoon(t *testing.T) {
	all, late := 0, 0
	for at := 1100 * time.Millisecond; at < 7*time.Second; at += 37 * time.Millisecond {
		laneTest(t, time.Millisecond, true, func(t *testing.T, lib *library, l *lane) {
			lib.takes.Store(int64(time.Hour))
			serves := time.Now().Add(at)
			time.AfterFunc(at, func() { lib.takes.Store(int64(time.Millisecond)) })
			for try(l, second) != nil {
				time.Sleep(20 * time.Millisecond)
			}
			all++
			switch found := time.Since(serves); {
			case found > second+30*time.Millisecond:
				t.Errorf("a server that takes the place of another after %v is found %v later", at, found)
			case found > second/4+30*time.Millisecond:
				late++
			}
			<-l.node.wg.Idle()
			if n := lib.most.Load(); n > most {
				t.Errorf("%d calls found out", n)
			}
		})
	}
	if late > all/5 {
		t.Errorf("%d of %d servers were found late", late, all)
	}
}

// A server that hung and has become slow is used, though most calls give it less time.
func TestASlowServerIsUsedAfterItHung(t *testing.T) {
	laneTest(t, time.Millisecond, true, func(t *testing.T, lib *library, l *lane) {
		lib.takes.Store(int64(time.Hour))
		for range 3 {
			if try(l, second) == nil {
				t.Error("an answer")
			}
		}
		lib.takes.Store(int64(second * 3 / 5))
		for range probeEvery {
			if try(l, second) == nil {
				<-l.node.wg.Idle()
				return
			}
		}
		t.Errorf("none of %d calls is answered by a slow server", probeEvery)
	})
}

// The next operation has the memory of the one before, but not what a handshake has that is still under way.
func TestAHandshakeOutlivesItsOperation(t *testing.T) {
	laneTest(t, time.Millisecond, true, func(t *testing.T, lib *library, l *lane) {
		n, answers := l.node, make(chan struct{})
		n.cfg.Abandon = nil // no call runs on its caller's goroutine
		n.cfg.Client = hook{lib, func(calls []*Call) {
			c := calls[0]
			if c.Text == lua.Hello {
				c.Reply = []any{"run", time.Now().UnixMicro()}
				return
			}
			before := fmt.Sprint(c.Keys, c.Args)
			if <-answers; fmt.Sprint(c.Keys, c.Args) != before {
				t.Errorf("the handshake had %s, and has %v, %v", before, c.Keys, c.Args)
			}
			c.Err = ServerError("NOPERM")
		}}
		for i := range 10 {
			r := startRequest(fmt.Sprint(i))
			r.Quorum = &quorum.Info{Terms: noQuarantine}
			if _, err := n.Acquire(async.Within(t.Context(), second/10), r); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}
		close(answers)
		<-n.wg.Idle()
	})
}
