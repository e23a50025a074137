package redlock

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/memory"
)

// told is what a host told a node: a request for a vote or a join, and until when it waits for the answer.
type told struct {
	driver.Request
	at, until time.Time
}

// listening is a node that notes what it is told. It answers after wait, even if its caller has gone.
type listening struct {
	*simNode
	wait time.Duration
	told []told
}

func (n *listening) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	until, _ := ctx.Deadline()
	n.told = append(n.told, told{*r, time.Now(), until})
	if n.wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		time.Sleep(n.wait)
	}
	return n.simNode.Acquire(ctx, r)
}

// listeners returns the nodes of a quorum that note what they are told, and their servers.
func listeners(n int) (servers []*simServer, all []*listening, nodes []driver.Backend) {
	servers, sims := simNodes(make([]network, n)...)
	for _, s := range sims {
		s.(*simNode).life = time.Hour
		all = append(all, &listening{simNode: s.(*simNode)})
		nodes = append(nodes, all[len(all)-1])
	}
	return servers, all, nodes
}

// A node is asked until the caller's deadline, if that comes first. Of a node that has not answered the votes say no
// latency.
func TestNoNodeIsAskedBeyondTheCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, all, nodes := listeners(3)
		b := opened(t, nodes, &Options{Guard: -1, NodeTimeout: time.Second})
		all[2].wait = 500 * time.Millisecond
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		l, err := b.Acquire(ctx, request1("k", "o", time.Minute))
		drivertest.Must(t, err)
		synctest.Wait()
		if left := all[0].told[0].until.Sub(all[0].told[0].at); left != 300*time.Millisecond {
			t.Errorf("a node is asked for %v, want the caller's 300ms", left)
		}
		if v := l.Grant().Votes[2]; v.Latency != 0 {
			t.Errorf("the node that has not answered took %v", v.Latency)
		}
		began := time.Now()
		drivertest.Must(t, l.Release(t.Context()))
		if took := time.Since(began); took >= time.Second {
			t.Errorf("a release that a majority confirms takes %v", took)
		}
		drivertest.Must(t, b.Close())
		if took := time.Since(began); took < 400*time.Millisecond || took > time.Second {
			t.Errorf("Close takes %v beside a request that ends after 500ms", took)
		}
	})
}

// After a split vote a bid waits for a quarter of the pause and a random part, before it asks again.
func TestASplitVoteIsFollowedByAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, all, nodes := listeners(3)
		b := opened(t, nodes, &Options{Guard: -1, NodeTimeout: time.Second})
		var pause time.Duration
		b.random = func(most time.Duration) time.Duration {
			if pause == 0 {
				pause = most
			}
			return most / 2
		}
		for i, owner := range []string{"a", "b"} { // a third of the nodes each, and the last one is free
			r := request1("k", owner, 100*time.Millisecond)
			r.Quorum = b.quorum(b.nodes[i], b.clock.Now(), 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := all[i].simNode.Acquire(ctx, r)
			drivertest.Must(t, err)
		}
		all[0].wait = 40 * time.Millisecond
		_, err := b.Acquire(t.Context(), request1("k", "c", time.Minute))
		synctest.Wait()
		var asked []time.Time
		for _, n := range all {
			for _, r := range n.told {
				asked = append(asked, r.at)
			}
		}
		slices.SortFunc(asked, time.Time.Compare)
		if len(asked) < 4 || pause == 0 {
			t.Fatalf("%d votes were asked for, the pause is %v: %v", len(asked), pause, err)
		}
		answered := asked[2].Add(all[0].wait)
		if waited := asked[3].Sub(answered); waited < pause*3/4 || waited > pause*3/4+time.Millisecond {
			t.Errorf("after a pause of up to %v it asks again after %v", pause, waited)
		}
	})
}

// A node whose counter is above the token, left by a vote with an unknown outcome, takes the lease when a renewal was
// confirmed that began after the quarantine: one that was not confirmed proves nothing. Each join names the token.
func TestANodeThatLostTheLeaseIsHealedAfterTheQuarantine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, all, nodes := listeners(3)
		b := opened(t, nodes, &Options{Guard: 10 * time.Second, Bootstrap: true, NodeTimeout: 100 * time.Millisecond})
		l := drivertest.Grant(t, b, request1(simKeyName, "o", 5*time.Second))
		time.Sleep(time.Second)
		synctest.Wait()
		token, lost, asked := l.Grant().Fence, servers[2], len(all[2].told)
		lost.expire()
		lost.key().counter = uint64(time.Now().UnixMicro())
		renew := func(carries bool) {
			drivertest.Renew(t, l, 5*time.Second)
			time.Sleep(time.Second)
			synctest.Wait()
			if free := lost.key().free(); free == carries {
				t.Fatalf("the node has the lease: %v", !free)
			}
		}
		for until := time.Now().Add(driver.FenceLag + b.terms.Quarantine); time.Now().Before(until); {
			renew(false)
		}
		for _, s := range servers[:2] {
			s.pause(300 * time.Millisecond)
		}
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: 5 * time.Second}); err == nil {
			t.Fatal("a renewal was confirmed that no node answered")
		}
		time.Sleep(time.Second)
		renew(false)
		renew(true)
		for _, r := range all[2].told[asked:] {
			if r.ExactFence != token || r.Quorum.WaitingSince != 0 {
				t.Errorf("a join is for token %d, want %d, by a client that waits since %d", r.ExactFence, token, r.Quorum.WaitingSince)
			}
		}
		drivertest.Must(t, l.Release(t.Context()))
	})
}

