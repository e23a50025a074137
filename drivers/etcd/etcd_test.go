package etcd_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// client is connect for a test.
func client(t testing.TB, g *server.Group) *clientv3.Client {
	t.Helper()
	c, err := connect(g)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
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
		if verdict(err) != "unknown" {
			return l, err
		}
		t.Log(err)
		r = &driver.Request{Key: r.Key, Owner: r.Owner + "/again", TTL: r.TTL, Mode: r.Mode, Wait: r.Wait}
	}
}

func grant(t testing.TB, b driver.Backend, r *driver.Request) driver.Lease {
	t.Helper()
	l, err := acquire(t, b, r)
	must(t, err)
	return l
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

// leader returns the member that leads.
func leader(t testing.TB, g *server.Group) *server.Server {
	t.Helper()
	c := client(t, g)
	for t.Context().Err() == nil {
		for _, s := range g.Nodes {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			status, err := c.Status(ctx, s.Addr())
			cancel()
			if err == nil && status.Leader == status.Header.MemberId {
				return s
			}
		}
	}
	t.Fatal("no member leads")
	return nil
}

// TestAMemberFails: a cluster that loses a member goes on, and so do its locks: that of a
// holder, who renews it, and that of one who waits.
func TestAMemberFails(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for elections")
	}
	for name, f := range map[string]struct{ fail, mend func(*server.Server) error }{
		"killed":  {(*server.Server).Kill, (*server.Server).Start},
		"stopped": {(*server.Server).Pause, (*server.Server).Resume},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := server.Etcd(t, 3)
			const ttl = 30 * time.Second
			a, b := open(t, urlOf(g)), open(t, urlOf(g))
			held := grant(t, a, request(name, ttl))
			waiting := make(chan driver.Lease, 1)
			go func() {
				r := request(name, ttl)
				r.Wait = true
				l, err := acquire(t, b, r)
				if err != nil {
					t.Errorf("the wait: %v", err)
				}
				waiting <- l
			}()
			for s, err := b.Lookup(t.Context(), name); s == nil || s.Waiters == 0; s, err = b.Lookup(t.Context(), name) {
				if err != nil {
					t.Log(err)
				}
			}
			failing := leader(t, g)
			must(t, f.fail(failing))
			renew(t, held, ttl)
			release(t, grant(t, a, request(name+"/other", ttl)))
			if _, err := acquire(t, b, request(name, ttl)); verdict(err) != "held" {
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
		})
	}
}

// TestARenewalByAReplacedLeaderDoesNotCount: a leader that stood still still extends leases when
// it goes on, though its successor has them. No lease may count on that.
func TestARenewalByAReplacedLeaderDoesNotCount(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for an election")
	}
	t.Parallel()
	const ttl = 20 * time.Second
	g := server.Etcd(t, 3)
	old := leader(t, g)
	way := fault.NewProxy(t, old.Addr())
	b := open(t, "etcd://"+way.Addr()+"?call_timeout=60s")
	l := grant(t, b, request("k", ttl))
	must(t, old.Pause())
	others := client(t, &server.Group{Nodes: slices.DeleteFunc(slices.Clone(g.Nodes), func(s *server.Server) bool { return s == old })})
	left := func() time.Duration { // of the lease, by the new leader
		for t.Context().Err() == nil {
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			entries, err := others.Get(ctx, b.Path("k")+"/", clientv3.WithPrefix())
			if err == nil && len(entries.Kvs) == 1 {
				var answer *clientv3.LeaseTimeToLiveResponse
				if answer, err = others.TimeToLive(ctx, clientv3.LeaseID(entries.Kvs[0].Lease)); err == nil {
					cancel()
					return time.Duration(answer.TTL+1) * time.Second // it counts whole seconds
				}
			}
			cancel()
			t.Logf("look for the entry: %v", err)
		}
		return 0
	}
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	for left() > ttl*3/4 { // the new leader counts already
		<-look.C
	}
	sent := make(chan struct{}, 1)
	way.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		select {
		case sent <- struct{}{}:
		default:
		}
		return len(chunk), fault.Pass
	})
	renewed := make(chan struct{})
	go func() {
		defer close(renewed)
		renew(t, l, ttl)
	}()
	<-sent // the old leader will read it first of all
	must(t, old.Resume())
	if <-renewed; t.Failed() {
		return
	}
	if most, end := left(), l.Grant().Expires; time.Until(end) > most {
		t.Errorf("the lease lasts for %v by its client, and for %v at most by the server", time.Until(end), most)
	}
	release(t, l)
}

