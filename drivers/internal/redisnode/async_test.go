package redisnode

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/pipeline"
)

// startTest runs a test of calls that a node starts.
func startTest(t *testing.T, heeds bool, test func(t *testing.T, lib library, n *Node)) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, heeds)
		n, err := New(Config{Client: hanging{lib, true}, Abandon: func(time.Time) {}})
		if err != nil {
			t.Fatal(err)
		}
		if n.StartAcquire(until(t, second), startRequest("cold"), nil) {
			t.Error("a call was started before the first contact")
		}
		if _, err := n.Acquire(t.Context(), startRequest("warm")); err != nil {
			t.Fatal(err)
		}
		test(t, lib, n)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if n.StartAcquire(until(t, second), startRequest("late"), nil) {
			t.Error("a call was started after Close")
		}
		<-n.wg.Idle()
		<-n.work.Idle()
	})
}

// term is a Term whose length is known from the start.
type term struct{ context.Context }

func (t term) Due() time.Time {
	end, _ := t.Deadline()
	return end
}

func until(t *testing.T, d time.Duration) term {
	return term{async.Until(t.Context(), time.Now().Add(d))}
}

// heard is a receiver that is called whatever the call was.
type heard func(l driver.Lease, g driver.Grant, err error)

func (f heard) Acquired(l driver.Lease, err error) { f(l, driver.Grant{}, err) }
func (f heard) Renewed(g driver.Grant, err error)  { f(nil, g, err) }
func (f heard) Released(err error)                 { f(nil, driver.Grant{}, err) }

func startRequest(key string) *driver.Request {
	return &driver.Request{Key: key, Owner: "o/" + key, TTL: time.Minute}
}

func TestAStartedCallIsAnsweredOnceAndNeverFromWithin(t *testing.T) {
	startTest(t, true, func(t *testing.T, lib library, n *Node) {
		const calls = 200
		before := lib.Batches.Load()
		within := atomic.Bool{}
		within.Store(true)
		var leases [calls]*Lease
		var answers atomic.Int64
		for i := range calls {
			if !n.StartAcquire(until(t, second), startRequest("k"), heard(func(l driver.Lease, _ driver.Grant, err error) {
				defer answers.Add(1) // after the write that it announces
				if err != nil || within.Load() || leases[i] != nil {
					t.Errorf("call %d: %v, within the call: %v", i, err, within.Load())
					return
				}
				leases[i] = l.(*Lease)
			})) {
				t.Fatal("not started")
			}
		}
		within.Store(false) // virtual time has not advanced
		time.Sleep(second)
		if answers.Load() != calls {
			t.Fatalf("%d of %d calls were answered", answers.Load(), calls)
		}
		if trips := lib.Batches.Load() - before; trips > 4+calls/pipeline.MaxBatch+1 {
			t.Errorf("they took %d round trips", trips)
		}
		for _, l := range leases {
			if !l.StartRenew(until(t, second), &driver.Renewal{TTL: time.Minute}, heard(func(_ driver.Lease, g driver.Grant, err error) {
				answers.Add(-1)
				if err != nil || time.Until(g.Expires) < time.Minute/2 {
					t.Errorf("renewed: %+v, %v", g, err)
				}
			})) {
				t.Error("a renewal is not started")
			}
			if l.StartRenew(until(t, second), &driver.Renewal{TTL: time.Minute}, nil) {
				t.Error("a renewal was started beside another of this lease")
			}
		}
		time.Sleep(second)
		for _, l := range leases {
			if !l.StartRelease(until(t, second), heard(func(_ driver.Lease, _ driver.Grant, err error) {
				answers.Add(1)
				if err != nil {
					t.Errorf("released: %v", err)
				}
			})) {
				t.Error("a release is not started")
			}
		}
		time.Sleep(second)
		if answers.Load() != calls {
			t.Errorf("%d releases were answered", answers.Load())
		}
		for _, l := range leases {
			if l.StartRelease(until(t, second), nil) || l.StartRenew(until(t, second), &driver.Renewal{TTL: time.Minute}, nil) {
				t.Error("a call was started on a lease that is over")
			}
		}
	})
}