// A last renewal waits for a late vote, though its caller has gone: no node may keep a late grant for longer.
func TestALastRenewalWaitsForLateVotes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const took = 500 * time.Millisecond
		late := memory.New()
		nodes := []driver.Backend{memory.New(), memory.New(), script{late, func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			time.Sleep(took)
			return late.Acquire(context.WithoutCancel(ctx), r)
		}}}
		b := opened(t, nodes, &Options{NodeTimeout: time.Second})
		l := drivertest.Grant(t, b, request1("k", "o", 20*time.Second))
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(took/4, cancel)
		began := time.Now()
		_, _ = l.Renew(ctx, &driver.Renewal{Keep: time.Second}) // which ends with its caller then
		if waited := time.Since(began); waited < took {
			t.Errorf("it ends after %v, and a vote is under way", waited)
		}

		l = drivertest.Grant(t, b, request1("kept", "o", 20*time.Second))
		time.Sleep(took)
		_, err := l.Renew(t.Context(), &driver.Renewal{Keep: 5 * time.Second})
		drivertest.Must(t, err)
		time.Sleep(4 * time.Second)
		drivertest.WantHeld(t, b, request1("kept", "p", time.Second))
		time.Sleep(6 * time.Second)
		drivertest.Must(t, drivertest.Grant(t, b, request1("kept", "q", time.Second)).Release(t.Context()))
	})
}

// Other renewals are not deaf: they end with their caller.
func TestARenewalEndsWithItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, _, nodes := listeners(3)
		b := opened(t, nodes, &Options{Guard: -1, NodeTimeout: time.Second})
		l := drivertest.Grant(t, b, request1("k", "o", time.Minute))
		synctest.Wait()
		servers[0].pause(50 * time.Millisecond)
		drivertest.Renew(t, l, time.Minute)
		time.Sleep(60 * time.Millisecond)
		if v := l.Grant().Votes[0]; v.Latency < 50*time.Millisecond {
			t.Errorf("the slow node's renewal took %v", v.Latency)
		}
		for _, s := range servers {
			s.pause(600 * time.Millisecond)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		began := time.Now()
		if _, err := l.Renew(ctx, &driver.Renewal{TTL: time.Minute}); !errors.Is(err, context.Canceled) || time.Since(began) != 100*time.Millisecond {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
		time.Sleep(time.Second)
		for _, s := range servers {
			s.pause(time.Minute)
		}
		began = time.Now()
		if err := l.Release(t.Context()); err == nil || time.Since(began) != 2*time.Second {
			t.Errorf("a release that no node answers ends after %v: %v", time.Since(began), err)
		}
	})
}

// What has ended at the nodes is released.
func TestALeaseThatTheNodesHaveLostIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, _, nodes := listeners(3)
		b := opened(t, nodes, &Options{Guard: -1})
		l := drivertest.Grant(t, b, request1(simKeyName, "o", time.Minute))
		synctest.Wait()
		for _, s := range servers {
			s.expire()
		}
		for range 2 {
			drivertest.Must(t, l.Release(t.Context()))
		}
	})
}

// A node whose breaker is open is asked for no vote and no join, unless the others are no majority. What it
// has of a lease is renewed and released.
func TestANodeWhoseBreakerIsOpenIsNotAsked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, all, nodes := listeners(3)
		b := opened(t, nodes, &Options{Guard: -1, NodeTimeout: time.Second})
		trip := func(n *node) {
			for range tripAfter {
				time.Sleep(tripTime)
				n.report(true)
			}
		}
		l := drivertest.Grant(t, b, request1(simKeyName, "o", time.Minute))
		synctest.Wait()
		trip(b.nodes[1])
		time.Sleep(10 * time.Second)
		b.nodes[1].probes()
		drivertest.Renew(t, l, time.Minute)
		synctest.Wait()
		if left := time.Until(servers[1].key().until); left < 50*time.Second {
			t.Errorf("the lease at the node ends in %v, and was renewed just now", left)
		}
		drivertest.Must(t, l.Release(t.Context()))
		synctest.Wait()
		if !servers[1].key().free() {
			t.Errorf("after the release the node has %+v", servers[1].key())
		}

		trip(b.nodes[1])
		asked := len(all[1].told)
		l = drivertest.Grant(t, b, request1(simKeyName, "p", time.Minute))
		drivertest.Renew(t, l, time.Minute)
		synctest.Wait()
		if v := l.Grant().Votes[1]; len(all[1].told) != asked || v.Err == nil || v.Latency != 0 {
			t.Errorf("the node was asked %d times more, and its vote is %+v", len(all[1].told)-asked, v)
		}
		drivertest.Must(t, l.Release(t.Context()))

		trip(b.nodes[2])
		asked = len(all[1].told)
		l = drivertest.Grant(t, b, request1(simKeyName, "q", time.Minute))
		synctest.Wait()
		if n := len(all[1].told); n != asked+1 {
			t.Errorf("the node is asked %d times, and without it there is no majority", n-asked)
		}
		drivertest.Must(t, l.Release(t.Context()))
	})
}

