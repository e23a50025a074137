package redisnode

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
)

// startTest runs a test of calls that a node starts.
func startTest(t *testing.T, heeds bool, test func(*testing.T, *library, *Node)) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, heeds)
		n := lib.node(t)
		if n.StartAcquire(async.Within(t.Context(), second), startRequest("cold"), nil) {
			t.Error("a call was started before the first contact")
		}
		if _, err := n.Acquire(t.Context(), startRequest("warm")); err != nil {
			t.Fatal(err)
		}
		test(t, lib, n)
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		if n.StartAcquire(async.Within(t.Context(), second), startRequest("late"), nil) {
			t.Error("a call was started after Close")
		}
		<-n.wg.Idle()
		<-n.work.Idle()
	})
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
	startTest(t, true, func(t *testing.T, lib *library, n *Node) {
		const calls = 200
		before := lib.batches.Load()
		var within atomic.Bool
		var answers atomic.Int64
		var leases [calls]*Lease
		round := func(what string, start func(i int, r async.Receiver) bool) {
			answers.Store(0)
			within.Store(true)
			for i := range calls {
				if !start(i, heard(func(l driver.Lease, g driver.Grant, err error) {
					if err != nil || within.Load() || l == nil && what == "acquire" || what == "renew" && time.Until(g.Expires) < time.Minute/2 {
						t.Errorf("%s %d: %+v, %v, within the call: %v", what, i, g, err, within.Load())
					} else if l != nil {
						leases[i] = l.(*Lease)
					}
					answers.Add(1)
				})) {
					t.Fatalf("%s %d is not started", what, i)
				}
			}
			within.Store(false) // virtual time has not advanced
			if what == "renew" && leases[0].StartRenew(async.Within(t.Context(), second), &driver.Renewal{TTL: time.Minute}, nil) {
				t.Error("a renewal was started beside another of this lease")
			}
			time.Sleep(second)
			if answers.Load() != calls {
				t.Fatalf("%s: %d of %d calls were answered", what, answers.Load(), calls)
			}
		}
		round("acquire", func(_ int, r async.Receiver) bool {
			return n.StartAcquire(async.Within(t.Context(), second), startRequest("k"), r)
		})
		if trips := lib.batches.Load() - before; trips > 4+calls/maxBatch+1 {
			t.Errorf("they took %d round trips", trips)
		}
		round("renew", func(i int, r async.Receiver) bool {
			return leases[i].StartRenew(async.Within(t.Context(), second), &driver.Renewal{TTL: time.Minute}, r)
		})
		round("release", func(i int, r async.Receiver) bool {
			return leases[i].StartRelease(async.Within(t.Context(), second), r)
		})
		// A quorum checks a request for all its nodes, and does not know their prefixes.
		n.cfg.Prefix = "app:"
		if n.StartAcquire(async.Within(t.Context(), second), startRequest(strings.Repeat("k", driver.MaxKey-len("app:")+1)), nil) {
			t.Error("a key that is too long with the node's prefix is started")
		}
		if l := leases[0]; l.StartRelease(async.Within(t.Context(), second), nil) || l.StartRenew(async.Within(t.Context(), second), &driver.Renewal{TTL: time.Minute}, nil) {
			t.Error("a call was started on a lease that is over")
		}
	})
}

// Whatever the library does, a started call ends at its deadline, and after the call timeout at the
// latest. A call that was sent is in doubt and undone; a call that was not sent needs no undoing.
func TestAStartedCallEndsAtItsDeadline(t *testing.T) {
	for term, want := range map[time.Duration]time.Duration{second / 4: second / 4, time.Minute: second} { // of its term, and of a call
		startTest(t, false, func(t *testing.T, lib *library, n *Node) {
			l, err := n.Acquire(t.Context(), startRequest("held"))
			drivertest.Must(t, err)
			lib.takes.Store(int64(time.Hour))
			before, start := lib.sent.Load(), time.Now()
			var sent, unsent atomic.Int64
			done := heard(func(_ driver.Lease, _ driver.Grant, err error) {
				if !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != want {
					t.Errorf("%v after %v", err, time.Since(start))
				}
				if errors.Is(err, ErrNotSent) {
					unsent.Add(1)
				} else {
					sent.Add(1)
				}
			})
			for range 10 {
				if !n.StartAcquire(async.Within(t.Context(), term), startRequest("k"), done) {
					t.Error("not started")
				}
			}
			if !l.(*Lease).StartRenew(async.Within(t.Context(), term), &driver.Renewal{TTL: time.Minute}, done) {
				t.Error("a renewal is not started")
			}
			time.Sleep(want)
			synctest.Wait()
			if sent.Load() != 1 || unsent.Load() != 10 || lib.sent.Load()-before != 1 || n.cleaning.Load() != 1 {
				t.Errorf("%d were sent, and %d were not; the library had %d, and %d are undone", sent.Load(), unsent.Load(), lib.sent.Load()-before, n.cleaning.Load())
			}
		})
	}
}

