package zookeeper_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// proxied starts a server, and opens a client of it and, through a proxy, a backend with the path /NAME of the test.
func proxied(t *testing.T) (*server.Group, *zk.Conn, *fault.Proxy, *zookeeper.Backend) {
	t.Helper()
	g := single(t)
	way := fault.NewProxy(t, g.Addrs()[0])
	return g, client(t, g), way, open(t, "zk://"+way.Addr()+"/"+t.Name()+"?call_timeout=1m")
}

// TestAnEntryWhoseAnswerIsLost: the connection breaks before or after the server has made the entry. The attempt
// finds its entry, or makes another one, unless it was given up meanwhile; then nothing is left.
func TestAnEntryWhoseAnswerIsLost(t *testing.T) {
	t.Parallel()
	g, c, way, b := proxied(t)
	other := open(t, "zk://"+g.Addrs()[0]+"/"+t.Name()+"?call_timeout=1m")
	var armed, arrives, cuts atomic.Bool
	var lost atomic.Value // what is called instead of passing on the answer
	way.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		if !bytes.Contains(chunk, []byte(b.Path("k")+"/_c_")) || !armed.CompareAndSwap(true, false) {
			return len(chunk), fault.Pass
		}
		if arrives.Load() {
			cuts.Store(true)
			return len(chunk), fault.Pass
		}
		lost.Load().(func())()
		return 0, fault.Cut
	})
	way.Judge(fault.ToClient, func(_ int64, chunk []byte) (int, fault.Action) {
		if !cuts.CompareAndSwap(true, false) {
			return len(chunk), fault.Pass
		}
		lost.Load().(func())()
		return 0, fault.Cut
	})
	for i := range 8 {
		r := drivertest.NewRequest("k", 30*time.Second)
		r.Wait = i&1 > 0
		arrives.Store(i&2 > 0)
		given := i&4 > 0 // up
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		lost.Store(func() {
			if given {
				giveUp()
			}
		})
		armed.Store(true)
		l, err := b.Acquire(ctx, r)
		if err == nil {
			entries, _, err := c.Children(b.Path("k"))
			if given || err != nil || len(entries) != 1 {
				t.Errorf("wait %v, arrives %v, given up %v: granted, with the entries %v, %v", r.Wait, arrives.Load(), given, entries, err)
			}
			drivertest.Renew(t, l, r.TTL)
			drivertest.Release(t, l)
		} else if !given {
			t.Errorf("wait %v, arrives %v: %v", r.Wait, arrives.Load(), err)
		}
		next := drivertest.NewRequest("k", 30*time.Second)
		next.Wait = true
		drivertest.Release(t, drivertest.Grant(t, other, next))
	}
}

// TestWhatALockNeedsIsMadeAnew: the servers delete a container that is empty, and an operator the path.
func TestWhatALockNeedsIsMadeAnew(t *testing.T) {
	t.Parallel()
	_, c, way, b := proxied(t)
	path := "/" + t.Name()
	var deletes atomic.Bool
	way.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		if bytes.Contains(chunk, []byte(b.Path("k")+"/_c_")) && deletes.CompareAndSwap(true, false) {
			if err := c.Delete(b.Path("k"), -1); err != nil {
				t.Error(err)
			}
		}
		return len(chunk), fault.Pass
	})
	take := func(what string) {
		t.Helper()
		for _, wait := range []bool{false, true} {
			r := drivertest.NewRequest("k", 30*time.Second)
			r.Wait = wait
			l, err := b.Acquire(t.Context(), r)
			if err != nil {
				t.Fatalf("%s, wait %v: %v", what, wait, err)
			}
			drivertest.Renew(t, l, r.TTL)
			drivertest.Release(t, l)
		}
	}
	take("at first")
	deletes.Store(true)
	take("the container was deleted when an entry was to be made")
	must(t, c.Delete(b.Path("k"), -1))
	must(t, c.Delete(path+"/.dlock", -1))
	must(t, c.Delete(path, -1))
	take("the path was deleted")
}

// TestAWaiterThatLosesItsEntryGoesToTheEndOfTheQueue, and its lease counts from when it has the lock.
func TestAWaiterThatLosesItsEntryGoesToTheEndOfTheQueue(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b := open(t, patientURL(g))
	const key, ttl = "loses", 30 * time.Second
	held := drivertest.Grant(t, b, drivertest.NewRequest(key, ttl))
	before, _, err := c.Children(b.Path(key))
	must(t, err)
	granted := make(chan driver.Lease)
	go func() {
		r := drivertest.NewRequest(key, ttl)
		r.Wait = true
		l, err := b.Acquire(t.Context(), r)
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
		granted <- l
	}()
	drivertest.AwaitWaiters(t, b, key, 1)
	entries, _, err := c.Children(b.Path(key))
	must(t, err)
	for _, e := range entries {
		if e != before[0] {
			must(t, c.Delete(b.Path(key)+"/"+e, -1))
		}
	}
	drivertest.Release(t, held)
	l := <-granted
	if l == nil {
		return
	}
	if entries, _, err = c.Children(b.Path(key)); err != nil || len(entries) != 1 {
		t.Errorf("granted, with the entries %v, %v", entries, err)
	}
	waiting := drivertest.Waiter(t, b, drivertest.NewRequest(key, ttl))
	drivertest.AwaitWaiters(t, b, key, 1)
	<-time.After(ttl/10 + time.Second/10) // after that its entry is confirmed anew
	freed := time.Now()
	drivertest.Release(t, l)
	if l = <-waiting; l == nil {
		return
	}
	if end := l.Grant().Expires; end.Before(driver.Expires(freed, ttl)) {
		t.Errorf("a lease of %v lasts for %v after it was free", ttl, end.Sub(freed))
	}
	drivertest.Release(t, l)
}

// TestARangeOfTokensBeginsAfterTheLast token that was given.
func TestARangeOfTokensBeginsAfterTheLast(t *testing.T) {
	t.Parallel()
	g := single(t)
	b := open(t, patientURL(g))
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("makes the path", 30*time.Second)))
	key := "ranges-" + rand.Text()                        // nobody else has made its container
	last := uint64(time.Now().Add(time.Hour).UnixMicro()) // tokens are ahead of the clock
	_, err := client(t, g).Create(b.Path(key), fmt.Appendf(nil, "dlock1 %d", last), 0, zk.WorldACL(zk.PermAll))
	must(t, err)
	for _, tokens := range []uint32{0, 1, 10, 0} {
		r := drivertest.NewRequest(key, 30*time.Second)
		r.Tokens = tokens
		l := drivertest.Grant(t, b, r)
		if fence := l.Grant().Fence; fence != last+uint64(max(tokens, 1)) {
			t.Errorf("the last of %d tokens after %d is %d", tokens, last, fence)
		}
		last = l.Grant().Fence
		drivertest.Release(t, l)
	}
}