// The calls of a lease refuse what a quorum cannot do.
func TestARenewalIsChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, _, nodes := listeners(3)
		b := opened(t, nodes, &Options{Guard: -1, NodeTimeout: time.Second})
		l := drivertest.Grant(t, b, request1("k", "o", time.Minute))
		synctest.Wait()
		for _, r := range []driver.Renewal{{TTL: time.Minute, MinFence: 1}, {TTL: time.Second - 1}, {TTL: -1}} {
			if _, err := l.Renew(t.Context(), &r); !errors.Is(err, driver.ErrInvalid) {
				t.Errorf("%+v: %v", r, err)
			}
		}
		drivertest.Must(t, b.Close())
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if err := l.Release(t.Context()); !errors.Is(err, driver.ErrClosed) {
			t.Errorf("a release after Close: %v", err)
		}
	})
}

// Each error of a node has one meaning for a bid.
func TestWhatAnErrorOfANodeMeans(t *testing.T) {
	for _, c := range []struct {
		err  error
		want answer
	}{
		{nil, granted},
		{&driver.HeldError{}, held},
		{&driver.HeldError{ReservedForWaiter: true}, reserved},
		{driver.Invalid("TTL", "is wrong"), misuse},
		{&driver.RefusedError{}, refused},
		{&driver.RefusedError{RetryAfter: 1}, deferred},
		{driver.ErrLost, gone},
		{errors.New("EOF"), silence},
	} {
		r := result{err: c.err}
		if r.read(); r.answer != c.want {
			t.Errorf("%v means %d, want %d", c.err, r.answer, c.want)
		}
	}
}

// Each owner that nodes name has a number, whatever its attempt.
func TestOwnersHaveNumbers(t *testing.T) {
	l := &lease{owner: "me"}
	for _, c := range []struct {
		held *driver.HeldError
		want owner
	}{
		{nil, nobody},
		{&driver.HeldError{}, nobody},
		{&driver.HeldError{Holder: "me/1"}, ourselves},
		{&driver.HeldError{ReservedForWaiter: true}, firstWaiter},
		{&driver.HeldError{Mode: driver.Shared}, readers},
		{&driver.HeldError{Holder: "a/1"}, somebody},
		{&driver.HeldError{Holder: "b/1"}, somebody + 1},
		{&driver.HeldError{Holder: "c/1"}, somebody + 2},
		{&driver.HeldError{Holder: "b/2"}, somebody + 1},
	} {
		if got := l.number(c.held); got != c.want {
			t.Errorf("%+v is owner %d, want %d", c.held, got, c.want)
		}
	}
}

// A clock that goes wrong is told once, and once more after it was right in a grant that counts its node. An older lease
// that its node carries changes nothing.
func TestAWrongClockIsToldOnceUntilItIsRight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, nodes := simNodes(network{}, network{}, network{delay: time.Millisecond})
		var wrong []string
		b := opened(t, nodes, &Options{Guard: -1, Notify: func(e driver.Notice) {
			if e.Kind == quorum.NoticeClockSkew {
				wrong = append(wrong, e.Node)
			}
		}})
		reads := func(owner string) driver.Lease {
			r := request1(simKeyName, owner, time.Minute)
			r.Mode = driver.Shared
			return drivertest.Grant(t, b, r)
		}
		older := reads("older")
		for i, c := range []struct {
			ahead time.Duration
			want  int
		}{{time.Second, 1}, {0, 1}, {-time.Second, 1}, {time.Second, 2}} {
			servers[0].step(c.ahead)
			l := reads("newer")
			time.Sleep(5 * time.Millisecond)
			drivertest.Renew(t, older, time.Minute)
			drivertest.Must(t, l.Release(t.Context()))
			time.Sleep(5 * time.Millisecond)
			synctest.Wait()
			if len(wrong) != c.want {
				t.Errorf("after lock %d the notices are %v, want %d", i, wrong, c.want)
			}
		}
	})
}
