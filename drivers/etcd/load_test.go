package etcd_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// lateBy is a connection on which answers to transactions come this much later.
func lateBy(late time.Duration, count *atomic.Int64) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, c, opts...)
		if strings.HasSuffix(method, "/Txn") || strings.HasSuffix(method, "/DeleteRange") {
			count.Add(1)
			select {
			case <-time.After(late):
			case <-ctx.Done():
				return status.FromContextError(ctx.Err()).Err()
			}
		}
		return err
	}
}

// TestSlowServersGetNoMoreToDo: when answers take more than half of the call timeout, requests are not
// sent twice for long, and calls succeed.
func TestSlowServersGetNoMoreToDo(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for late answers")
	}
	var sent atomic.Int64
	b := on(t, single(t), 3*time.Second, grpc.WithChainUnaryInterceptor(lateBy(1600*time.Millisecond, &sent)))
	end, ends := t.Deadline()
	for { // the first attempts had no answer in time, and are undone meanwhile, which takes requests, too
		sent.Store(0)
		l, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute))
		if err == nil {
			err = l.Release(t.Context())
		}
		n := sent.Load()
		if err == nil && n <= 2 {
			return
		}
		if ends && time.Until(end) < 30*time.Second {
			t.Fatalf("a lock and its release are still %d requests, and give %v", n, err)
		}
	}
}

// TestAClientComesBackSoon: during an outage it tries to connect at least every half second.
func TestAClientComesBackSoon(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("lasts for some seconds")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close() //nolint:errcheck // a test
	dials := make(chan time.Time, 1000)
	go func() {
		for c, err := l.Accept(); err == nil; c, err = l.Accept() {
			_ = c.Close()
			dials <- time.Now()
		}
	}()
	b := open(t, "etcd://"+l.Addr().String())
	_, err = b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute))
	if drivertest.Verdict(err) != "unknown" {
		t.Errorf("Acquire: %v", err)
	}
	last := <-dials
	for first := last; last.Sub(first) < 4*time.Second; last = <-dials { // by then the default back-off has reached 4 s
	}
	for next, end := <-dials, last.Add(time.Minute); next.Sub(last) > 3*time.Second; last, next = next, <-dials { // a busy machine adds to a pause
		if next.After(end) {
			t.Fatalf("the client pauses for %v between two connections", next.Sub(last))
		}
	}
}

// counted counts the requests of a backend, those on streams too, but no keep-alives.
func counted(t *testing.T, g *server.Group, n *atomic.Int64) driver.Backend {
	unary := func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		n.Add(1)
		return invoke(ctx, method, req, reply, c, opts...)
	}
	streams := func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, d, c, method, opts...)
		if strings.HasSuffix(method, "/Watch") {
			s = counting{s, n}
		}
		return s, err
	}
	return on(t, g, time.Minute, grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(streams))
}

// counting is a stream whose requests are counted.
type counting struct {
	grpc.ClientStream
	n *atomic.Int64
}

func (c counting) SendMsg(m any) error {
	c.n.Add(1)
	return c.ClientStream.SendMsg(m)
}

// TestRequestsOfALock: one that is free takes two with its release, and one that is held takes one, although
// another client has raised the base; one that is passed on takes five at most.
func TestRequestsOfALock(t *testing.T) {
	t.Parallel()
	g := single(t)
	var n atomic.Int64
	b := counted(t, g, &n)
	held := drivertest.Grant(t, b, drivertest.NewRequest("held", time.Minute))
	raiseBase(t, open(t, patientURL(g, "/"+t.Name())))
	n.Store(0)
	if _, err := b.Acquire(t.Context(), drivertest.NewRequest("held", time.Minute)); drivertest.Verdict(err) != "held" || n.Load() > 1 {
		t.Errorf("a held key takes %d requests, more than 1: %v", n.Load(), err)
	}
	n.Store(0)
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("free", time.Minute)))
	if n.Load() > 2 {
		t.Errorf("a lock and its release are %d requests, more than 2", n.Load())
	}
	drivertest.Release(t, held)

	const clients, grants = 3, 10
	n.Store(0)
	var wg sync.WaitGroup
	for range clients {
		b := counted(t, g, &n)
		wg.Go(func() {
			for range grants {
				r := drivertest.NewRequest("passed on", time.Minute)
				r.Wait = true
				drivertest.Release(t, drivertest.Grant(t, b, r))
			}
		})
	}
	wg.Wait()
	n.Add(-3 * clients) // of each: its lease, the base, and the first requests
	each := float64(n.Load()) / (clients * grants)
	t.Logf("a lock that is passed on takes %.1f requests", each)
	if each > 5 {
		t.Errorf("a lock that is passed on takes %.1f requests, more than 5", each)
	}
}

