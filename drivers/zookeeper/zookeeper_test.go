package zookeeper_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
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

var must = drivertest.Must

// client is connect for a test.
func client(t testing.TB, g *server.Group) *zk.Conn {
	t.Helper()
	c, err := connect(g.Addrs())
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

// srvr returns a server's answer to the command srvr.
func srvr(s *server.Server) string {
	c, err := net.DialTimeout("tcp", s.Addr(), 5*time.Second)
	if err != nil {
		return ""
	}
	defer c.Close() //nolint:errcheck // only asks
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = io.WriteString(c, "srvr")
	answer, _ := io.ReadAll(c)
	return string(answer)
}

// leader returns the member that leads.
func leader(t testing.TB, g *server.Group) *server.Server {
	t.Helper()
	for t.Context().Err() == nil {
		for _, s := range g.Nodes {
			if strings.Contains(srvr(s), "Mode: leader") {
				return s
			}
		}
	}
	t.Fatal("no member leads")
	return nil
}

// ways are the proxies by which the members of an ensemble reach each other, for each pair.
type ways map[[2]int][]*fault.Proxy

// isolate cuts a member off from the others, or ends that.
func (w ways) isolate(member int, f func(*fault.Proxy)) error {
	for pair, proxies := range w {
		if pair[0] == member || pair[1] == member {
			for _, p := range proxies {
				f(p)
			}
		}
	}
	return nil
}

// TestTheLeaderFails: an ensemble that loses its leader goes on, and so do its locks. Through a
// member that is cut off from the others every outcome is unknown, in read-only mode too.
func TestTheLeaderFails(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for elections")
	}
	between := ways{}
	g := server.ZooKeeper(t, 3, server.WithArgs("-Dreadonlymode.enabled=true"), server.WithPeersVia(func(from, to int, addr string) (string, error) {
		p := fault.NewProxy(t, addr)
		between[[2]int{from, to}] = append(between[[2]int{from, to}], p)
		return p.Addr(), nil
	}))
	const ttl = 2 * time.Minute
	a, b := open(t, urlOf(g)), open(t, urlOf(g))
	for _, f := range []struct {
		name       string
		fail, mend func(*server.Server) error
	}{
		{"killed", (*server.Server).Kill, (*server.Server).Start},
		{"stopped", (*server.Server).Pause, (*server.Server).Resume},
	} {
		failing := leader(t, g)
		drivertest.RunFailover(t, a, b, f.name, ttl, func() error { return f.fail(failing) }, func() error { return f.mend(failing) })
	}
	alone := slices.Index(g.Nodes, leader(t, g))
	minority := open(t, "zk://"+g.Nodes[alone].Addr()+"?call_timeout=500ms")
	drivertest.RunMinority(t, minority, b, "cut off", 3*time.Second, func() error {
		return between.isolate(alone, (*fault.Proxy).Pause)
	}, func() error {
		drivertest.AwaitFinding(t, b, "member-unreachable")
		return between.isolate(alone, (*fault.Proxy).Resume)
	})
	drivertest.AwaitFinding(t, minority, "one-address")

	b = open(t, "zk://"+strings.Join(g.Addrs(), ",")+"?call_timeout=500ms")
	held := drivertest.Grant(t, b, drivertest.NewRequest("held", 10*time.Minute))
	all := func(f func(*fault.Proxy)) { // nobody has a majority
		for i := range g.Nodes {
			must(t, between.isolate(i, f))
		}
	}
	all((*fault.Proxy).Pause)
	drivertest.RunUnknown(t, b, held)
	all((*fault.Proxy).Resume)
	next := drivertest.NewRequest("held", ttl)
	next.Wait = true // the release goes on by itself
	drivertest.Release(t, drivertest.Grant(t, b, next))
}

// TestLossIsToldBeforeTheLockIsAnothers, if the holder is cut off.
func TestLossIsToldBeforeTheLockIsAnothers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	drivertest.RunLoss(t, system.Harness(single(t), driver.Config{}, ""), 2*time.Second)
}

func TestLeasesThroughTheLossOfTheLeader(t *testing.T) {
	server.Deep(t) // TestTheLeaderFails is its quick part
	t.Parallel()
	g := server.ZooKeeper(t, 3)
	drivertest.RunLeaderLoss(t, g, func() *server.Server { return leader(t, g) }, func(addrs []string) string {
		return "zk://" + strings.Join(addrs, ",") + "?call_timeout=1500ms"
	}, 1000)
}

