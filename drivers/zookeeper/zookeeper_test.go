package zookeeper_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/zookeeper"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestMain(m *testing.M) {
	status := m.Run()
	if lone != nil {
		if err := lone.Close(); err != nil {
			fmt.Println(err)
			status = 1
		}
	}
	os.Exit(status)
}

var (
	loneMu sync.Mutex
	lone   *server.Group
)

// single returns a server of one member that the tests of this file share, which break nothing.
func single(t testing.TB) *server.Group {
	t.Helper()
	loneMu.Lock()
	defer loneMu.Unlock()
	if lone == nil {
		g, err := server.StartZooKeeper(t.Context(), 1, server.Config{})
		if missing := (*server.MissingError)(nil); os.Getenv("CI") == "" && (errors.As(err, &missing) || errors.Is(err, server.ErrUnsupported)) {
			t.Skip(err)
		}
		must(t, err)
		lone = g
	}
	return lone
}

// client is connect for a test.
func client(t testing.TB, g *server.Group) *zk.Conn {
	t.Helper()
	c, err := connect(g.Addrs())
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// verdict names the kind of an error.
func verdict(err error) string {
	for name, kind := range map[string]error{
		"held": driver.ErrHeld, "lost": driver.ErrLost, "refused": driver.ErrRefused, "invalid": driver.ErrInvalid, "closed": driver.ErrClosed,
	} {
		if errors.Is(err, kind) {
			return name
		}
	}
	if err == nil {
		return "granted"
	}
	return "unknown"
}

// acquire asks until the outcome is known.
func acquire(t testing.TB, b driver.Backend, r *driver.Request) (driver.Lease, error) {
	t.Helper()
	for {
		l, err := b.Acquire(t.Context(), r)
		if verdict(err) != "unknown" || t.Context().Err() != nil {
			return l, err
		}
		t.Log(err)
		r = &driver.Request{Key: r.Key, Owner: r.Owner + "/again", TTL: r.TTL, Mode: r.Mode, Wait: r.Wait, FenceFloor: r.FenceFloor}
	}
}

func grant(t testing.TB, b driver.Backend, r *driver.Request) driver.Lease {
	t.Helper()
	l, err := acquire(t, b, r)
	must(t, err)
	return l
}

// becomesFree takes a key that somebody gives up in the background.
func becomesFree(t testing.TB, b driver.Backend, r *driver.Request) driver.Lease {
	t.Helper()
	for {
		l, err := acquire(t, b, r)
		if verdict(err) != "held" {
			must(t, err)
			return l
		}
	}
}

// renew renews until the outcome is known, which has to be a grant before the lease's end.
func renew(t testing.TB, l driver.Lease, ttl time.Duration) {
	t.Helper()
	for {
		_, err := l.Renew(t.Context(), &driver.Renewal{TTL: ttl})
		switch {
		case err == nil:
			return
		case verdict(err) != "unknown":
			t.Errorf("Renew: %v", err)
			return
		case time.Now().After(l.Grant().Expires):
			t.Errorf("the lease ended before a renewal succeeded: %v", err)
			return
		}
		t.Log(err)
	}
}

func release(t testing.TB, l driver.Lease) {
	t.Helper()
	for {
		err := l.Release(t.Context())
		if err == nil {
			return
		}
		if verdict(err) != "unknown" {
			t.Fatalf("Release: %v", err)
		}
	}
}

// inBackground waits for a lock.
func inBackground(t testing.TB, b driver.Backend, r *driver.Request) <-chan driver.Lease {
	got := make(chan driver.Lease, 1)
	r.Wait = true
	go func() {
		l, err := acquire(t, b, r)
		if err != nil {
			t.Errorf("the wait: %v", err)
		}
		got <- l
	}()
	return got
}

// awaitWaiters waits until so many wait in a key's line.
func awaitWaiters(t testing.TB, b *zookeeper.Backend, key string, n int) {
	t.Helper()
	for t.Context().Err() == nil {
		if s, err := b.Lookup(t.Context(), key); err == nil && s.Waiters >= n {
			return
		}
	}
	t.Fatal("nobody waits")
}

// srvr is what a server says of itself.
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

// TestTheLeaderFails: an ensemble that loses its leader goes on, and so do its locks: that of a
// holder, who renews it, and that of one who waits. A member that is alone says nothing definite,
// be it in read-only mode.
func TestTheLeaderFails(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for elections")
	}
	g := server.ZooKeeper(t, 3, server.WithArgs("-Dreadonlymode.enabled=true"))
	const ttl = 30 * time.Second
	a, b := open(t, urlOf(g)), open(t, urlOf(g))
	for _, f := range []struct {
		name       string
		fail, mend func(*server.Server) error
	}{
		{"killed", (*server.Server).Kill, (*server.Server).Start},
		{"stopped", (*server.Server).Pause, (*server.Server).Resume},
	} {
		held := grant(t, a, request(f.name, ttl))
		waiting := inBackground(t, b, request(f.name, ttl))
		awaitWaiters(t, b, f.name, 1)
		failing := leader(t, g)
		must(t, f.fail(failing))
		renew(t, held, ttl)
		release(t, grant(t, a, request(f.name+"/other", ttl)))
		if _, err := acquire(t, b, request(f.name, ttl)); verdict(err) != "held" {
			t.Errorf("the key is held, and Acquire gives %v", err)
		}
		release(t, held)
		next := <-waiting
		if next == nil || next.Grant().Fence <= held.Grant().Fence {
			t.Fatalf("after token %d the wait gave %v", held.Grant().Fence, next)
		}
		must(t, f.mend(failing))
		renew(t, next, ttl)
		release(t, next)
	}
	b = open(t, "zk://"+strings.Join(g.Addrs(), ",")+"?call_timeout=500ms")
	held := grant(t, b, request("held", 10*time.Minute))
	for _, s := range g.Nodes[:2] {
		must(t, s.Kill())
	}
	if _, err := b.Acquire(t.Context(), request("free", ttl)); verdict(err) != "unknown" {
		t.Errorf("Acquire: %v", err)
	}
	if _, err := held.Renew(t.Context(), &driver.Renewal{TTL: ttl}); verdict(err) != "unknown" {
		t.Errorf("Renew: %v", err)
	}
	if err := held.Release(t.Context()); verdict(err) != "unknown" {
		t.Errorf("Release: %v", err)
	}
	must(t, g.Start())
	release(t, becomesFree(t, b, request("held", ttl))) // the release goes on by itself
}