// TestALateRequestMakesNoLock: a request that makes an entry arrives when its attempt is over, and has
// been sent again, or given up. It may have arrived before, without an answer.
func TestALateRequestMakesNoLock(t *testing.T) {
	t.Parallel()
	g := single(t)
	other := open(t, patientURL(g, "/"+t.Name()))
	// Tokens are ahead of the clock, so that only those requests raise the base which must.
	_, err := client(t, g).Put(t.Context(), "/"+t.Name()+"/.dlock", fmt.Sprintf("dlock1 %d", time.Now().Add(time.Hour).UnixMicro()))
	must(t, err)
	for i := range 40 {
		given, arrives, broken := i%5 == 0 /* up */, i%5 < 3, i%5%2 == 0
		r := drivertest.NewRequest("k", time.Minute)
		r.Mode, r.Wait = []driver.Mode{driver.Exclusive, driver.Shared}[i/5%2], i/10%2 == 1
		r.Tokens = uint32(i/20) * 10 // they raise the base
		var armed atomic.Bool
		var late func() error
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		b := with(t, g, func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if moves(req) == 0 || !armed.CompareAndSwap(true, false) {
				return invoke(ctx, method, req, reply, c, opts...)
			}
			late = func() error {
				return invoke(context.WithoutCancel(ctx), method, req, &etcdserverpb.TxnResponse{}, c, opts...)
			}
			if given {
				cancel()
			} else if arrives {
				must(t, late())
			}
			return status.Error(codes.Unavailable, "the request is under way")
		})
		drivertest.Grant(t, b, drivertest.NewRequest(r.Owner, time.Minute)) // goes on, and so does the etcd lease
		armed.Store(true)
		l, err := b.Acquire(ctx, r)
		switch {
		case err == nil && given, err != nil && !given:
			t.Errorf("%+v, given up: %v: %v", r, given, err)
		case given:
		case broken:
			must(t, other.Break(t.Context(), "k", driver.Holder{Fence: l.Grant().Fence}))
			if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); drivertest.Verdict(err) != "lost" {
				t.Errorf("Renew of a broken lock: %v", err)
			}
		default:
			drivertest.Renew(t, l, time.Minute)
			drivertest.Release(t, l)
		}
		must(t, b.Close()) // when all is undone
		must(t, late())
		if s, err := other.Lookup(t.Context(), "k"); err != nil || len(s.Holders) != 0 {
			t.Fatalf("after a late request (%+v, %d) the key is held: %+v, %v", r, i%5, s, err)
		}
	}
}

// TestAnUndoneAttemptExpectsNoLaterBase: its request was sent with a base that was lowered meanwhile, by hand, and
// again with the lower one. Both may arrive late, so the base becomes higher than either.
func TestAnUndoneAttemptExpectsNoLaterBase(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	key := "/" + t.Name() + "/.dlock"
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	put := func(base uint64) {
		_, err := c.Put(t.Context(), key, fmt.Sprintf("dlock1 %d", base))
		must(t, err)
	}
	put(ahead)
	ctx, giveUp := context.WithCancel(t.Context())
	var sent atomic.Int64
	b := with(t, g, func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if moves(req) != 0 {
			switch sent.Add(1) {
			case 1:
				put(ahead - 1000)
				return status.Error(codes.Unavailable, "the request is under way")
			case 3:
				giveUp()
				return status.Error(codes.Unavailable, "the request is under way")
			}
		}
		return invoke(ctx, method, req, reply, c, opts...)
	})
	if _, err := b.Acquire(ctx, drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) == "granted" {
		t.Fatal("the attempt was granted")
	}
	must(t, b.Close()) // when it is undone
	got, err := c.Get(t.Context(), key)
	must(t, err)
	if want := fmt.Sprintf("dlock1 %d", ahead+1); string(got.Kvs[0].Value) != want {
		t.Errorf("the base is %q after %d, not %q", got.Kvs[0].Value, ahead, want)
	}
}