// TestOutagesAndMisuseAreToldApart: failures, refusals and mistakes have different verdicts,
// and no error shows the password.
func TestOutagesAndMisuseAreToldApart(t *testing.T) {
	t.Parallel()
	const secret = "pw-c4n4ry"
	s := single(t).Nodes[0]
	hung := fault.NewProxy(t, s.Addr())
	hung.BlackHole()
	refusing := fault.NewProxy(t, s.Addr())
	must(t, refusing.Refuse())
	url := func(user, password, addr string) string {
		return "zk://" + user + ":" + password + "@" + addr + "/secured?call_timeout=1s"
	}
	drivertest.Release(t, drivertest.Grant(t, open(t, url("app", secret, s.Addr())), drivertest.NewRequest("k", 5*time.Second)))
	if _, err := client(t, single(t)).Create("/readonly", nil, 0, zk.WorldACL(zk.PermRead)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		t.Fatal(err)
	}
	bad := "zk://app:" + secret + "@" + s.Addr()
	drivertest.RunURLs(t, zookeeper.Driver{}, secret, 1500*time.Millisecond, map[string]drivertest.URLCase{
		"fine":               {URL: url("app", secret, s.Addr()), Want: "granted"},
		"a wrong password":   {URL: url("app", secret+"x", s.Addr()), Want: "refused"},
		"an unknown user":    {URL: url("nobody", secret, s.Addr()), Want: "refused"},
		"no user":            {URL: "zk://" + s.Addr() + "/secured", Want: "refused"},
		"it is down":         {URL: url("app", secret, refusing.Addr()), Want: "unknown"},
		"it hangs":           {URL: url("app", secret, hung.Addr()), Want: "unknown"},
		"it is read-only":    {URL: "zk://app:" + secret + "@" + s.Addr() + "/readonly", Want: "refused"},
		"it speaks no TLS":   {URL: "zks://app:" + secret + "@" + s.Addr(), Want: "unknown"},
		"it has no zk":       {URL: "zk://app:" + secret + "@" + server.Redis(t).Addr(), Want: "unknown"},
		"no user's password": {URL: "zk://:" + secret + "@" + s.Addr(), Want: "invalid"},
		"an empty part":      {URL: bad + "/a//b", Want: "invalid"},
		"a part of dots":     {URL: bad + "/a/../b", Want: "invalid"},
		"TLS without zks":    {URL: bad + "?ca=x", Want: "invalid"},
		"another parameter":  {URL: bad + "?timeout=1s", Want: "invalid"},
	})
}

// TestALockThatMayNotBeReleasedEnds: the key's container, which another program has made, permits no
// deletions. The session does not go on for it when its other locks have ended.
func TestALockThatMayNotBeReleasedEnds(t *testing.T) {
	t.Parallel()
	g := single(t)
	b, other := open(t, patientURL(g)), open(t, patientURL(g))
	key := "kept-" + rand.Text() // nobody else has made its container
	const ttl = 2 * time.Second
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("other", ttl))) // makes the path
	_, err := client(t, g).Create(b.Path(key), nil, 0, zk.WorldACL(zk.PermAll&^zk.PermDelete))
	must(t, err)
	l := drivertest.Grant(t, b, drivertest.NewRequest(key, ttl))
	if err := l.Release(t.Context()); drivertest.Verdict(err) != "refused" {
		t.Errorf("Release without the permission: %v", err)
	}
	if next := <-drivertest.Waiter(t, other, drivertest.NewRequest(key, ttl)); next != nil {
		_ = next.Release(t.Context()) // it is refused, too
	}
}

// TestGoZooKeepersLockExcludesOurs: and ours excludes it, in both modes, in one queue.
func TestGoZooKeepersLockExcludesOurs(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b := open(t, patientURL(g))
	drivertest.RunForeign(t, b, 2*time.Minute, func(key string) (lock, unlock func() error) {
		theirs := zk.NewLock(c, b.Path(key), zk.WorldACL(zk.PermAll))
		return theirs.Lock, theirs.Unlock
	})
}