// TestTheMembersCannotReachEachOther: a member without a majority says nothing definite, and
// the lock is there when the members find each other again.
func TestTheMembersCannotReachEachOther(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for elections")
	}
	var proxies []*fault.Proxy
	g := server.Etcd(t, 3, server.WithPeersVia(func(addr string) (string, error) {
		p := fault.NewProxy(t, addr)
		proxies = append(proxies, p)
		return p.Addr(), nil
	}))
	const ttl = 30 * time.Second
	b := open(t, "etcd://"+strings.Join(g.Addrs(), ",")+"?call_timeout=500ms")
	held := grant(t, b, request("k", ttl))
	for _, p := range proxies {
		p.Pause()
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
	for _, p := range proxies {
		p.Resume()
	}
	release(t, held)
	release(t, grant(t, b, request("k", ttl)))
}

// TestLossIsToldBeforeTheLockIsAnothers: the lease of package dlock ends before somebody
// else has the lock, whether its client is cut off or its etcd lease is revoked.
func TestLossIsToldBeforeTheLockIsAnothers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	g := server.Etcd(t, 3)
	other := open(t, urlOf(g))
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
			l, err := locks.Lock(t.Context(), name, dlock.WithTTL(3*time.Second))
			must(t, err)
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
	g := server.Etcd(t, 1, server.WithSetting("bcrypt-cost", "4"))
	enableAuth(t, g, secret)
	s := g.Nodes[0]
	hung := fault.NewProxy(t, s.Addr())
	hung.BlackHole()
	refusing := fault.NewProxy(t, s.Addr())
	must(t, refusing.Refuse())
	url := func(user, password, addr string) string {
		return "etcd://" + user + ":" + password + "@" + addr + "?call_timeout=1s"
	}
	secure := "etcds://app:" + secret + "@" + s.Addr()
	readOnly := server.Etcd(t, 1)
	c := client(t, readOnly)
	status, err := c.Status(t.Context(), readOnly.Addrs()[0])
	must(t, err)
	_, err = etcdserverpb.NewMaintenanceClient(c.ActiveConnection()).Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: status.Header.MemberId, Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	must(t, err)
	for name, test := range map[string]struct{ url, want string }{
		"fine":               {url("app", secret, s.Addr()), "granted"},
		"a wrong password":   {url("app", secret+"x", s.Addr()), "refused"},
		"an unknown user":    {url("nobody", secret, s.Addr()), "refused"},
		"no user":            {"etcd://" + s.Addr(), "refused"},
		"no permission":      {url("guest", secret, s.Addr()), "refused"},
		"it is down":         {url("app", secret, refusing.Addr()), "unknown"},
		"it hangs":           {url("app", secret, hung.Addr()), "unknown"},
		"it is read-only":    {"etcd://" + readOnly.Addrs()[0], "refused"},
		"it speaks no TLS":   {secure, "unknown"},
		"it has no etcd":     {"etcd://app:" + secret + "@" + server.Redis(t).Addr(), "unknown"},
		"no right to a path": {"etcd://app:" + secret + "@" + s.Addr() + "/x", "refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, test.url)
			start := time.Now()
			l, err := b.Acquire(t.Context(), request("k/"+name, 5*time.Second))
			t.Logf("%v after %v", err, time.Since(start))
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
				must(t, l.Release(t.Context()))
			}
			if _, err := b.Check(t.Context()); strings.Contains(fmt.Sprint(err), secret) {
				t.Errorf("the password is in Check's error %v", err)
			}
		})
	}
}