// TestAnAttemptIsUndone by one request, although another client has raised the base meanwhile; the servers
// may refuse that for a while. It was given up, or it was refused when it was sent again.
func TestAnAttemptIsUndone(t *testing.T) {
	t.Parallel()
	for _, refusals := range []int64{0, 1, 2} {
		var made, undone atomic.Int64
		ctx, giveUp := context.WithCancel(t.Context())
		other := open(t, patientURL(single(t), "/"+t.Name()))
		b := with(t, single(t), func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if moves(req) != 0 {
				if made.Add(1) > 1 {
					return rpctypes.ErrGRPCRequestTooManyRequests
				}
				must(t, invoke(ctx, method, req, reply, c, opts...))
				raiseBase(t, other)
				if refusals != 1 {
					giveUp()
				}
				return status.Error(codes.Unavailable, "no answer")
			}
			if deletes(req) && undone.Add(1) <= refusals {
				return rpctypes.ErrGRPCRequestTooManyRequests
			}
			return invoke(ctx, method, req, reply, c, opts...)
		})
		if _, err := b.Acquire(ctx, drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) == "granted" {
			t.Fatal("the attempt was granted")
		}
		giveUp()
		r := drivertest.NewRequest("k", time.Minute)
		r.Wait = true
		drivertest.Release(t, drivertest.Grant(t, other, r))
		must(t, b.Close())
		if n := undone.Load() - refusals; n != 1 {
			t.Errorf("after %d refusals an attempt is undone by %d requests", refusals, n)
		}
	}
}

// TestALateUndoingFreesNoOtherLock: it is sent again because there was no answer, and again because the base
// was lower than it expected, and its first request comes when the key has another holder.
func TestALateUndoingFreesNoOtherLock(t *testing.T) {
	t.Parallel()
	var late func() error
	var tries atomic.Int64
	ctx, giveUp := context.WithCancel(t.Context())
	undone := make(chan struct{})
	b := with(t, single(t), func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		send := func() error { return invoke(context.WithoutCancel(ctx), method, req, reply, c, opts...) }
		switch {
		case deletes(req) && tries.Add(1) == 1:
			late = send
			return status.Error(codes.Unavailable, "the request is under way")
		case deletes(req) && tries.Load() == 3:
			defer close(undone)
		case moves(req) != 0 && ctx.Value(t) != nil: // it raises the base, and arrives nowhere
			giveUp()
			return status.Error(codes.Unavailable, "no answer")
		}
		return send()
	})
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
	r := drivertest.NewRequest("k", time.Minute)
	r.Tokens = 10
	if _, err := b.Acquire(context.WithValue(ctx, t, t), r); drivertest.Verdict(err) == "granted" { //nolint:staticcheck // a test's own key
		t.Fatal("the attempt was granted")
	}
	<-undone
	for range 10 { // the name is free a moment later
		l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
		must(t, late())
		drivertest.Renew(t, l, time.Minute)
		drivertest.Release(t, l)
	}
}

// raiseBase raises the base of the tokens, of which other clients do not know.
func raiseBase(t *testing.T, b driver.Backend) {
	many := drivertest.NewRequest("raises the base", time.Minute)
	many.Tokens = 100
	drivertest.Release(t, drivertest.Grant(t, b, many))
}

// gate holds up requests that make entries.
type gate struct {
	holds atomic.Bool
	held  chan chan struct{} // close what it gives to let the request go on
	made  chan bool          // whether the request made the entry
}

// gated opens a backend behind a gate, which has had a lock, so that it knows the base.
func gated(t *testing.T) (*etcd.Backend, *gate) {
	g := &gate{held: make(chan chan struct{}), made: make(chan bool, 10)}
	b := with(t, single(t), func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if moves(req) == 0 {
			return invoke(ctx, method, req, reply, c, opts...)
		}
		if g.holds.Load() {
			goes := make(chan struct{})
			g.held <- goes
			<-goes
		}
		err := invoke(ctx, method, req, reply, c, opts...)
		g.made <- reply.(*etcdserverpb.TxnResponse).Succeeded
		return err
	})
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
	<-g.made
	g.holds.Store(true)
	return b, g
}

