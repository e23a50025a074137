package nodetest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func watch(t testing.TB, ctx context.Context, b driver.Backend, key string) <-chan struct{} {
	t.Helper()
	wake, err := b.(driver.Watcher).Watch(ctx, key)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	return wake
}

func awake(t testing.TB, wake <-chan struct{}) {
	t.Helper()
	select {
	case <-wake:
	case <-time.After(30 * time.Second):
		t.Fatal("nobody woke the waiter")
	}
}

// drained empties wake: a value too many is allowed.
func drained(wake <-chan struct{}) {
	select {
	case <-wake:
	default:
	}
}

// oneSubscriber: 200 goroutines that wait for 200 keys share one connection.
func (s *suite) oneSubscriber(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	holder := s.open(t, s.url(srv.Addr(), ""))
	b := s.open(t, s.url(srv.Addr(), ""))
	const n = 200
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var wg sync.WaitGroup
	leases := make([]driver.Lease, n)
	var ready sync.WaitGroup
	ready.Add(n)
	for i := range n {
		key := fmt.Sprintf("w%d", i)
		leases[i] = s.lock(t, holder, key, time.Minute)
		wg.Go(func() {
			wake, err := b.(driver.Watcher).Watch(ctx, key)
			ready.Done()
			if err != nil {
				t.Errorf("Watch: %v", err)
				return
			}
			for {
				l, err := b.Acquire(ctx, s.ask(key, time.Minute))
				if err == nil {
					_ = l.Release(ctx)
					return
				}
				select {
				case <-wake:
				case <-ctx.Done():
					return
				}
			}
		})
	}
	ready.Wait()
	if subs := subscribers(t, srv); subs != 1 {
		t.Errorf("%d connections subscribe, want one", subs)
	}
	for _, l := range leases {
		unlock(t, l)
	}
	wg.Wait()
	cancel()
	eventually(t, func() error {
		if subs := subscribers(t, srv); subs != 0 {
			return fmt.Errorf("%d connections subscribe when nobody waits", subs)
		}
		return nil
	})
}

// subscribers counts the connections with subscriptions.
func subscribers(t testing.TB, srv *server.Server) int {
	t.Helper()
	list, err := srv.Do("CLIENT", "LIST")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(fmt.Sprint(list)) {
		if strings.Contains(line, " sub=") && !strings.Contains(line, " sub=0 ") {
			n++
		}
	}
	return n
}

func (s *suite) waiterSurvives(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	holder := s.open(t, s.url(srv.Addr(), ""))
	b := s.open(t, s.url(p.Addr(), ""))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	wake := watch(t, ctx, b, "k")
	announced := func() {
		t.Helper()
		drained(wake)
		eventually(t, func() error { // until it subscribes again, a release may go unheard
			unlock(t, s.lock(t, holder, "k", time.Minute))
			select {
			case <-wake:
				return nil
			case <-time.After(50 * time.Millisecond):
				return errors.New("a release is not announced")
			}
		})
	}
	announced()
	p.CutAll()
	awake(t, wake)
	announced()
	if err := srv.Kill(); err != nil {
		t.Fatal(err)
	}
	awake(t, wake)
	if err := srv.Start(); err != nil {
		t.Fatal(err)
	}
	announced()
}

func (s *suite) noPubSub(t *testing.T) {
	srv := server.StartFor(t, s.kind, server.WithUser("quiet on nopass ~* resetchannels +@all"))
	var degraded atomic.Int64
	b := s.openWith(t, &driver.Config{DSN: s.url("quiet:x@"+srv.Addr(), ""), Event: func(e driver.Event) {
		if e.Kind == driver.Degraded && strings.Contains(e.Detail, "pub/sub") {
			degraded.Add(1)
		}
	}})
	for range 3 {
		_, err := b.(driver.Watcher).Watch(context.Background(), "k")
		if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "channel") {
			t.Fatalf("Watch without the right to subscribe: %v", err)
		}
	}
	unlock(t, s.lock(t, b, "k", time.Minute)) // PUBLISH is refused too, and the release holds
	noLocks(t, srv)
	eventually(t, func() error {
		if n := degraded.Load(); n != 1 {
			return fmt.Errorf("%d events say that waiters poll, want one", n)
		}
		return nil
	})
}