// proveAll makes calls until the server has answered four at a time, over a link on which more
// callers do not share fewer pipelines.
func proveAll(t *testing.T, lib library, n *Node) {
	lib.Takes.Store(int64(10 * time.Millisecond))
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 20 {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if _, err := n.Acquire(t.Context(), startRequest(fmt.Sprint("warm", i))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// Whatever the library does, a started call ends at its deadline. A call that was sent is in
// doubt and undone; a call that was not sent needs no undoing.
func TestAStartedCallEndsAtItsDeadline(t *testing.T) {
	startTest(t, false, func(t *testing.T, lib library, n *Node) {
		l, err := n.Acquire(t.Context(), startRequest("held"))
		if err != nil {
			t.Fatal(err)
		}
		proveAll(t, lib, n)
		lib.Takes.Store(int64(time.Hour))
		before := lib.Sent.Load()
		start := time.Now()
		var sent, unsent atomic.Int64
		done := heard(func(_ driver.Lease, _ driver.Grant, err error) {
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != second/4 {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			if errors.Is(err, ErrNotSent) {
				unsent.Add(1)
			} else {
				sent.Add(1)
			}
		})
		for range 10 {
			if !n.StartAcquire(until(t, second/4), startRequest("k"), done) {
				t.Error("not started")
			}
		}
		if !l.(*Lease).StartRenew(until(t, second/4), &driver.Renewal{TTL: time.Minute}, done) {
			t.Error("a renewal is not started")
		}
		time.Sleep(second / 4)
		synctest.Wait()
		if sent.Load() != 2 || unsent.Load() != 9 || lib.Sent.Load()-before != 2 {
			t.Errorf("%d were sent, and %d were not; the library had %d", sent.Load(), unsent.Load(), lib.Sent.Load()-before)
		}
		if n.cleaning.Load() != 2 {
			t.Errorf("%d attempts are undone, want the 2 that were sent", n.cleaning.Load())
		}
	})
}

// growing is a term that becomes longer.
type growing struct {
	term
	from time.Time
}

func (g growing) Due() time.Time {
	if time.Now().Before(g.from) {
		return g.from
	}
	return g.term.Due()
}

// A term may grow while a call is under way, but not beyond its deadline or the call timeout.
func TestAStartedCallHasTheTimeThatItsTermHasByNow(t *testing.T) {
	startTest(t, false, func(t *testing.T, lib library, n *Node) {
		lib.Takes.Store(int64(time.Hour))
		for deadline, want := range map[time.Duration]time.Duration{second / 2: second / 2, time.Minute: second} {
			start, took := time.Now(), make(chan time.Duration, 1)
			if !n.StartAcquire(growing{until(t, deadline), start.Add(second / 4)}, startRequest(fmt.Sprint(deadline)), heard(func(_ driver.Lease, _ driver.Grant, err error) {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("it ended with %v", err)
				}
				took <- time.Since(start)
			})) {
				t.Fatal("not started")
			}
			if d := <-took; d != want {
				t.Errorf("with a deadline of %v it ended after %v, want %v", deadline, d, want)
			}
			lib.Takes.Store(int64(time.Millisecond))
			time.Sleep(2 * time.Hour) // the library has returned
			if _, err := n.Acquire(t.Context(), startRequest("warm again")); err != nil && !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			lib.Takes.Store(int64(time.Hour))
		}
		lib.Takes.Store(int64(time.Millisecond))
		time.Sleep(2 * time.Hour)
	})
}

// asked is a term that ends at a given time, and counts the calls of Due.
type asked struct {
	term
	from  time.Time
	times *atomic.Int64
}

func (a asked) Due() time.Time {
	a.times.Add(1)
	if now := time.Now(); now.After(a.from) {
		return now
	}
	return a.from
}

// A term whose end is exactly now is over. Time must pass during the test, so it does not use
// virtual time.
func TestATermThatIsOverIsNotAskedAgain(t *testing.T) {
	lib := newLibrary(0, false)
	n, err := New(Config{Client: hanging{lib, true}, Abandon: func(time.Time) {}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Acquire(t.Context(), startRequest("warm")); err != nil {
		t.Fatal(err)
	}
	lib.Takes.Store(int64(second / 2))
	a := asked{until(t, time.Minute), time.Now().Add(10 * time.Millisecond), new(atomic.Int64)}
	done := make(chan struct{})
	if n.StartAcquire(a, startRequest("k"), heard(func(driver.Lease, driver.Grant, error) { close(done) })) { // it is not if the machine stood still
		<-done
	}
	if times := a.times.Load(); times > 10 {
		t.Errorf("it was asked %d times", times)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}

// past is a term that was over before its call was started.
type past struct{ term }

func (past) Due() time.Time { return time.Time{} }
func (past) Err() error     { return context.DeadlineExceeded }

// A term that is over ends its call at once, whatever is started after it.
func TestATermThatWasOverAtTheStartEndsAtOnce(t *testing.T) {
	startTest(t, false, func(t *testing.T, lib library, n *Node) {
		lib.Takes.Store(int64(time.Hour))
		start := time.Now()
		ended := make(chan time.Duration, 2)
		if !n.StartAcquire(past{until(t, second)}, startRequest("over"), heard(func(_ driver.Lease, _ driver.Grant, err error) {
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it ended with %v", err)
			}
			ended <- time.Since(start)
		})) || !n.StartAcquire(until(t, second), startRequest("in time"), heard(func(driver.Lease, driver.Grant, error) { ended <- time.Since(start) })) {
			t.Fatal("not started")
		}
		for _, want := range []time.Duration{0, second} {
			if d := <-ended; d != want {
				t.Errorf("a call ended after %v, want %v", d, want)
			}
		}
	})
}

func TestCloseAnswersWhatWasStarted(t *testing.T) {
	startTest(t, true, func(t *testing.T, lib library, n *Node) {
		lib.Takes.Store(int64(second / 2))
		p := n.router.slots[0].Load().pipelines
		before := lib.Sent.Load()
		var answers, closed atomic.Int64
		for range 10 {
			if !n.StartAcquire(until(t, second), startRequest("k"), heard(func(_ driver.Lease, _ driver.Grant, err error) {
				answers.Add(1)
				if errors.Is(err, driver.ErrClosed) {
					closed.Add(1)
				}
			})) {
				t.Error("not started")
			}
		}
		synctest.Wait()
		under := lib.Sent.Load() - before
		p.Close()
		time.Sleep(second)
		if answers.Load() != 10 || closed.Load() != 10-under {
			t.Errorf("%d were answered, %d of them with ErrClosed, and %d were under way", answers.Load(), closed.Load(), under)
		}
	})
}

// The goroutines that are kept for calls to a server process end at once when another process
// takes its place, so that none outlives Close.
func TestNoGoroutineIsKeptForAProcessThatIsGone(t *testing.T) {
	startTest(t, true, func(t *testing.T, _ library, n *Node) {
		gone := n.router.slots[0].Load().pipelines
		if !n.StartAcquire(until(t, second), startRequest("k"), heard(func(driver.Lease, driver.Grant, error) {})) {
			t.Fatal("not started")
		}
		time.Sleep(second)
		if gone.Kept() == 0 {
			t.Fatal("no goroutine is kept")
		}
		now := time.Now()
		n.router.serves("k", "next", now.UnixMicro(), now, now)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if left := gone.Kept(); left > 0 {
			t.Errorf("%d goroutines are left after Close", left)
		}
	})
}

// A quorum checks a request for all its nodes, and does not know their prefixes: a key that is
// too long with one is not started, and the blocking method refuses it.
func TestAKeyThatIsTooLongWithThePrefixIsNotStarted(t *testing.T) {
	const prefix = "app:"
	n, err := New(Config{Client: instant{}, Prefix: prefix})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := n.Acquire(t.Context(), startRequest("warm")); err != nil {
		t.Fatal(err)
	}
	longest := startRequest(strings.Repeat("k", driver.MaxKey-len(prefix)))
	ended := make(chan error, 1)
	if !n.StartAcquire(until(t, time.Minute), longest, heard(func(_ driver.Lease, _ driver.Grant, err error) { ended <- err })) {
		t.Error("the longest key is not started")
	} else if err := <-ended; err != nil {
		t.Errorf("the longest key: %v", err)
	}
	longer := startRequest(longest.Key + "k")
	if n.StartAcquire(until(t, time.Minute), longer, heard(func(driver.Lease, driver.Grant, error) {})) {
		t.Error("a key that is too long is started")
	}
	if _, err := n.Acquire(t.Context(), longer); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a key that is too long: %v", err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
}