// two begins two attempts, as many as there may be transactions under way, and returns what holds them up.
func (g *gate) two(t *testing.T, b driver.Backend) (granted []<-chan driver.Lease, under []chan struct{}) {
	for i := range 2 {
		r := drivertest.NewRequest(fmt.Sprint(i), time.Minute)
		r.Tokens = 10
		granted = append(granted, drivertest.Waiter(t, b, r))
		under = append(under, <-g.held)
	}
	return granted, under
}

// TestCallsThatMeetALateBase: two transactions are under way when another client raises the base. Each is
// sent once more, and the second one expects the base that the first one stores.
func TestCallsThatMeetALateBase(t *testing.T) {
	t.Parallel()
	b, g := gated(t)
	granted, first := g.two(t, b)
	raiseBase(t, open(t, patientURL(single(t), "/"+t.Name())))
	var again []chan struct{}
	for _, goes := range first {
		close(goes)
		again = append(again, <-g.held)
	}
	g.holds.Store(false)
	for _, goes := range again {
		for len(g.made) > 0 {
			<-g.made // of those before
		}
		close(goes)
		if !<-g.made {
			t.Error("a call is sent a third time")
		}
	}
	for _, l := range granted {
		drivertest.Release(t, <-l)
	}
}

// TestAnAttemptThatLeavesABatchIsUndoneAfterIt: the batch is sent again, with another base, when the
// attempt has been given up.
func TestAnAttemptThatLeavesABatchIsUndoneAfterIt(t *testing.T) {
	t.Parallel()
	b, g := gated(t)
	others, under := g.two(t, b)
	left := make(chan error)
	begin := func() (cancel func()) {
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			_, err := b.Acquire(ctx, drivertest.NewRequest("k", time.Minute))
			left <- err
		}()
		b.AwaitQueue(1)
		return cancel
	}
	other := open(t, patientURL(single(t), "/"+t.Name()))
	begin()()
	if err := <-left; drivertest.Verdict(err) == "granted" {
		t.Error("an attempt that was not sent was granted")
	}
	b.AwaitQueue(0)
	cancel := begin()
	close(under[0])
	batch := <-g.held
	cancel()
	if err := <-left; drivertest.Verdict(err) == "granted" {
		t.Error("the attempt that was given up was granted")
	}
	g.holds.Store(false)
	close(under[1])
	for _, l := range others {
		drivertest.Release(t, <-l)
		<-g.made
	}
	raiseBase(t, other)
	close(batch)
	for !<-g.made { // the batch, at its second try
	}
	wait := drivertest.NewRequest("k", time.Minute)
	wait.Wait = true
	drivertest.Release(t, drivertest.Grant(t, other, wait))
}

// writesOf returns how many writes of a cluster of one member f makes.
func writesOf(t *testing.T, g *server.Group, f func()) uint64 {
	c := client(t, g)
	index := func() uint64 {
		s, err := c.Status(t.Context(), g.Addrs()[0])
		must(t, err)
		return s.RaftIndex
	}
	before := index()
	f()
	return index() - before
}

// TestARenewalIsAWrite: it needs a majority, because some versions of etcd answer reads from old data.
// A waiter needs none when the entry before its own is removed: its own was confirmed a moment ago.
func TestARenewalIsAWrite(t *testing.T) {
	t.Parallel()
	g := server.Etcd(t, 1)
	a, b := open(t, patientURL(g)), open(t, patientURL(g))
	l := drivertest.Grant(t, a, drivertest.NewRequest("k", time.Minute))
	if writesOf(t, g, func() { drivertest.Renew(t, l, time.Minute) }) == 0 {
		t.Error("a renewal writes nothing")
	}
	// A waiter that checks its place sees the entry that was made just before its own.
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	next := drivertest.NewRequest("k", 2*time.Second)
	next.Wait = true
	if second, err := b.Acquire(ctx, next); err == nil {
		t.Fatalf("two holders: %+v and %+v", l.Grant(), second.Grant())
	}
	for waiters := 1; waiters <= 2; waiters++ { // behind the holder, and behind another waiter
		// On a busy machine a waiter confirms its place now and then, which is a write.
		for tries := 1; ; tries++ {
			var next []<-chan driver.Lease
			for i := range waiters {
				next = append(next, drivertest.Waiter(t, []driver.Backend{b, a}[i], drivertest.NewRequest("k", time.Minute)))
				drivertest.AwaitWaiters(t, a, "k", i+1)
			}
			n := uint64(0)
			for _, granted := range next {
				n = writesOf(t, g, func() { drivertest.Release(t, l); l = <-granted })
				if l == nil {
					return
				}
			}
			if n == 1 {
				break
			}
			if tries == 100 {
				t.Fatalf("the last of %d waiters never gets the lock with the release as the only write", waiters)
			}
		}
	}
	drivertest.Release(t, l)
}

