package redisnode

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// startTest runs a test of calls that are started on a node.
func startTest(t *testing.T, heeds bool, test func(t *testing.T, lib *library, n *Node)) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, heeds)
		n, err := New(Config{Client: hanging{lib, true}, Connections: 4, Direct: Direct{Heeds: true}})
		if err != nil {
			t.Fatal(err)
		}
		if n.StartAcquire(t.Context(), startRequest("cold"), time.Now().Add(second), nil) {
			t.Error("a call was started before the first contact")
		}
		if _, err := n.Acquire(t.Context(), startRequest("warm")); err != nil {
			t.Fatal(err)
		}
		test(t, lib, n)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if n.StartAcquire(t.Context(), startRequest("late"), time.Now().Add(second), nil) {
			t.Error("a call was started after Close")
		}
		<-n.wg.wait()
		<-n.work.wait()
	})
}

func startRequest(key string) *driver.Request {
	return &driver.Request{Key: key, Owner: "o/" + key, TTL: time.Minute}
}

func TestAStartedCallIsAnsweredOnceAndNeverFromWithin(t *testing.T) {
	startTest(t, true, func(t *testing.T, lib *library, n *Node) {
		const calls = 200
		before := lib.batches.Load()
		within := atomic.Bool{}
		within.Store(true)
		var leases [calls]*Lease
		var answers atomic.Int64
		for i := range calls {
			if !n.StartAcquire(t.Context(), startRequest("k"), time.Now().Add(second), func(l driver.Lease, err error) {
				defer answers.Add(1) // behind the write that it tells of
				if err != nil || within.Load() || leases[i] != nil {
					t.Errorf("call %d: %v, within the call: %v", i, err, within.Load())
					return
				}
				leases[i] = l.(*Lease)
			}) {
				t.Fatal("not started")
			}
		}
		within.Store(false) // virtual time has not moved
		time.Sleep(second)
		if answers.Load() != calls {
			t.Fatalf("%d of %d calls were answered", answers.Load(), calls)
		}
		if trips := lib.batches.Load() - before; trips > 4+calls/maxBatch+1 {
			t.Errorf("they took %d round trips", trips)
		}
		for _, l := range leases {
			if !l.StartRenew(t.Context(), &driver.Renewal{TTL: time.Minute}, time.Now().Add(second), func(g driver.Grant, err error) {
				answers.Add(-1)
				if err != nil || time.Until(g.Expires) < time.Minute/2 {
					t.Errorf("renewed: %+v, %v", g, err)
				}
			}) {
				t.Error("a renewal is not started")
			}
			if l.StartRenew(t.Context(), &driver.Renewal{TTL: time.Minute}, time.Now().Add(second), nil) {
				t.Error("a renewal was started beside another of this lease")
			}
		}
		time.Sleep(second)
		for _, l := range leases {
			if !l.StartRelease(t.Context(), time.Now().Add(second), func(err error) {
				answers.Add(1)
				if err != nil {
					t.Errorf("released: %v", err)
				}
			}) {
				t.Error("a release is not started")
			}
		}
		time.Sleep(second)
		if answers.Load() != calls {
			t.Errorf("%d releases were answered", answers.Load())
		}
		for _, l := range leases {
			if l.StartRelease(t.Context(), time.Now().Add(second), nil) || l.StartRenew(t.Context(), &driver.Renewal{TTL: time.Minute}, time.Now().Add(second), nil) {
				t.Error("a call was started on a lease that is over")
			}
		}
	})
}

// Whatever the library does, a started call ends at its deadline; what was sent of it is in
// doubt, and undone, and what was not is not.
func TestAStartedCallEndsAtItsDeadline(t *testing.T) {
	startTest(t, false, func(t *testing.T, lib *library, n *Node) {
		l, err := n.Acquire(t.Context(), startRequest("held"))
		if err != nil {
			t.Fatal(err)
		}
		lib.takes.Store(int64(time.Hour))
		p := n.router.slots[0].Load().pipelines
		p.proven = 4
		before := lib.sent.Load()
		start, until := time.Now(), time.Now().Add(second/4)
		var sent, unsent atomic.Int64
		done := func(err error) {
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != second/4 {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			if errors.Is(err, ErrNotSent) {
				unsent.Add(1)
			} else {
				sent.Add(1)
			}
		}
		for range 10 {
			if !n.StartAcquire(t.Context(), startRequest("k"), until, func(_ driver.Lease, err error) { done(err) }) {
				t.Error("not started")
			}
		}
		if !l.(*Lease).StartRenew(t.Context(), &driver.Renewal{TTL: time.Minute}, until, func(_ driver.Grant, err error) { done(err) }) {
			t.Error("a renewal is not started")
		}
		time.Sleep(second / 4)
		synctest.Wait()
		if sent.Load() != 4 || unsent.Load() != 7 || lib.sent.Load()-before != 4 {
			t.Errorf("%d were sent, and %d were not; the library had %d", sent.Load(), unsent.Load(), lib.sent.Load()-before)
		}
		if n.cleaning.Load() != 4 {
			t.Errorf("%d attempts are undone, want the 4 that were sent", n.cleaning.Load())
		}
		time.Sleep(2 * second)
		if n.StartAcquire(t.Context(), startRequest("k"), time.Now().Add(second), nil) {
			t.Error("a call was started behind a server that hangs")
		}
	})
}

func TestCloseAnswersWhatWasStarted(t *testing.T) {
	startTest(t, true, func(t *testing.T, lib *library, n *Node) {
		lib.takes.Store(int64(second / 2))
		p := n.router.slots[0].Load().pipelines
		var answers, closed atomic.Int64
		for range 10 {
			if !n.StartAcquire(t.Context(), startRequest("k"), time.Now().Add(second), func(_ driver.Lease, err error) {
				answers.Add(1)
				if errors.Is(err, driver.ErrClosed) {
					closed.Add(1)
				}
			}) {
				t.Error("not started")
			}
		}
		under := p.busy
		p.close()
		time.Sleep(second)
		if answers.Load() != 10 || closed.Load() != int64(10-under) {
			t.Errorf("%d were answered, %d of them with ErrClosed, and %d were under way", answers.Load(), closed.Load(), under)
		}
	})
}