// TestAnEntryThatCameMeanwhileExcludesOurs: another library's entry, made after our look at the
// queue and before our own entry, has the lock.
func TestAnEntryThatCameMeanwhileExcludesOurs(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	way := fault.NewProxy(t, g.Addrs()[0])
	b := open(t, "zk://"+way.Addr()+"?call_timeout=30s")
	const key, ttl = "meanwhile", 30 * time.Second
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest(key, ttl))) // it has a container
	var armed atomic.Bool
	made := make(chan string, 1)
	way.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		if bytes.Contains(chunk, []byte(b.Path(key)+"/_c_")) && armed.CompareAndSwap(true, false) {
			theirs, err := c.Create(b.Path(key)+"/_c_0b2c4d6e-1111-4222-8333-abcdefabcdef-lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
			if err != nil {
				t.Error(err)
			}
			made <- theirs
		}
		return len(chunk), fault.Pass
	})
	armed.Store(true)
	if _, err := drivertest.Acquire(t, b, drivertest.NewRequest(key, ttl)); drivertest.Verdict(err) != "held" {
		t.Errorf("ours behind theirs: %v", err)
	}
	must(t, c.Delete(<-made, -1))
	armed.Store(true)
	waiting := drivertest.Waiter(t, b, drivertest.NewRequest(key, ttl))
	theirs := <-made
	drivertest.AwaitWaiters(t, b, key, 1)
	select {
	case <-waiting:
		t.Error("a waiter of ours was granted beside theirs")
		return
	default:
	}
	must(t, c.Delete(theirs, -1))
	if l := <-waiting; l != nil {
		drivertest.Release(t, l)
	}
}

// TestCuratorsLocksExcludeOurs: an entry of Curator's InterProcessMutex excludes our locks. Our entries
// exclude its lock by its rule, as its documentation and ZooKeeper's pages on recipes have it: the
// first entry has the lock, by the text that follows "lock-" in its name.
func TestCuratorsLocksExcludeOurs(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b := open(t, patientURL(g))
	const key, ttl = "curator's", 30 * time.Second
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		r := drivertest.NewRequest(key, ttl)
		r.Mode = mode
		ours := drivertest.Grant(t, b, r)
		theirs, err := c.Create(b.Path(key)+"/_c_0b2c4d6e-1111-4222-8333-abcdefabcdef-lock-", []byte("10.0.0.7"), zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
		must(t, err)
		children, _, err := c.Children(b.Path(key))
		must(t, err)
		slices.SortFunc(children, func(x, y string) int {
			return strings.Compare(x[strings.LastIndex(x, "lock-"):], y[strings.LastIndex(y, "lock-"):])
		})
		if len(children) != 2 || !strings.HasSuffix(theirs, children[1]) {
			t.Errorf("Curator's rule grants its lock beside ours (%v): %q is not the second of %q", mode, theirs, children)
		}
		drivertest.Release(t, ours)
		_, err = drivertest.Acquire(t, b, r)
		if he := (*driver.HeldError)(nil); !errors.As(err, &he) || he.Holder != "10.0.0.7" {
			t.Errorf("ours (%v) beside Curator's: %v", mode, err)
		}
		must(t, c.Delete(theirs, -1))
	}
}

// TestTokensOutliveAContainer: the servers delete a container that is empty. The key's tokens go
// on from the time, also if the leader's clock falls.
func TestTokensOutliveAContainer(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	path := "/tokens-" + rand.Text() // nobody else writes its marker
	b := open(t, "zk://"+g.Addrs()[0]+path+"?call_timeout=1m")
	const ttl = 30 * time.Second
	last := uint64(0)
	take := func(b driver.Backend, what string) {
		t.Helper()
		l := drivertest.Grant(t, b, drivertest.NewRequest("k", ttl))
		if l.Grant().Fence <= last {
			t.Errorf("%s: token %d after %d", what, l.Grant().Fence, last)
		}
		last = l.Grant().Fence
		drivertest.Release(t, l)
	}
	take(b, "the first")
	must(t, c.Delete(b.Path("k"), -1))
	take(b, "after the container")
	// The leader's clock has fallen by an hour since another client wrote the marker.
	ahead := last + uint64(time.Hour/time.Microsecond)
	_, err := c.Set(path+"/.dlock", fmt.Appendf(nil, "dlock1 0 %d", ahead/1000+1), -1)
	must(t, err)
	b = open(t, "zk://"+g.Addrs()[0]+path+"?call_timeout=1m")
	for range 3 {
		must(t, c.Delete(b.Path("k"), -1))
		take(b, "behind a clock that fell")
		take(b, "behind a clock that fell, again")
		if last <= ahead {
			t.Fatalf("token %d, and the clock was at %d", last, ahead)
		}
		b = open(t, "zk://"+g.Addrs()[0]+path+"?call_timeout=1m") // another client
	}
	// Another program's container is left alone.
	_, err = c.Create(b.Path("foreign"), []byte("config"), 0, zk.WorldACL(zk.PermAll))
	must(t, err)
	if _, err := drivertest.Acquire(t, b, drivertest.NewRequest("foreign", ttl)); drivertest.Verdict(err) != "refused" {
		t.Errorf("a node with another program's data: %v", err)
	}
}