// TestARenewalNeedsOneLeader: the leader that extended the etcd lease also answers the write after it. A lease that
// cannot be extended is not renewed.
func TestARenewalNeedsOneLeader(t *testing.T) {
	t.Parallel()
	g := single(t)
	var term, checks atomic.Uint64 // terms that are added to that of the server
	var kept atomic.Int64          // keep-alives that were answered
	var fails atomic.Bool          // they fail
	unary := func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, c, opts...)
		if r, ok := reply.(*etcdserverpb.TxnResponse); ok && err == nil {
			checks.Add(1)
			r.Header.RaftTerm += term.Load()
		}
		return err
	}
	streams := func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		if fails.Load() && strings.HasSuffix(method, "/LeaseKeepAlive") {
			return nil, status.Error(codes.Unknown, "no answer") // the client itself repeats what is unavailable
		}
		s, err := open(ctx, d, c, method, opts...)
		return elected{s, &term, &kept}, err
	}
	b := on(t, g, time.Minute, grpc.WithChainUnaryInterceptor(unary), grpc.WithChainStreamInterceptor(streams))
	l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
	lease := b.Lease()
	const ttl = 20 * time.Second // whose renewals extend the etcd lease when that was done a second ago
	soon := time.NewTicker(50 * time.Millisecond)
	defer soon.Stop()
	for ; kept.Load() == 0 && !t.Failed(); <-soon.C {
		drivertest.Renew(t, l, ttl)
	}
	before, renewals := kept.Load(), int64(20)
	for range renewals {
		drivertest.Renew(t, l, time.Minute)
	}
	if kept.Load()-before >= renewals {
		t.Error("each renewal extends the etcd lease, which all locks share")
	}
	term.Add(1) // a new leader, of whom the next keep-alive tells
	checks.Store(0)
	drivertest.Renew(t, l, time.Minute)
	if n := checks.Load(); n > 2 {
		t.Errorf("a renewal after an election is %d writes, more than 2", n)
	}
	if b.Lease() != lease {
		t.Error("an etcd lease that was extended is not used again")
	}
	fails.Store(true)
	for what, added := range map[string]uint64{"by a leader that was replaced": 2, "of a lease that cannot be extended": 1} {
		term.Store(added)
		err := error(nil)
		for ; err == nil && !t.Failed(); <-soon.C {
			_, err = l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		}
		if drivertest.Verdict(err) != "unknown" {
			t.Errorf("a renewal %s: %v", what, err)
		}
	}
	fails.Store(false)
	drivertest.Release(t, l)
}

// elected is a stream whose answers are of a later term.
type elected struct {
	grpc.ClientStream
	term *atomic.Uint64
	kept *atomic.Int64
}

func (e elected) RecvMsg(m any) error {
	err := e.ClientStream.RecvMsg(m)
	if r, ok := m.(*etcdserverpb.LeaseKeepAliveResponse); ok && err == nil {
		r.Header.RaftTerm += e.term.Load()
		e.kept.Add(1)
	}
	return err
}

