package nodetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// started starts a call, and waits for its answer. A node that cannot start it, since its
// connections or its process' state are in doubt, is asked in the blocking way first.
func started[T any](t *testing.T, ask func(), start func(done func(T, error)) bool) (T, error) {
	t.Helper()
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 2)
	for end := time.Now().Add(30 * time.Second); !start(func(v T, err error) { answers <- answer{v, err} }); ask() {
		if time.Now().After(end) {
			t.Fatal("the call is not started")
		}
	}
	select {
	case a := <-answers:
		return a.value, a.err
	case <-time.After(time.Minute):
		t.Fatal("a started call was never answered")
		panic("unreachable")
	}
}

// starting: calls that nobody waits for do what the blocking ones do, through broken
// connections, servers that hang and lost scripts, with a restart guard and without.
func (s *suite) starting(t *testing.T) {
	for name, q := range map[string]*driver.Quorum{
		"alone": nil,
		"in a quorum": {Terms: driver.Terms{
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
			long := func() time.Time { return time.Now().Add(30 * time.Second) }
			acquire := func(key string, until time.Time) (driver.Lease, error) {
				return started(t, anew, func(done func(driver.Lease, error)) bool {
					return b.(async.Backend).StartAcquire(context.Background(), ask(key), until, done)
				})
			}
			release := func(l driver.Lease) error {
				_, err := started(t, anew, func(done func(struct{}, error)) bool {
					return l.(async.Lease).StartRelease(context.Background(), long(), func(err error) { done(struct{}{}, err) })
				})
				return err
			}
			if b.(async.Backend).StartAcquire(context.Background(), ask("cold"), long(), nil) {
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
			g, err := started(t, anew, func(done func(driver.Grant, error)) bool {
				return l.(async.Lease).StartRenew(context.Background(), &driver.Renewal{TTL: time.Minute}, long(), done)
			})
			if err != nil || g.Fence != l.Grant().Fence || !g.Expires.After(time.Now()) {
				t.Errorf("renewed: %+v, %v", g, err)
			}
			if err := release(l); err != nil {
				t.Errorf("released: %v", err)
			}

			// A reply is lost with its connection: the second try finds what the first did.
			p.CutReplies(1)
			if l, err = acquire("cut", long()); err != nil {
				t.Errorf("after a lost reply: %v", err)
			} else {
				p.CutReplies(1)
				if err := release(l); err != nil {
					t.Errorf("the release, after a lost reply: %v", err)
				}
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

			// Nothing answers until the deadline, and what takes effect later is undone.
			warm("before the pause")
			p.Pause()
			for i := range 8 { // each is started or refused
				b.(async.Backend).StartAcquire(context.Background(), ask(fmt.Sprint("late", i)), long(), func(driver.Lease, error) {})
			}
			if _, err := acquire("late", time.Now().Add(50*time.Millisecond)); !errors.Is(err, context.DeadlineExceeded) {
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