// enableAuth makes the users root, app, who may use the default path, and guest, who may
// read it.
func enableAuth(t *testing.T, g *server.Group, password string) {
	t.Helper()
	c := client(t, g)
	ctx := t.Context()
	for _, user := range []string{"root", "app", "guest"} {
		_, err := c.UserAdd(ctx, user, password)
		must(t, err)
		_, err = c.RoleAdd(ctx, user)
		must(t, err)
		if user != "root" {
			right := clientv3.PermissionType(clientv3.PermReadWrite)
			if user == "guest" {
				right = clientv3.PermissionType(clientv3.PermRead)
			}
			_, err = c.RoleGrantPermission(ctx, user, "/dlock/", clientv3.GetPrefixRangeEnd("/dlock/"), right)
			must(t, err)
		}
		_, err = c.UserGrantRole(ctx, user, user)
		must(t, err)
	}
	_, err := c.AuthEnable(ctx)
	must(t, err)
}

func TestTLSWithClientCertificates(t *testing.T) {
	t.Parallel()
	g := server.Etcd(t, 1, server.WithClientCerts())
	s := g.Nodes[0]
	cert, key := s.ClientCert()
	url := "etcds://" + s.Addr() + "?ca=" + s.CAFile()
	if _, err := open(t, url).Acquire(t.Context(), request("k", 5*time.Second)); verdict(err) != "unknown" {
		t.Errorf("without a certificate: %v", err)
	}
	b := open(t, url+"&cert="+cert+"&key="+key)
	l := grant(t, b, request("k", 5*time.Second))
	if off := time.Since(time.UnixMicro(int64(l.Grant().Fence))); off < -time.Minute || off > time.Minute {
		t.Errorf("the token is %v away from the clock", off)
	}
	must(t, l.Release(t.Context()))
	for _, bad := range []string{
		"etcd://" + s.Addr() + "?ca=" + s.CAFile(), url + "&cert=" + cert, url + "x", "etcds://" + s.Addr() + "?ca=" + key,
		"etcd://:pw@" + s.Addr(), "etcd://host:0", "etcd://[::1", "http://host", "etcd://host?call_timeout=1ns",
	} {
		if _, err := (etcd.Driver{}).Open(&driver.Config{DSN: bad}); verdict(err) != "invalid" {
			t.Errorf("Open of %q: %v", bad, err)
		}
	}
}