// TestLossIsToldBeforeTheLockIsAnothers: the lease of package dlock ends before somebody
// else has the lock, whether its client is cut off or its entry is deleted. A session that has
// expired is told by its channel.
func TestLossIsToldBeforeTheLockIsAnothers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	g := single(t)
	other := open(t, urlOf(g))
	ttls := map[string]time.Duration{"cut off": 2 * time.Second, "broken": 6 * time.Second}
	for name, lose := range map[string]func(t *testing.T, m *members){
		"cut off": func(_ *testing.T, m *members) {
			for _, p := range m.proxies {
				p.Pause()
			}
		},
		"broken": func(t *testing.T, _ *members) {
			s, err := other.Lookup(t.Context(), "broken")
			must(t, err)
			must(t, other.Break(t.Context(), "broken", s.Holders[0].Fence))
		},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := openThrough(g, driver.Config{}, "")
			must(t, err)
			locks, err := dlock.New(m)
			must(t, err)
			defer locks.Close() //nolint:errcheck // behind a partition
			l, err := locks.Lock(t.Context(), name, dlock.WithTTL(ttls[name]))
			must(t, err)
			bare := grant(t, m, request(name+"/bare", 2*time.Second))
			lose(t, m)
			if name == "cut off" {
				r := request(name, 10*time.Second)
				r.Wait = true
				release(t, grant(t, other, r))
				select {
				case <-l.Done():
				default:
					t.Error("another has the lock, and Done is open")
				}
				for _, p := range m.proxies {
					p.Resume()
				}
				<-bare.Grant().Lost
			}
			<-l.Done()
			if !errors.Is(l.Err(), driver.ErrLost) {
				t.Errorf("Err is %v", l.Err())
			}
		})
	}
}