// ttls: a TTL that the servers' settings do not allow is refused, and the error names the setting to
// raise.
func ttls(t *testing.T, b *zookeeper.Backend) {
	t.Helper()
	short := drivertest.Grant(t, b, drivertest.NewRequest("short", time.Second))
	if left := time.Until(short.Grant().Expires); left > time.Second {
		t.Errorf("a lease of 1 s lasts for %v", left)
	}
	l := drivertest.Grant(t, b, drivertest.NewRequest("k", 6*time.Second))
	if left := time.Until(l.Grant().Expires); left > 6*time.Second {
		t.Errorf("a lease of 6 s lasts for %v", left)
	}
	_, err := drivertest.Acquire(t, b, drivertest.NewRequest("long", 10*time.Second))
	if drivertest.Verdict(err) != "refused" || !strings.Contains(err.Error(), "maxSessionTimeout") || !strings.Contains(err.Error(), "6s") {
		t.Errorf("a TTL of 10 s: %v", err)
	}
	before := l.Grant().Expires
	drivertest.Renew(t, l, 10*time.Second)
	if left := time.Until(l.Grant().Expires); left > 8*time.Second || !l.Grant().Expires.After(before) {
		t.Errorf("a renewal with a TTL of 10 s lasts for %v, longer than the session or no longer than before", left)
	}
	must(t, b.Break(t.Context(), "k", driver.Holder{Fence: l.Grant().Fence}))
	must(t, l.Release(t.Context()))
}

// TestTLSAndTheServersTTLs: a server that asks for TLS is served, and one with another authority is not
// trusted. It allows few TTLs.
func TestTLSAndTheServersTTLs(t *testing.T) {
	t.Parallel()
	g := server.ZooKeeper(t, 1, server.WithClientCerts(), server.WithSetting("minSessionTimeout", "3000"), server.WithSetting("maxSessionTimeout", "8000"))
	s := g.Nodes[0]
	cert, key := s.ClientCert()
	url := "zks://" + s.Addr() + "?call_timeout=3s&ca=" + s.CAFile() + "&cert=" + cert + "&key=" + key
	ttls(t, open(t, url))
	distrustful := open(t, "zks://"+s.Addr()+"?call_timeout=3s")
	for t.Context().Err() == nil {
		_, err := distrustful.Acquire(t.Context(), drivertest.NewRequest("k", 5*time.Second))
		if drivertest.Verdict(err) != "unknown" {
			t.Errorf("without the authority: %v", err)
			return
		}
		if strings.Contains(err.Error(), "certificate") {
			return
		}
		t.Log(err) // the machine is busy
	}
}

// TestSessionsAreFew: many locks of a few TTLs use few connections, and Close ends them.
func TestSessionsAreFew(t *testing.T) {
	t.Parallel()
	way := fault.NewProxy(t, single(t).Addrs()[0])
	b := open(t, "zk://"+way.Addr()+"/"+t.Name()+"?call_timeout=30s")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				l, err := drivertest.Acquire(t, b, drivertest.NewRequest(fmt.Sprint(i), 30*time.Second+time.Duration(j)*time.Millisecond))
				if err != nil {
					t.Error(err)
					return
				}
				drivertest.Release(t, l)
			}
		})
	}
	wg.Wait()
	if n := way.Stats().Open; n > 3 {
		t.Errorf("after 80 locks with nearly the same TTL there are %d connections", n)
	}
	must(t, b.Close())
	for way.Stats().Open > 0 { // the proxy learns of the end a moment later
		time.Sleep(time.Millisecond)
	}
}

// TestCheckFindsWhatIsWrong, and fails while no server answers: a connection that carries nothing is not a
// list of members that nobody may read.
func TestCheckFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	addr := single(t).Addrs()[0]
	way, closed := fault.NewProxy(t, addr), fault.NewProxy(t, addr)
	must(t, closed.Refuse())
	b := open(t, "zk://"+way.Addr()+","+closed.Addr()+"?call_timeout=5s")
	drivertest.AwaitFinding(t, b, "few-members")
	drivertest.AwaitFinding(t, b, "member-unreachable")
	way.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if found, err := b.Check(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no server answers, and Check finds %+v (%v)", found, err)
	}
}