// TestInteroperation: the mutexes of etcd's own client exclude our locks of the same name, and
// are excluded by them, in both modes.
func TestInteroperation(t *testing.T) {
	t.Parallel()
	g := server.Etcd(t, 1)
	c := client(t, g)
	b, err := etcd.New(c, &etcd.Options{Prefix: "jobs/", CallTimeout: 5 * time.Second})
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	session, err := concurrency.NewSession(c)
	must(t, err)
	t.Cleanup(func() { _ = session.Close() })
	const ttl = 20 * time.Second
	if want := "/dlock/jobs%2Fa%2Fb"; b.Path("a/b") != want {
		t.Errorf("the path is %q, and was %q in the first release", b.Path("a/b"), want)
	}
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		key := "a/" + mode.String()
		want := func(what string, err error, kind string) {
			t.Helper()
			if verdict(err) != kind {
				t.Errorf("%v: %s gives %v", mode, what, err)
			}
		}
		ask := func() *driver.Request { r := request(key, ttl); r.Mode = mode; return r }

		m := concurrency.NewMutex(session, b.Path(key))
		ours := grant(t, b, ask())
		if err := m.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Errorf("%v: TryLock of etcd's mutex beside our lock: %v", mode, err)
		}
		got := make(chan error, 1)
		go func() { got <- m.Lock(t.Context()) }()
		awaitWaiters(t, b, key, 1)
		_, err := b.Acquire(t.Context(), request(key, ttl))
		want("another of ours behind etcd's", err, "held")
		release(t, ours)
		must(t, <-got)
		_, err = b.Acquire(t.Context(), ask())
		want("ours beside etcd's mutex", err, "held")
		s, err := b.Lookup(t.Context(), key)
		must(t, err)
		if kv, err := c.Get(t.Context(), m.Key()); err != nil || len(s.Holders) != 1 || s.Mode != driver.Exclusive ||
			s.Holders[0].Fence != uint64(kv.Kvs[0].CreateRevision) {
			t.Errorf("etcd's mutex is seen as %+v, %v", s, err)
		}
		inLine := make(chan driver.Lease, 1)
		go func() {
			r := ask()
			r.Wait = true
			l, err := acquire(t, b, r)
			if err != nil {
				t.Errorf("a wait behind etcd's mutex: %v", err)
			}
			inLine <- l
		}()
		awaitWaiters(t, b, key, 1)
		must(t, m.Unlock(t.Context()))
		if l := <-inLine; l != nil {
			release(t, l)
		}
	}

	key := "rw"
	rw := recipe.NewRWMutex(session, b.Path(key))
	must(t, rw.RLock())
	if _, err := b.Acquire(t.Context(), request(key, ttl)); verdict(err) != "held" {
		t.Errorf("ours beside the recipe's reader: %v", err)
	}
	reader := request(key, ttl)
	reader.Mode = driver.Shared
	shared := grant(t, b, reader)
	must(t, rw.RUnlock())
	for _, lock := range []func() error{rw.Lock, rw.RLock} {
		got := make(chan error, 1)
		if shared == nil {
			shared = grant(t, b, request(key, ttl))
		}
		go func() { got <- lock() }()
		awaitWaiters(t, b, key, 1)
		release(t, shared)
		shared = nil
		must(t, <-got)
		if _, err := b.Acquire(t.Context(), request(key, ttl)); verdict(err) != "held" {
			t.Errorf("ours beside the recipe's: %v", err)
		}
		must(t, rw.Unlock())
	}
}

// awaitWaiters waits until so many wait in a key's line.
func awaitWaiters(t testing.TB, b *etcd.Backend, key string, n int) {
	t.Helper()
	for t.Context().Err() == nil {
		if s, err := b.Lookup(t.Context(), key); err == nil && s.Waiters >= n {
			return
		}
	}
	t.Fatal("nobody waits")
}

// TestTokensFollowTheClock: a base that lags is raised, at once and for everybody; Lookup and
// Break know the token of a holder from before.
func TestTokensFollowTheClock(t *testing.T) {
	t.Parallel()
	g := server.Etcd(t, 1)
	c := client(t, g)
	a, b := open(t, urlOf(g)), open(t, urlOf(g))
	_, err := c.Put(t.Context(), base, "dlock1 7")
	must(t, err)
	old := grant(t, a, request("old", 30*time.Second))
	if token := time.UnixMicro(int64(old.Grant().Fence)); time.Since(token) > time.Minute {
		t.Fatalf("the token is of %v", token)
	}
	must(t, func() error { // an hour goes by
		_, err := c.Put(t.Context(), base, fmt.Sprintf("dlock1 %d", old.Grant().Fence-uint64(time.Hour/time.Microsecond)))
		return err
	}())
	before := old.Grant().Fence
	for i := range 3 {
		l := grant(t, []*etcd.Backend{a, b}[i%2], request("new", 30*time.Second))
		if l.Grant().Fence <= before {
			t.Errorf("token %d after %d", l.Grant().Fence, before)
		}
		before = l.Grant().Fence
		release(t, l)
	}
	s, err := b.Lookup(t.Context(), "old")
	must(t, err)
	if len(s.Holders) != 1 || s.Holders[0].Fence != old.Grant().Fence || s.Holders[0].TTL <= 0 {
		t.Errorf("the token is %d, and Lookup says %+v", old.Grant().Fence, s)
	}
	must(t, b.Break(t.Context(), "old", old.Grant().Fence))
	if _, err := old.Renew(t.Context(), &driver.Renewal{TTL: 30 * time.Second}); verdict(err) != "lost" {
		t.Errorf("Renew of a broken lock: %v", err)
	}
}