// TestAWaiterThatCannotLookAsksTheMajority: one member tells nothing of use of the queue.
func TestAWaiterThatCannotLookAsksTheMajority(t *testing.T) {
	t.Parallel()
	g := single(t)
	for name, spoil := range map[string]func(*etcdserverpb.TxnResponse) error{
		"an error":   func(*etcdserverpb.TxnResponse) error { return status.Error(codes.Unavailable, "no answer") },
		"no header":  func(r *etcdserverpb.TxnResponse) error { r.Header = nil; return nil },
		"no entries": func(r *etcdserverpb.TxnResponse) error { r.Responses = nil; return nil },
		"old data":   func(r *etcdserverpb.TxnResponse) error { r.Header.Revision = 1; return nil },
	} {
		var spoiled, confirmed atomic.Int64
		b := with(t, g, func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, c, opts...)
			r, ok := reply.(*etcdserverpb.TxnResponse)
			switch asked := writes(req); {
			case !ok || err != nil || len(asked) == 0:
			case asked[0].GetRequestRange().GetSerializable():
				spoiled.Add(1)
				return spoil(r)
			case spoiled.Load() > 0 && asked[0].GetRequestTxn() != nil:
				confirmed.Add(1)
			}
			return err
		})
		for spoiled.Load() == 0 && !t.Failed() { // unless it confirmed its place at the same time
			held := drivertest.Grant(t, b, drivertest.NewRequest(name, time.Minute))
			waiting := drivertest.Waiter(t, b, drivertest.NewRequest(name, time.Minute))
			drivertest.AwaitWaiters(t, b, name, 1)
			drivertest.Release(t, held)
			if l := <-waiting; l != nil {
				drivertest.Release(t, l)
			}
		}
		if confirmed.Load() == 0 {
			t.Errorf("%s: a waiter has the lock without a write", name)
		}
	}
}

// TestManyLocksAtOnce: calls that meet are few requests, also for a server that takes only small
// transactions.
func TestManyLocksAtOnce(t *testing.T) {
	t.Parallel()
	g := server.Etcd(t, 1, server.WithSetting("max-txn-ops", "12"))
	var n atomic.Int64
	b := counted(t, g, &n)
	const locks = 300
	var wg sync.WaitGroup
	for i := range locks {
		wg.Go(func() {
			l := drivertest.Grant(t, b, drivertest.NewRequest(fmt.Sprint(i), time.Minute))
			drivertest.Renew(t, l, time.Minute)
			drivertest.Release(t, l)
		})
	}
	wg.Wait()
	if each := float64(n.Load()) / locks; each > 1.5 {
		t.Errorf("a lock, its renewal and its release take %.2f requests, more than 1.5", each)
	}
}

// TestAServerThatTakesOneLockAtATime: no two locks fit into one of its transactions.
func TestAServerThatTakesOneLockAtATime(t *testing.T) {
	t.Parallel()
	b := open(t, patientURL(server.Etcd(t, 1, server.WithSetting("max-txn-ops", "4"))))
	var wg sync.WaitGroup
	for i := range 10 {
		wg.Go(func() {
			drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest(fmt.Sprint(i), time.Minute)))
		})
	}
	wg.Wait()
}

func TestLeasesThroughTheLossOfTheLeader(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	locks := 100
	if server.IsDeep() {
		locks = 1000
	}
	g := server.Etcd(t, 3)
	drivertest.RunLeaderLoss(t, g, func() *server.Server { return leader(t, g) }, func(addrs []string) string {
		return "etcd://" + strings.Join(addrs, ",") + "?call_timeout=1500ms"
	}, locks)
}

// TestAKeyHasFewNames: etcd looks at all names that a key's entries ever had, until its history is
// compacted, so an entry has the name of an earlier one.
func TestAKeyHasFewNames(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b := open(t, patientURL(g, "/"+t.Name()))
	names := map[string]bool{}
	look := func() {
		entries, err := c.Get(t.Context(), b.Path("k")+"/", clientv3.WithPrefix())
		must(t, err)
		for _, kv := range entries.Kvs {
			names[string(kv.Key)] = true
		}
	}
	for range 10 {
		l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
		look()
		must(t, b.Break(t.Context(), "k", driver.Holder{Fence: l.Grant().Fence}))
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); drivertest.Verdict(err) != "lost" {
			t.Errorf("Renew of a broken lock: %v", err)
		}
		l = drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
		if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "held" {
			t.Errorf("beside the holder: %v", err)
		}
		next := drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Minute))
		drivertest.AwaitWaiters(t, b, "k", 1)
		look()
		drivertest.Release(t, l)
		drivertest.Release(t, <-next)
	}
	if len(names) != 2 {
		t.Errorf("two entries at a time have the names %v", names)
	}
}