// TestOutagesAndMisuseAreToldApart: what a server cannot or will not do has a verdict, and no
// error holds the password.
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
	release(t, grant(t, open(t, url("app", secret, s.Addr())), request("k", 5*time.Second)))
	for name, test := range map[string]struct{ url, want string }{
		"fine":             {url("app", secret, s.Addr()), "granted"},
		"a wrong password": {url("app", secret+"x", s.Addr()), "refused"},
		"an unknown user":  {url("nobody", secret, s.Addr()), "refused"},
		"no user":          {"zk://" + s.Addr() + "/secured", "refused"},
		"it is down":       {url("app", secret, refusing.Addr()), "unknown"},
		"it hangs":         {url("app", secret, hung.Addr()), "unknown"},
		"it speaks no TLS": {"zks://app:" + secret + "@" + s.Addr(), "unknown"},
		"it has no zk":     {"zk://app:" + secret + "@" + server.Redis(t).Addr(), "unknown"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, test.url)
			l, err := b.Acquire(t.Context(), request("k/"+name, 5*time.Second))
			if test.want != "unknown" && verdict(err) == "unknown" { // the machine is busy
				l, err = acquire(t, b, request("k/"+name, 5*time.Second))
			}
			if got := verdict(err); got != test.want {
				t.Errorf("Acquire is %s: %v", got, err)
			}
			said := fmt.Sprintf("%v %+v %v", err, err, b)
			if strings.Contains(said, secret) {
				t.Errorf("the password is in %q", said)
			}
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("the error has several lines: %q", err)
			}
			if l != nil {
				release(t, l)
			}
			if _, err := b.Check(t.Context()); strings.Contains(fmt.Sprint(err), secret) {
				t.Errorf("the password is in Check's error %v", err)
			}
		})
	}
	for _, bad := range []string{
		"zk://:" + secret + "@" + s.Addr(), "zk://" + s.Addr() + "/a//b", "zk://" + s.Addr() + "/a/../b", "zk://" + s.Addr() + "?recipe=semaphore",
		"zk://" + s.Addr() + "?ca=x", "zk://" + s.Addr() + "?timeout=1s", "zk://" + secret + "@@" + s.Addr() + ":x",
	} {
		_, err := zookeeper.Driver{}.Open(&driver.Config{DSN: bad})
		if verdict(err) != "invalid" || strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("Open(%q): %v", bad, err)
		}
	}
}

// TestGoZooKeepersLockExcludesOurs: and is excluded by ours, in both modes, in one line.
func TestGoZooKeepersLockExcludesOurs(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	const key, ttl = "theirs", 30 * time.Second
	b := open(t, urlOf(g))
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		ask := func() *driver.Request { r := request(key, ttl); r.Mode = mode; return r }
		ours := grant(t, b, ask())
		theirs := zk.NewLock(c, b.Path(key), zk.WorldACL(zk.PermAll))
		got := make(chan error, 1)
		go func() { got <- theirs.Lock() }()
		awaitWaiters(t, b, key, 1)
		if _, err := acquire(t, b, request(key, ttl)); verdict(err) != "held" {
			t.Errorf("%v: another of ours behind theirs: %v", mode, err)
		}
		select {
		case err := <-got:
			t.Errorf("%v: theirs was granted beside ours: %v", mode, err)
		default:
		}
		release(t, ours)
		must(t, <-got)
		if _, err := acquire(t, b, ask()); verdict(err) != "held" {
			t.Errorf("%v: ours beside theirs: %v", mode, err)
		}
		waiting := inBackground(t, b, ask())
		awaitWaiters(t, b, key, 1)
		s, err := b.Lookup(t.Context(), key)
		if err != nil || len(s.Holders) != 1 || s.Mode != driver.Exclusive || s.Holders[0].Fence == 0 || s.Holders[0].Owner == "" {
			t.Errorf("%v: theirs is seen as %+v, %v", mode, s, err)
		}
		must(t, theirs.Unlock())
		if l := <-waiting; l != nil {
			release(t, l)
		}
	}
}

// What Curator decides by, as its documentation and the pages on ZooKeeper's recipes have it: an
// entry's place is what follows the lock's name in its own, compared as text.
func curatorOrder(children []string, names ...string) []string {
	place := func(s string) string {
		for _, name := range names {
			if i := strings.LastIndex(s, name); i >= 0 {
				s = s[i+len(name):]
			}
		}
		return s
	}
	children = slices.Clone(children)
	slices.SortFunc(children, func(x, y string) int { return strings.Compare(place(x), place(y)) })
	return children
}

