package nats_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	client "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/nats"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A leader that has lost the others, and does not know it yet, says of no lock that it is held.
func TestALeaderThatWasCutOff(t *testing.T) {
	server.Deep(t)
	g := server.NATS(t, 3)
	b := open(t, urlOf(g.Addrs()))
	drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
	var leader string
	must(t, jetStream(g, func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, "KV_dlock")
		leader = s.CachedInfo().Cluster.Leader
		return err
	}))
	for i, s := range g.Nodes {
		if leader != fmt.Sprint("m", i) {
			must(t, s.Kill())
		}
	}
	for range 3 { // it connects again
		if _, err := acquire(t, b, "k"); drivertest.Verdict(err) != "unknown" {
			t.Errorf("of a lock that may be free: %v", err)
		}
	}
}

// behindAProxy returns a backend that has the lock of k, and one behind a proxy.
func behindAProxy(t *testing.T) (holder *nats.Backend, held driver.Lease, p *fault.Proxy, b *nats.Backend) {
	g := server.NATS(t, 1)
	holder = open(t, urlOf(g.Addrs()))
	held = drivertest.Grant(t, holder, drivertest.NewRequest("k", time.Minute))
	p = fault.NewProxy(t, g.Addrs()[0])
	return holder, held, p, open(t, urlOf([]string{p.Addr()}))
}

// A first answer that came late, as one that waited for the connection, tells nothing of the server's clock.
func TestTheServersClockAfterALateAnswer(t *testing.T) {
	t.Parallel()
	const late = 4 * time.Second
	g := server.NATS(t, 1)
	from := time.Now()
	drivertest.Grant(t, open(t, urlOf(g.Addrs())), drivertest.NewRequest("k", time.Minute))
	p := fault.NewProxy(t, g.Addrs()[0])
	var once sync.Once
	p.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		if bytes.Contains(chunk, []byte("STREAM.INFO")) {
			once.Do(func() { <-time.After(late) })
		}
		return len(chunk), fault.Pass
	})
	_, err := acquire(t, open(t, urlOf([]string{p.Addr()})+"?call_timeout=1m"), "k")
	var held *driver.HeldError
	if !errors.As(err, &held) {
		t.Fatal(err)
	}
	if ahead := time.Minute - time.Since(from) - held.RetryAfter; ahead > late/4 {
		t.Errorf("the server's clock is ahead by %v", ahead)
	}
}

// What undoes an attempt of a waiter leaves a later attempt of it alone.
func TestUndoingAnAttemptOfAWaiter(t *testing.T) {
	holder, held, p, b := behindAProxy(t)
	proceed := b.HoldUndo()
	granted := drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Minute))
	drivertest.AwaitWaiters(t, holder, "k", 1)
	var lost atomic.Bool
	p.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		if bytes.Contains(chunk, []byte(`{"owner":`)) && lost.CompareAndSwap(false, true) {
			return 0, fault.Cut
		}
		return len(chunk), fault.Pass
	})
	drivertest.Release(t, held)
	l := <-granted
	if !lost.Load() {
		t.Fatal("no request was lost")
	}
	close(proceed)
	must(t, b.Close()) // waits for the undoing
	s, err := holder.Lookup(t.Context(), "k")
	must(t, err)
	if len(s.Holders) != 1 || s.Holders[0].Fence != l.Grant().Fence {
		t.Errorf("the lease with token %d lost its lock: %+v", l.Grant().Fence, s)
	}
}

// A waiter that gives up does not hear that it has the lock itself, by an attempt without an answer.
func TestAWaiterIsNotItsOwnHolder(t *testing.T) {
	holder, held, p, b := behindAProxy(t)
	proceed := b.HoldUndo()
	defer close(proceed)
	ctx, giveUp := context.WithCancel(t.Context())
	req := drivertest.NewRequest("k", time.Minute)
	req.Wait = true
	failed := make(chan error)
	go func() { _, err := b.Acquire(ctx, req); failed <- err }()
	drivertest.AwaitWaiters(t, holder, "k", 1)
	var taken, looks atomic.Int64
	looked := make(chan struct{})
	p.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		switch {
		case bytes.Contains(chunk, []byte(`{"owner":`)) && taken.CompareAndSwap(0, 1):
			return len(chunk), fault.Cut
		case taken.Load() > 0 && bytes.Contains(chunk, []byte("STREAM.MSG.GET")) && looks.Add(1) == 2:
			close(looked)
		}
		return len(chunk), fault.Pass
	})
	drivertest.Release(t, held)
	<-looked // and so had the answer of the look before
	giveUp()
	var by *driver.HeldError
	if err := <-failed; errors.As(err, &by) && by.Holder == req.Owner {
		t.Errorf("it is refused for itself: %v", err)
	}
}