// TestLeasesOfTheServer: a lock never lasts shorter than asked for, many locks that come and go
// use few leases, and Close leaves none.
func TestLeasesOfTheServer(t *testing.T) {
	t.Parallel()
	g := server.Etcd(t, 1)
	c := client(t, g)
	b := open(t, "etcd://"+g.Addrs()[0]+"?call_timeout=30s") // on a busy machine, too
	l := grant(t, b, request("k", 2500*time.Millisecond))
	all, err := c.Leases(t.Context())
	must(t, err)
	for _, lease := range all.Leases {
		got, err := c.TimeToLive(t.Context(), lease.ID)
		must(t, err)
		if got.GrantedTTL < 3 {
			t.Errorf("2.5 s became %d s", got.GrantedTTL)
		}
	}
	release(t, l)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 10 {
				l, err := b.Acquire(t.Context(), request(fmt.Sprint(i), 30*time.Second))
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
	all, err = c.Leases(t.Context())
	must(t, err)
	if n := len(all.Leases); n > 40 { // 16 that are idle, and some whose end is under way
		t.Errorf("%d leases after 81 locks", n)
	}
	must(t, b.Close())
	if all, err = c.Leases(t.Context()); err != nil || len(all.Leases) != 0 {
		t.Errorf("after Close there are %d leases, %v", len(all.Leases), err)
	}
}

// TestALateWriteIsRefused: what a holder writes under IsOwner after its lock was lost changes
// nothing, and the next holder's write stands.
func TestALateWriteIsRefused(t *testing.T) {
	t.Parallel()
	g := server.Etcd(t, 1)
	c := client(t, g)
	b := open(t, urlOf(g))
	const ttl = 30 * time.Second
	write := func(owner clientv3.Cmp, value string) bool {
		t.Helper()
		done, err := c.Txn(t.Context()).If(owner).Then(clientv3.OpPut("/data", value)).Commit()
		must(t, err)
		return done.Succeeded
	}
	paused := grant(t, b, request("k", ttl))
	owner, err := b.IsOwner(t.Context(), "k", paused.Grant().Fence)
	must(t, err)
	if !write(owner, "first") {
		t.Error("the holder's write was refused")
	}
	must(t, b.Break(t.Context(), "k", paused.Grant().Fence))
	next := grant(t, b, request("k", ttl))
	second, err := b.IsOwner(t.Context(), "k", next.Grant().Fence)
	must(t, err)
	if !write(second, "second") || write(owner, "late") {
		t.Error("the late write was made, or the next holder's was not")
	}
	if _, err := b.IsOwner(t.Context(), "k", paused.Grant().Fence); verdict(err) != "lost" {
		t.Errorf("IsOwner with the token of a lost lock: %v", err)
	}
	if got, err := c.Get(t.Context(), "/data"); err != nil || string(got.Kvs[0].Value) != "second" {
		t.Errorf("what is stored is %v, %v", got, err)
	}
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	for version, bad := range map[string]bool{
		"3.3.25": true, "3.4.23": true, "3.4.30": true, "3.4.31": false, "3.5.0": true, "3.5.12": true, "3.5.13": false, "3.6.0-rc.1": false, "4.0.0": false, "x": false,
	} {
		if etcd.RevokesLiveLeases(version) != bad {
			t.Errorf("version %s: %v", version, !bad)
		}
	}
	g := server.Etcd(t, 1)
	closed := fault.NewProxy(t, g.Addrs()[0])
	must(t, closed.Refuse())
	b := open(t, "etcd://"+g.Addrs()[0]+","+closed.Addr()+"?call_timeout=2s")
	release(t, grant(t, b, request("k", 5*time.Second)))
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