// TestCuratorsLocksExcludeOurs: entries as Curator names them keep ours out, and ours are those
// that Curator's rules count: one of InterProcessMutex is granted to the first of the line; a
// writer of InterProcessReadWriteLock too, and its readers where no writer comes before.
func TestCuratorsLocksExcludeOurs(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	const ttl = 30 * time.Second
	for recipe, names := range map[string]struct{ exclusive, shared string }{
		"mutex": {"lock-", ""}, "readwrite": {"__WRIT__", "__READ__"},
	} {
		key := "curator's " + recipe
		b := open(t, urlOf(g)+"&recipe="+recipe)
		plain := open(t, urlOf(g))
		enter := func(name string) string {
			t.Helper()
			made, err := c.Create(b.Path(key)+"/_c_0b2c4d6e-1111-4222-8333-abcdefabcdef-"+name, []byte("10.0.0.7"), zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
			must(t, err)
			return made
		}
		order := func() []string {
			t.Helper()
			_, err := c.Sync(b.Path(key))
			must(t, err)
			children, _, err := c.Children(b.Path(key))
			must(t, err)
			if names.shared == "" {
				return curatorOrder(children, names.exclusive)
			}
			return curatorOrder(children, names.shared, names.exclusive)
		}
		ours := grant(t, b, request(key, ttl))
		theirs := enter(names.exclusive)
		if line := order(); len(line) != 2 || !strings.HasSuffix(theirs, line[1]) {
			t.Errorf("%s: Curator's rule grants its lock beside ours: %q is not the second of %q", recipe, theirs, line)
		}
		release(t, ours)
		for _, ours := range []*zookeeper.Backend{b, plain} {
			for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
				r := request(key, ttl)
				r.Mode = mode
				_, err := acquire(t, ours, r)
				if he := (*driver.HeldError)(nil); !errors.As(err, &he) || he.Holder != "10.0.0.7" {
					t.Errorf("%s: ours (%v) beside Curator's: %v", recipe, mode, err)
				}
			}
		}
		must(t, c.Delete(theirs, -1))
		if names.shared == "" {
			continue
		}
		reader := enter(names.shared)
		shared := request(key, ttl)
		shared.Mode = driver.Shared
		beside := grant(t, b, shared)
		if _, err := acquire(t, b, request(key, ttl)); verdict(err) != "held" {
			t.Errorf("a writer of ours beside Curator's reader: %v", err)
		}
		must(t, c.Delete(reader, -1))
		writer := enter(names.exclusive)
		if line := order(); !strings.HasSuffix(writer, line[1]) || !strings.Contains(line[0], names.shared) {
			t.Errorf("Curator's writer %q is not the second, behind our reader: %q", writer, line)
		}
		must(t, c.Delete(writer, -1))
		release(t, beside)
		ours = grant(t, b, request(key, ttl))
		reader = enter(names.shared)
		if line := order(); !strings.HasSuffix(reader, line[1]) || !strings.Contains(line[0], names.exclusive) {
			t.Errorf("Curator's reader %q does not see our writer before it: %q", reader, line)
		}
		must(t, c.Delete(reader, -1))
		release(t, ours)
	}
}

func TestALineIsInTheOrderOfItsSequenceNumbers(t *testing.T) {
	children := []string{
		"_c_6d5b9d2c-0001-4000-8000-000000000001-lock-0000000012",        // Curator's mutex, and ours
		"_c_6d5b9d2c-0001-4000-8000-000000000002-__READ__0000000003",     // Curator's reader
		"_c_6d5b9d2c-0001-4000-8000-000000000003-__WRIT__0000000007",     // Curator's writer
		"_c_6d5b9d2c-0001-4000-8000-000000000004-shared-lock-0000000001", // ours
		"6d5b9d2c000140008000000000000005__lock__0000000005",             // kazoo's
		"6d5b9d2c000140008000000000000006__rlock__0000000004",            // kazoo's reader
		"lock-0000000002", // the recipe's
		"_c_b1f5f3a2a3f84d0a9d3f2f1f0f1f2f3f-lock-0000000009", // go-zookeeper's
		"somebody's folder", "leases", "x0000000001x",
	}
	names, shared := zookeeper.ParseLine(children)
	var order []string
	var readers int
	for i, name := range names {
		order = append(order, name[len(name)-2:])
		if shared[i] {
			readers++
		}
	}
	if got := strings.Join(order, " "); got != "01 02 03 04 05 07 09 12" || readers != 3 || !shared[0] || !shared[2] || !shared[3] {
		t.Errorf("the order is %s, shared are %v", got, shared)
	}
}