// A clean-up is little work for a server that does not answer, and for one that reads all that was sent when it
// goes on: it asks seldom, and not after the lock has ended by itself.
func TestACleanUpAsksASilentServerSeldom(t *testing.T) {
	startTest(t, true, func(t *testing.T, lib *library, n *Node) {
		lib.takes.Store(int64(time.Hour))
		before := lib.sent.Load()
		req := startRequest("k")
		req.TTL, req.Quorum = 3*time.Second, &quorum.Info{}
		if _, err := n.Acquire(t.Context(), req); err == nil {
			t.Fatal("a lock of a server that hangs")
		}
		time.Sleep(time.Minute)
		if sent := lib.sent.Load() - before; sent > 5 || n.cleaning.Load() != 0 {
			t.Errorf("%d calls were sent, want the attempt and four releases at most; %d are undone", sent, n.cleaning.Load())
		}
	})
}

func TestCloseAnswersWhatWasStarted(t *testing.T) {
	startTest(t, true, func(t *testing.T, lib *library, n *Node) {
		lib.takes.Store(int64(second / 2))
		var answers, closed atomic.Int64
		for range 10 {
			if !n.StartAcquire(async.Within(t.Context(), second), startRequest("k"), heard(func(_ driver.Lease, _ driver.Grant, err error) {
				answers.Add(1)
				if errors.Is(err, driver.ErrClosed) {
					closed.Add(1)
				}
			})) {
				t.Error("not started")
			}
		}
		synctest.Wait()
		n.router.slots[0].Load().lane.close()
		time.Sleep(second)
		if answers.Load() != 10 || closed.Load() != 9 {
			t.Errorf("%d were answered, %d of them with ErrClosed, and one was under way", answers.Load(), closed.Load())
		}
	})
}

// Close gives clean-ups about a call timeout, and leaves nothing behind. With an application's
// client, which ends its calls itself, that takes at most another call timeout.
func TestCloseIsBoundedWhereTheServerHangs(t *testing.T) {
	for _, own := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(time.Millisecond, true)
			lib.own = own
			n := lib.node(t)
			l, err := n.Acquire(t.Context(), startRequest("a"))
			drivertest.Must(t, err)
			lib.takes.Store(int64(time.Hour))
			if _, err := n.Acquire(t.Context(), startRequest("b")); err == nil {
				t.Fatal("a lock of a server that hangs")
			}
			returned := make(chan error, 1)
			go func() { returned <- l.Release(t.Context()) }()
			time.Sleep(time.Millisecond) // the release and the clean-up are under way
			start, most := time.Now(), second+second/4
			if !own {
				most += second
			}
			if err := n.Close(); err != nil || time.Since(start) > most {
				t.Errorf("own %v: Close took %v: %v", own, time.Since(start), err)
			}
			if err := <-returned; err == nil {
				t.Error("a release that was never answered succeeded")
			}
			<-n.wg.Idle()
		})
	}
}

// Close complains of calls that go on where only the application can end them. A client of the node's own
// is closed, and what it had under way ends when the machine has time for it.
func TestCloseComplainsOfAnApplicationsClientAlone(t *testing.T) {
	for _, own := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(time.Minute, false)
			lib.own = false // nothing ends its calls
			n := lib.node(t)
			if !own {
				n.cfg.Abandon = nil
			}
			if _, err := n.Acquire(t.Context(), startRequest("a")); err == nil {
				t.Fatal("a lock of a server that hangs")
			}
			if err := n.Close(); (err == nil) != own {
				t.Errorf("own %v: Close gives %v", own, err)
			}
			<-n.wg.Idle()
		})
	}
}

// lateContext is a context whose timer has not fired yet, though its deadline has passed.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// A library that respects deadlines may return before the context's timer fires. A call that
// failed this way is not repeated after its own deadline.
func TestNothingIsSentBehindADeadline(t *testing.T) {
	startTest(t, true, func(t *testing.T, lib *library, n *Node) {
		late := func(d time.Duration) context.Context { return lateContext{t.Context(), time.Now().Add(d)} }
		l, err := n.Acquire(late(second/10), startRequest("a"))
		drivertest.Must(t, err)
		lib.takes.Store(int64(time.Hour))
		before := lib.sent.Load()
		if _, err := l.Renew(late(second/10), &driver.Renewal{TTL: time.Minute}); err == nil || errors.Is(err, ErrNotSent) || lib.sent.Load() != before+1 {
			t.Errorf("a renewal was sent %d times: %v", lib.sent.Load()-before, err)
		}
		if err := n.router.hello.do(late(0), &Call{Keys: []string{"k"}}); !errors.Is(err, ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) || lib.sent.Load() != before+1 {
			t.Errorf("a call was sent when its time was over: %v", err)
		}
	})
}