// A waiter whose place was removed, though it lives, gets a place again, while the lock is renewed.
func TestARemovedWaiterComesAgain(t *testing.T) {
	server.Deep(t)
	g := server.NATS(t, 1)
	a, b := open(t, urlOf(g.Addrs())), open(t, urlOf(g.Addrs()))
	l := drivertest.Grant(t, a, drivertest.NewRequest("k", time.Minute))
	granted := drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Minute))
	drivertest.AwaitWaiters(t, a, "k", 1)
	must(t, jetStream(g, func(ctx context.Context, js jetstream.JetStream) error {
		s, err := js.Stream(ctx, "KV_dlock")
		if err != nil {
			return err
		}
		return s.Purge(ctx, jetstream.WithPurgeSubject("$KV.dlock.*.w.>"))
	}))
	for from := time.Now(); ; {
		drivertest.Renew(t, l, time.Minute)
		s, err := a.Lookup(t.Context(), "k")
		must(t, err)
		if s.Waiters == 1 {
			break
		}
		if time.Since(from) > time.Minute {
			t.Fatal("it has no place")
		}
		time.Sleep(200 * time.Millisecond)
	}
	drivertest.Release(t, l)
	drivertest.Release(t, <-granted)
}

// A client that takes a lock again and again gives it to a waiter.
func TestAWaiterAmongManyGrants(t *testing.T) {
	g := server.NATS(t, 1)
	p := fault.NewProxy(t, g.Addrs()[0])
	p.RTT(20 * time.Millisecond)
	a, b := open(t, urlOf(g.Addrs())), open(t, urlOf([]string{p.Addr()}))
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
	stop := drivertest.Busy(a, "k")
	for range 3 {
		drivertest.Release(t, <-drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Minute)))
	}
	stop()
}

// A lock that is kept for a waiter that has left goes on to the next one at once.
func TestTheNamedWaiterLeft(t *testing.T) {
	g := server.NATS(t, 1)
	p := fault.NewProxy(t, g.Addrs()[0])
	a, b, c := open(t, urlOf(g.Addrs())), open(t, urlOf([]string{p.Addr()})), open(t, urlOf(g.Addrs()))
	for quick := false; !quick; { // a busy machine may need longer
		if end, there := t.Deadline(); there && time.Until(end) < 5*time.Second {
			t.Fatal("the next waiter never gets the lock at once")
		}
		l := drivertest.Grant(t, a, drivertest.NewRequest("k", time.Minute))
		ctx, leave := context.WithCancel(t.Context())
		req := drivertest.NewRequest("k", time.Minute)
		req.Wait = true
		left := make(chan driver.Lease, 1)
		go func() {
			l, _ := b.Acquire(ctx, req) //nolint:errcheck // nil
			left <- l
		}()
		drivertest.AwaitWaiters(t, a, "k", 1)
		granted := drivertest.Waiter(t, c, drivertest.NewRequest("k", time.Minute))
		drivertest.AwaitWaiters(t, a, "k", 2)
		p.Pause() // it does not hear that it has the lock
		from := time.Now()
		drivertest.Release(t, l)
		leave()
		if <-left != nil {
			t.Error("it got the lock")
		}
		p.Resume()
		drivertest.Release(t, <-granted)
		quick = time.Since(from) < 400*time.Millisecond // and not after the half second for which it is kept
	}
}

// An application's connection, which keeps what it is given while there is no server, takes no lock
// for an attempt that failed long ago.
func TestAttemptsWithoutAConnection(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a lock to end")
	}
	g := server.NATS(t, 1)
	nc, err := client.Connect("nats://"+g.Addrs()[0], client.MaxReconnects(-1), client.ReconnectWait(50*time.Millisecond))
	must(t, err)
	defer nc.Close()
	b, err := nats.New(nc, nil)
	must(t, err)
	defer b.Close() //nolint:errcheck // of a test
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Second)))
	must(t, g.Kill())
	for nc.IsConnected() {
		time.Sleep(time.Millisecond)
	}
	if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Second)); drivertest.Verdict(err) != "unknown" {
		t.Errorf("without a server: %v", err)
	}
	time.Sleep(4 * time.Second) // nothing undoes it any more
	must(t, g.Start())
	watch := open(t, urlOf(g.Addrs()))
	for from := time.Now(); time.Since(from) < time.Second; {
		if s, err := watch.Lookup(t.Context(), "k"); err == nil && len(s.Holders) > 0 {
			t.Fatalf("a lock of nobody: %+v", s.Holders)
		}
	}
}

// Servers that lose power have what they synced. By default that is what they had up to two minutes ago, so
// a lock that was granted can be granted again.
func TestAllServersLosePower(t *testing.T) {
	server.Deep(t)
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/conf", []byte("jetstream { sync_interval: always }"), 0o600))
	system.Syncs(t, server.WithArgs("-c", dir+"/conf"))
	g := server.NATS(t, 3)
	b := open(t, urlOf(g.Addrs()))
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("first", time.Minute))) // it makes the bucket
	must(t, g.Kill())
	for _, s := range g.Nodes {
		must(t, os.CopyFS(filepath.Join(dir, s.Addr()), os.DirFS(s.Dir()+"/data")))
	}
	must(t, g.Start())
	drivertest.Grant(t, b, drivertest.NewRequest("k", time.Hour))
	must(t, g.Kill())
	for _, s := range g.Nodes {
		must(t, os.RemoveAll(s.Dir()+"/data"))
		must(t, os.CopyFS(s.Dir()+"/data", os.DirFS(filepath.Join(dir, s.Addr()))))
	}
	must(t, g.Start())
	drivertest.Grant(t, b, drivertest.NewRequest("k", time.Hour))
}