func TestKeysHaveNodesOfTheirOwn(t *testing.T) {
	seen := map[string]string{}
	for _, key := range []string{"nightly", "a/b", "a%2Fb", ".", "..", ".dlock", "a.b", "ä", "a\x00b", "a b", "%", "zookeeper", "\xff"} {
		name := zookeeper.Escape(key)
		if zookeeper.Unescape(name) != key || strings.Contains(name, "/") || strings.HasPrefix(name, ".") {
			t.Errorf("%q is stored as %q", key, name)
		}
		if other, ok := seen[name]; ok {
			t.Errorf("%q and %q are both stored as %q", key, other, name)
		}
		seen[name] = key
	}
	if zookeeper.Escape("nightly-1.5") != "nightly-1.5" {
		t.Error("a plain key does not keep its name")
	}
}

// TestALeaseCountsFromWhatTheLeaderHeard: a request counts that was answered long enough before
// the write that found the entry; without one the lease ends with what is certain.
func TestALeaseCountsFromWhatTheLeaderHeard(t *testing.T) {
	start := time.Now()
	at := func(seconds ...float64) (all []time.Time) {
		for _, s := range seconds {
			all = append(all, start.Add(time.Duration(s*float64(time.Second))))
		}
		return all
	}
	const timeout, ttl = 12 * time.Second, 8 * time.Second
	full := func(s float64) time.Time { return driver.Expires(at(s)[0], ttl) }
	session := func(s float64) time.Time { return driver.Expires(at(s)[0], timeout) }
	for name, test := range map[string]struct {
		touches []time.Time
		sent    float64
		want    time.Time
	}{
		"the connection was just made":           {nil, 1, full(1)},
		"nothing was heard since":                {nil, 9, session(0)},
		"what was heard is too young":            {at(6.5, 7, 8), 9, session(0)},
		"what was heard is old enough":           {at(5.5, 7, 8), 9, full(9)},
		"it was heard late":                      {at(1, 7, 8), 9, session(1)},
		"the last that is old enough counts":     {at(1, 2, 4, 7, 8), 9, session(4)},
		"a write counts for itself only in part": {at(9), 9, session(0)},
	} {
		if got := zookeeper.LeaseEnd(start, test.touches, at(test.sent)[0], timeout, ttl); !got.Equal(test.want) {
			t.Errorf("%s: the lease ends after %v, not after %v", name, got.Sub(start), test.want.Sub(start))
		}
	}
}

// TestTokensOutliveAContainer: the servers delete a container that is empty. The key's tokens go
// on from the time, and above the marker's floor.
func TestTokensOutliveAContainer(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b := open(t, "zk://"+g.Addrs()[0]+"/tokens?call_timeout=3s")
	const ttl = 30 * time.Second
	last := uint64(0)
	take := func(b driver.Backend, what string) {
		t.Helper()
		l := grant(t, b, request("k", ttl))
		if l.Grant().Fence <= last {
			t.Errorf("%s: token %d after %d", what, l.Grant().Fence, last)
		}
		last = l.Grant().Fence
		release(t, l)
	}
	take(b, "the first")
	must(t, c.Delete(b.Path("k"), -1))
	take(b, "after the container")
	floor := last + uint64(time.Hour/time.Microsecond)
	_, err := c.Set("/tokens/.dlock", fmt.Appendf(nil, "dlock1 %d", floor), -1)
	must(t, err)
	must(t, c.Delete(b.Path("k"), -1))
	take(open(t, "zk://"+g.Addrs()[0]+"/tokens?call_timeout=3s"), "above the floor")
	if last <= floor {
		t.Errorf("token %d, and the floor is %d", last, floor)
	}
	take(b, "by one that does not know the floor") // the container does
	// Another program's container is left alone.
	_, err = c.Create(b.Path("foreign"), []byte("config"), 0, zk.WorldACL(zk.PermAll))
	must(t, err)
	if _, err := acquire(t, b, request("foreign", ttl)); verdict(err) != "refused" {
		t.Errorf("a node with another program's data: %v", err)
	}
}

// TestTTLsAreThoseThatTheServersCanKeep: what their settings do not allow is refused, with the
// setting to raise.
func TestTTLsAreThoseThatTheServersCanKeep(t *testing.T) {
	t.Parallel()
	g := server.ZooKeeper(t, 1, server.WithSetting("minSessionTimeout", "3000"), server.WithSetting("maxSessionTimeout", "8000"))
	b := open(t, urlOf(g))
	short := grant(t, b, request("short", time.Second))
	if left := time.Until(short.Grant().Expires); left > time.Second {
		t.Errorf("a lease of 1 s lasts for %v", left)
	}
	l := grant(t, b, request("k", 6*time.Second))
	if left := time.Until(l.Grant().Expires); left > 6*time.Second {
		t.Errorf("a lease of 6 s lasts for %v", left)
	}
	_, err := acquire(t, b, request("long", 10*time.Second))
	if verdict(err) != "refused" || !strings.Contains(err.Error(), "maxSessionTimeout") || !strings.Contains(err.Error(), "6s") {
		t.Errorf("a TTL of 10 s: %v", err)
	}
	if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: 10 * time.Second}); verdict(err) == "granted" || verdict(err) == "lost" && time.Now().Before(l.Grant().Expires) {
		t.Errorf("a renewal with a TTL of 10 s: %v", err)
	}
	release(t, l)
}

