package nodetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// told is the result of a started call, and its receiver.
type told struct {
	lease driver.Lease
	grant driver.Grant
	err   error
	ended chan *told
}

func (r *told) Acquired(l driver.Lease, err error) { r.ended <- &told{lease: l, err: err} }
func (r *told) Renewed(g driver.Grant, err error)  { r.ended <- &told{grant: g, err: err} }
func (r *told) Released(err error)                 { r.ended <- &told{err: err} }

// started starts a call, and waits for its answer. If a node cannot start it, because its
// connections or the state of its process are in doubt, a blocking call is made first.
func started(t *testing.T, ask func(), start func(r async.Receiver) bool) *told {
	t.Helper()
	r := &told{ended: make(chan *told, 2)}
	for end := time.Now().Add(30 * time.Second); !start(r); ask() {
		if time.Now().After(end) {
			t.Fatal("the call is not started")
		}
	}
	select {
	case answer := <-r.ended:
		return answer
	case <-time.After(time.Minute):
		t.Fatal("a started call was never answered")
		panic("unreachable")
	}
}

// term is a Term whose length is known from the start.
type term struct {
	context.Context
	end time.Time
}

func until(d time.Duration) term { return term{context.Background(), time.Now().Add(d)} }

func (t term) Deadline() (time.Time, bool) { return t.end, true }
func (t term) Due() time.Time              { return t.end }

// starting: started calls have the same effects as blocking calls, with broken connections,
// servers that hang and lost scripts, with and without a restart guard.
func (s *suite) starting(t *testing.T) {
	for name, q := range map[string]*quorum.Info{
		"alone": nil,
		"in a quorum": {Terms: quorum.Terms{
			N: 1, Guard: time.Minute, Excuse: 300 * time.Millisecond, Allowance: 100 * time.Millisecond,
			Grace: 850 * time.Millisecond, Drift: 1,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			srv := server.StartFor(t, s.kind)
			p := fault.NewProxy(t, srv.Addr())
			b := s.open(t, s.url(p.Addr(), ""))
			ask := func(key string) *driver.Request {
				r := s.ask(key, time.Minute)
				r.Quorum = q
				return r
			}
			warm := func(key string) {
				eventually(t, func() error {
					l, err := b.Acquire(context.Background(), ask(key))
					if err == nil {
						err = l.Release(context.Background())
					}
					return err
				})
			}
			anew := func() { warm("anew") }
			long := func() term { return until(30 * time.Second) }
			acquire := func(key string, until term) (driver.Lease, error) {
				r := started(t, anew, func(r async.Receiver) bool { return b.(async.Backend).StartAcquire(until, ask(key), r) })
				return r.lease, r.err
			}
			release := func(l driver.Lease) error {
				return started(t, anew, func(r async.Receiver) bool { return l.(async.Lease).StartRelease(long(), r) }).err
			}
			if a := b.(async.Backend); !a.Starts(b) || a.Starts(struct{ driver.Backend }{b}) {
				t.Error("the backend does not know itself")
			}
			if b.(async.Backend).StartAcquire(long(), ask("cold"), nil) {
				t.Fatal("a call was started before the first contact")
			}
			warm("warm")

			l, err := acquire("k", long())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := acquire("k", long()); !errors.Is(err, driver.ErrHeld) {
				t.Errorf("a lock that is held: %v", err)
			}
			r := started(t, anew, func(r async.Receiver) bool {
				return l.(async.Lease).StartRenew(long(), &driver.Renewal{TTL: time.Minute}, r)
			})
			if r.err != nil || r.grant.Fence != l.Grant().Fence || !r.grant.Expires.After(time.Now()) {
				t.Errorf("renewed: %+v, %v", r.grant, r.err)
			}
			if err := release(l); err != nil {
				t.Errorf("released: %v", err)
			}

			// A reply is lost with its connection: the second try finds the effect of the first.
			p.CutReplies(1)
			if l, err = acquire("cut", long()); err != nil {
				t.Errorf("after a lost reply: %v", err)
			} else {
				p.CutReplies(1)
				eventually(t, func() error { // the caller repeats a release
					if err := release(l); !errors.Is(err, driver.ErrLost) {
						return err
					}
					return nil
				})
			}

			// The server loses its scripts.
			warm("again")
			if _, err := srv.Do("SCRIPT", "FLUSH"); err != nil {
				t.Fatal(err)
			}
			if l, err = acquire("flushed", long()); err != nil {
				t.Errorf("after SCRIPT FLUSH: %v", err)
			} else if err := release(l); err != nil {
				t.Errorf("the release after SCRIPT FLUSH: %v", err)
			}

			// The server does not answer until the deadline, and a call that takes effect later
			// is undone.
			warm("before the pause")
			p.Pause()
			for i := range 8 { // each call is started or refused
				b.(async.Backend).StartAcquire(long(), ask(fmt.Sprint("late", i)), &told{ended: make(chan *told, 1)})
			}
			if _, err := acquire("late", until(50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("without an answer: %v", err)
			}
			p.Resume()
			eventually(t, func() error {
				left, err := locks(srv)
				for _, name := range left {
					if name == "late" {
						err = errors.New("a lock was left behind by a call without an answer")
					}
				}
				return err
			})
		})
	}
}
