package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

// A factory makes connections, as New expects it.
type factory = func(context.Context) (*pgx.Conn, error)

// connector makes connections by URL.
func connector(url string) factory {
	return func(ctx context.Context) (*pgx.Conn, error) { return pgx.Connect(ctx, url) }
}

// counted counts the connections that f makes.
func counted(n *atomic.Int64, f factory) factory {
	return func(ctx context.Context) (*pgx.Conn, error) {
		n.Add(1)
		return f(ctx)
	}
}

// built returns a backend that uses a factory.
func built(t *testing.T, f factory, o *postgres.Options) *postgres.Backend {
	t.Helper()
	b, err := postgres.New(f, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func TestAHookMayCallTheBackend(t *testing.T) {
	t.Parallel()
	s := database(t)
	called := make(chan int, 16)
	var b *postgres.Backend
	b = built(t, connector(s.URL()), &postgres.Options{Notify: func(n driver.Notice) {
		keys := 0
		err := errors.New("none yet")
		for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
			err = b.List(context.Background(), "", func(*driver.State) bool { keys++; return true })
		}
		if err != nil {
			t.Errorf("List from a hook: %v", err)
		}
		called <- keys
	}})
	l := must(t, b, request("k", time.Minute))
	if err := terminate(s.URL(), b); err != nil {
		t.Fatal(err)
	}
	<-l.Grant().Lost
	if keys := <-called; keys != 0 {
		t.Errorf("%d keys are held after the session's end", keys)
	}
	_ = must(t, b, request("k", time.Minute)).Release(context.Background())
}

// An idle waiter may be reserved for a wait while a session is chosen for a lock: the backend
// still knows it, and Close ends it.
func TestCloseEndsASessionThatIsTakenForAWait(t *testing.T) {
	t.Parallel()
	s := database(t)
	a := opener(t, s.URL())
	for i := range rounds(8, 3) {
		b := opener(t, s.URL()+"&max_conns=4")
		var held []driver.Lease
		for k := range 4 {
			held = append(held, must(t, a, request(fmt.Sprint(i, "k", k), time.Minute)))
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					r := request(fmt.Sprint(i, "k", (w+n)%8), time.Second)
					bounded, stop := context.WithTimeout(ctx, 5*time.Millisecond)
					r.Wait = w%2 == 0
					if l, err := b.Acquire(bounded, r); err == nil {
						_ = l.Release(bounded)
					}
					stop()
				}
			})
		}
		<-time.After(50 * time.Millisecond)
		closed := make(chan struct{})
		go func() { _ = b.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(patience):
			t.Fatalf("round %d: Close hangs", i)
		}
		cancel()
		wg.Wait()
		for _, l := range held {
			_ = l.Release(context.Background())
		}
	}
}

// An administrator cancels statements of a session by mistake. Its leases stay, and an unlock
// is repeated.
func TestACancelledStatementEndsNoSession(t *testing.T) {
	t.Parallel()
	s := database(t)
	db := admin(t, s.URL())
	b := opener(t, s.URL())
	kept := must(t, b, request("kept", time.Hour))
	pid := int64(b.Pids()[0])
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	var released atomic.Int64
	for w := range 8 {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r := request(fmt.Sprint("k", w), time.Minute)
				if w%2 == 0 {
					r.Mode, r.Key = driver.Shared, "shared"
				}
				l, err := b.Acquire(context.Background(), r)
				if err != nil {
					continue // it was hit
				}
				if err := release(l); err != nil {
					t.Errorf("Release: %v", err)
				}
				released.Add(1)
			}
		})
	}
	for i := range rounds(1000, 300) {
		if n := released.Load(); i%10 == 9 { // a statement that is cancelled all the time costs the session
			eventually(t, "a lease is released", func() bool { return released.Load() > n })
		}
		if got := count(t, db, "SELECT pg_cancel_backend($1)::int", pid); got != 1 {
			t.Error("the session has gone")
			break
		}
	}
	cancel()
	wg.Wait()
	select {
	case <-kept.Grant().Lost:
		t.Error("a cancelled statement ended the session with all its leases")
	default:
	}
	eventually(t, "one lock is on the server, and one lease is held", func() bool { return count(t, db, advisory) == 1 })
	if err := release(kept); err != nil {
		t.Error(err)
	}
}

// The server has no connection for a waiter: the wait polls on the existing session, and does
// not request a connection all the time.
func TestARefusedConnectionMeansPolling(t *testing.T) {
	t.Parallel()
	s := database(t)
	a := opener(t, s.URL())
	l := must(t, a, request("k", time.Hour))
	var opened atomic.Int64
	real := connector(s.URLFor("app", ""))
	s.role(t, "app", "CONNECTION LIMIT 1")
	run(t, admin(t, s.URL()), "GRANT USAGE, UPDATE ON SEQUENCE dlock_fence TO app")
	b := built(t, counted(&opened, real), nil)
	_ = must(t, b, request("warm", time.Minute)).Release(context.Background())
	pids, before, start := b.Pids(), opened.Load(), time.Now()
	got := make(chan error, 1)
	go func() {
		l, err := awaited(context.Background(), b, request("k", time.Minute))
		if err == nil {
			err = release(l)
		}
		got <- err
	}()
	eventually(t, "it asks for a connection", func() bool { return opened.Load() > before })
	<-time.After(1500 * time.Millisecond)
	// One in five seconds, unless the session itself had to be replaced.
	if n := opened.Load() - before; n > 1+int64(time.Since(start)/(5*time.Second)) && b.Conns() == 1 && slices.Equal(b.Pids(), pids) {
		t.Errorf("%d connections were asked for, and refused", n)
	}
	start = time.Now()
	if err := release(l); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Errorf("a wait without a connection: %v", err)
	}
	t.Logf("handed over in %v", time.Since(start))
}

// A session behind a dead network with a long TTL blocks its own process's requests for a key
// only until it counts as silent.
func TestADeadConnectionBlocksNoKeyForATTL(t *testing.T) {
	t.Parallel()
	s := database(t)
	other := opener(t, s.URL())
	p := fault.NewProxy(t, s.Addr())
	via, direct := connector(through(s, p)), connector(s.URL())
	var dead atomic.Bool
	b := built(t, func(ctx context.Context) (*pgx.Conn, error) {
		if dead.Load() { // new connections work
			return direct(ctx)
		}
		return via(ctx)
	}, nil)
	l := must(t, b, request("held", time.Hour))
	dead.Store(true)
	p.Pause()
	start := time.Now()
	released := make(chan struct{})
	go func() { _ = l.Release(context.Background()); close(released) }()
	var wg sync.WaitGroup
	for _, key := range []string{"asked", "free"} {
		wg.Go(func() {
			eventually(t, key+" is granted", func() bool {
				l, err := b.Acquire(context.Background(), request(key, time.Minute))
				return err == nil && l.Release(context.Background()) == nil
			})
			t.Logf("%s after %v", key, time.Since(start))
		})
	}
	wg.Wait()
	// The server still keeps the locks of the dead session: it answers that they are held.
	if _, _, err := answer(context.Background(), b, request("held", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a key that the dead session has: %v", err)
	}
	if _, _, err := answer(context.Background(), other, request("held", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("the same for another process: %v", err)
	}
	<-released
	if err := terminate(s.URL(), other); err != nil { // no other session's
		t.Fatal(err)
	}
	p.Resume()
	eventually(t, "the key is free once the server has heard", func() bool {
		l, err := b.Acquire(context.Background(), request("held", time.Minute))
		return err == nil && l.Release(context.Background()) == nil
	})
}