// TestSessionsAreFew: many locks of a few TTLs use few sessions, and Close ends them.
func TestSessionsAreFew(t *testing.T) {
	t.Parallel()
	g := server.ZooKeeper(t, 1)
	b := open(t, urlOf(g))
	connections := func() int {
		for t.Context().Err() == nil {
			if _, rest, ok := strings.Cut(srvr(g.Nodes[0]), "Connections: "); ok {
				number, _, _ := strings.Cut(rest, "\n")
				n, err := strconv.Atoi(number)
				must(t, err)
				return n - 1 // that which asks
			}
		}
		return 0
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 10 {
				l, err := acquire(t, b, request(fmt.Sprint(i), 30*time.Second+time.Duration(j)*time.Millisecond))
				if err == nil {
					err = l.Release(t.Context())
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := connections(); n > 3 {
		t.Errorf("%d connections after 80 locks with nearly the same TTL", n)
	}
	must(t, b.Close())
	for n := connections(); n > 0; n = connections() {
		if t.Context().Err() != nil {
			t.Fatalf("after Close there are %d connections", n)
		}
	}
}

// TestARenewalWithALongerTTLTakesTheSessionUp: the other locks of that session stay.
func TestARenewalWithALongerTTLTakesTheSessionUp(t *testing.T) {
	t.Parallel()
	g := single(t)
	b := open(t, urlOf(g))
	const ttl = 30 * time.Second
	l, other := grant(t, b, request("longer", ttl)), grant(t, b, request("other", ttl))
	start := time.Now()
	renew(t, l, 3*time.Minute)
	if least := start.Add(2 * time.Minute); l.Grant().Expires.Before(least) {
		t.Errorf("a renewal with three minutes gives %v", l.Grant().Expires.Sub(start))
	}
	renew(t, other, ttl)
	release(t, l)
	release(t, other)
}

// TestTLS: a server that asks for TLS is served, and one with another authority is not trusted.
func TestTLS(t *testing.T) {
	t.Parallel()
	g := server.ZooKeeper(t, 1, server.WithClientCerts())
	s := g.Nodes[0]
	cert, key := s.ClientCert()
	url := "zks://" + s.Addr() + "?call_timeout=3s&ca=" + s.CAFile() + "&cert=" + cert + "&key=" + key
	release(t, grant(t, open(t, url), request("k", 30*time.Second)))
	distrustful := open(t, "zks://"+s.Addr()+"?call_timeout=3s")
	for t.Context().Err() == nil {
		_, err := distrustful.Acquire(t.Context(), request("k", 30*time.Second))
		if verdict(err) != "unknown" {
			t.Errorf("without the authority: %v", err)
			return
		}
		if strings.Contains(err.Error(), "certificate") {
			return
		}
		t.Log(err) // the machine is busy
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for version, bad := range map[string]bool{"3.4.14": true, "3.5.4": true, "3.5.5": false, "3.8.0": false, "3.10.1": false, "4.0.0": false, "x": false} {
		if zookeeper.TooOld(version) != bad {
			t.Errorf("version %s: %v", version, !bad)
		}
	}
	g := single(t)
	closed := fault.NewProxy(t, g.Addrs()[0])
	must(t, closed.Refuse())
	b := open(t, "zk://"+g.Addrs()[0]+","+closed.Addr()+"?call_timeout=5s")
	release(t, grant(t, b, request("checked", 5*time.Second)))
	found, err := b.Check(t.Context())
	must(t, err)
	codes := map[string]bool{}
	for _, f := range found {
		codes[f.Code] = true
		if f.Code == "" || f.Summary == "" || f.Severity > driver.SeverityNote && f.Remedy == "" {
			t.Errorf("a finding says too little: %+v", f)
		}
	}
	for _, want := range []string{"version", "few-members", "member-unreachable"} {
		if !codes[want] {
			t.Errorf("%s is not among %v", want, codes)
		}
	}
}
