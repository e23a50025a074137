package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	recipe "go.etcd.io/etcd/client/v3/experimental/recipes"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/etcd"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var must = drivertest.Must

// client is connect for a test.
func client(t testing.TB, g *server.Group) *clientv3.Client {
	t.Helper()
	c, err := connect(g)
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
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

// peers are the proxies by which the members of a cluster reach each other, one before each member.
type peers struct {
	proxies []*fault.Proxy

	mu    sync.Mutex
	from  map[[2]int64]string // the member that made each connection, as its requests say
	alone int                 // the member that is cut off from the others; -1: none
	name  string              // of that member
}

// behindPeers starts a cluster whose members can be cut off from each other.
func behindPeers(t *testing.T) (*server.Group, *peers) {
	p := &peers{from: map[[2]int64]string{}, alone: -1}
	g := server.Etcd(t, 3, server.WithPeersVia(func(_, to int, addr string) (string, error) {
		proxy := fault.NewProxy(t, addr)
		judge := func(conn int64, chunk []byte) (int, fault.Action) { return p.judge(int64(to), conn, chunk) }
		proxy.Judge(fault.ToServer, judge)
		proxy.Judge(fault.ToClient, judge)
		p.proxies = append(p.proxies, proxy)
		return proxy.Addr(), nil
	}))
	return g, p
}

// judge cuts the connections from and to a member that is cut off.
func (p *peers) judge(to, conn int64, chunk []byte) (int, fault.Action) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, rest, ok := bytes.Cut(chunk, []byte("X-Server-From: ")); ok {
		name, _, _ := bytes.Cut(rest, []byte("\r"))
		p.from[[2]int64{to, conn}] = string(name)
	}
	if p.alone >= 0 && (to == int64(p.alone) || p.from[[2]int64{to, conn}] == p.name) {
		return 0, fault.Cut
	}
	return len(chunk), fault.Pass
}

// isolate cuts a member off from the others; -1 ends that.
func (p *peers) isolate(member int, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.alone, p.name = member, name
}

// TestTheLeaderFails: a cluster that loses its leader goes on, and so do its locks. Through a
// member that is cut off from the others every outcome is unknown.
func TestTheLeaderFails(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for elections")
	}
	g, between := behindPeers(t)
	a, b := open(t, urlOf(g)), open(t, urlOf(g))
	for name, f := range map[string]struct{ fail, mend func(*server.Server) error }{
		"killed":  {(*server.Server).Kill, (*server.Server).Start},
		"stopped": {(*server.Server).Pause, (*server.Server).Resume},
	} {
		failing := leader(t, g)
		drivertest.RunFailover(t, a, b, name, 2*time.Minute,
			func() error { return f.fail(failing) }, func() error { return f.mend(failing) })
	}
	alone := leader(t, g)
	status, err := client(t, g).Status(t.Context(), alone.Addr())
	must(t, err)
	minority := open(t, "etcd://"+alone.Addr()+"?call_timeout=500ms")
	drivertest.RunMinority(t, minority, b, "cut off", 3*time.Second, func() error {
		between.isolate(slices.Index(g.Nodes, alone), fmt.Sprintf("%x", status.Header.MemberId))
		return nil
	}, func() error {
		drivertest.AwaitFinding(t, b, "no-leader")
		between.isolate(-1, "")
		return nil
	})
	drivertest.AwaitFinding(t, minority, "one-address")

	held := drivertest.Grant(t, minority, drivertest.NewRequest("held", 10*time.Minute))
	for _, p := range between.proxies { // nobody has a majority
		p.Pause()
	}
	drivertest.RunUnknown(t, minority, held)
	for _, p := range between.proxies {
		p.Resume()
	}
	drivertest.Release(t, held)
	drivertest.Release(t, drivertest.Grant(t, minority, drivertest.NewRequest("held", 30*time.Second)))
}

// TestLossIsToldBeforeTheLockIsAnothers, if the holder is cut off.
func TestLossIsToldBeforeTheLockIsAnothers(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for leases to end")
	}
	drivertest.RunLoss(t, system.Harness(single(t), driver.Config{Prefix: "loss/"}, ""), 3*time.Second)
}

// TestARenewalByAReplacedLeaderDoesNotCount: a leader that was stopped and replaced may extend
// leases when it runs again, which only its successor can do. Such a renewal must not count.
func TestARenewalByAReplacedLeaderDoesNotCount(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for an election")
	}
	t.Parallel()
	const ttl = time.Minute
	g := server.Etcd(t, 3)
	old := leader(t, g)
	way := fault.NewProxy(t, old.Addr())
	b := open(t, "etcd://"+way.Addr()+"?call_timeout=60s")
	l := drivertest.Grant(t, b, drivertest.NewRequest("k", ttl))
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
	for left() > ttl-5*time.Second { // until the new leader, which gave the lease its whole TTL, has counted some of it down
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
		drivertest.Renew(t, l, ttl)
	}()
	<-sent // the old leader reads it when it runs again
	must(t, old.Resume())
	if <-renewed; t.Failed() {
		return
	}
	if most, end := left(), l.Grant().Expires; time.Until(end) > most {
		t.Errorf("the lease lasts for %v by its client, and for %v at most by the server", time.Until(end), most)
	}
	drivertest.Release(t, l)
}

// TestTheFirstMemberHangs: locks go on if the members that come first in the URL do not answer.
func TestTheFirstMemberHangs(t *testing.T) {
	t.Parallel()
	g := single(t)
	url := "etcd://"
	for range 8 {
		hung := fault.NewProxy(t, g.Addrs()[0])
		hung.BlackHole()
		url += hung.Addr() + ","
	}
	b := open(t, url+g.Addrs()[0]+"/"+t.Name()+"?call_timeout=1s")
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
}

// TestOutagesAndMisuseAreToldApart: failures, refusals and mistakes have different verdicts,
// and no error shows the password.
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
	drivertest.RunURLs(t, etcd.Driver{}, secret, 1500*time.Millisecond, map[string]drivertest.URLCase{
		"fine":               {URL: url("app", secret, s.Addr()), Want: "granted"},
		"a wrong password":   {URL: url("app", secret+"x", s.Addr()), Want: "refused"},
		"an unknown user":    {URL: url("nobody", secret, s.Addr()), Want: "refused"},
		"no user":            {URL: "etcd://" + s.Addr(), Want: "refused"},
		"no permission":      {URL: url("guest", secret, s.Addr()), Want: "refused"},
		"it is down":         {URL: url("app", secret, refusing.Addr()), Want: "unknown"},
		"it hangs":           {URL: url("app", secret, hung.Addr()), Want: "unknown"},
		"it is read-only":    {URL: "etcd://" + readOnly.Addrs()[0], Want: "refused", Says: "accepts no writes"},
		"it speaks no TLS":   {URL: secure, Want: "unknown"},
		"it has no etcd":     {URL: "etcd://app:" + secret + "@" + server.Redis(t).Addr(), Want: "unknown"},
		"no right to a path": {URL: "etcd://app:" + secret + "@" + s.Addr() + "/x", Want: "refused"},
		"no user's password": {URL: "etcd://:" + secret + "@" + s.Addr(), Want: "invalid"},
		"the root as a path": {URL: "etcd://app:" + secret + "@" + s.Addr() + "/", Want: "invalid"},
		"TLS without etcds":  {URL: "etcd://app:" + secret + "@" + s.Addr() + "?ca=x", Want: "invalid"},
		"another parameter":  {URL: "etcd://app:" + secret + "@" + s.Addr() + "?timeout=1s", Want: "invalid"},
	})
	drivertest.AwaitFinding(t, open(t, "etcd://"+readOnly.Addrs()[0]), "alarm")
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
	// Tokens are ahead of the clock, so that an attempt writes its entry and no base.
	_, err := c.Put(ctx, base, fmt.Sprintf("dlock1 %d", time.Now().Add(time.Hour).UnixMicro()))
	must(t, err)
	_, err = c.AuthEnable(ctx)
	must(t, err)
}

// TestALockThatMayNotBeReleasedEnds: its holder has lost the permission, and goes on with other locks. The
// etcd lease that they share is not kept alive for it.
func TestALockThatMayNotBeReleasedEnds(t *testing.T) {
	t.Parallel()
	const secret = "pw-c4n4ry"
	g := server.Etcd(t, 1, server.WithSetting("bcrypt-cost", "4"))
	enableAuth(t, g, secret)
	as := func(user string) *etcd.Backend {
		return open(t, "etcd://"+user+":"+secret+"@"+g.Addrs()[0]+"?call_timeout=1m")
	}
	b := as("app")
	l := drivertest.Grant(t, b, drivertest.NewRequest("k", 2*time.Second))
	root, err := clientv3.New(clientv3.Config{Endpoints: g.Addrs(), Username: "root", Password: secret, Logger: zap.NewNop()})
	must(t, err)
	defer root.Close() //nolint:errcheck // a test
	_, err = root.UserRevokeRole(t.Context(), "app", "app")
	must(t, err)
	if err := l.Release(t.Context()); drivertest.Verdict(err) != "refused" {
		t.Errorf("Release without the permission: %v", err)
	}
	_, err = root.UserGrantRole(t.Context(), "app", "guest")
	must(t, err)
	waiting := drivertest.Waiter(t, as("root"), drivertest.NewRequest("k", time.Minute))
	if next := <-waiting; next != nil {
		drivertest.Release(t, next)
	}
}

func TestTLSWithClientCertificates(t *testing.T) {
	t.Parallel()
	g := server.Etcd(t, 1, server.WithClientCerts())
	s := g.Nodes[0]
	cert, key := s.ClientCert()
	url := "etcds://" + s.Addr() + "?ca=" + s.CAFile()
	if _, err := open(t, url).Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "unknown" {
		t.Errorf("without a certificate: %v", err)
	}
	b := open(t, url+"&cert="+cert+"&key="+key)
	l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
	if off := time.Since(time.UnixMicro(int64(l.Grant().Fence))); off < -time.Minute || off > time.Minute {
		t.Errorf("the token is %v away from the clock", off)
	}
	drivertest.Release(t, l)
}

// TestInteroperation: the mutexes of etcd's own client and our locks of the same name exclude
// each other, in both modes.
func TestInteroperation(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b, err := etcd.New(c, &etcd.Options{Prefix: "jobs/", CallTimeout: time.Minute})
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	session, err := concurrency.NewSession(c)
	must(t, err)
	t.Cleanup(func() { _ = session.Close() })
	const ttl = 2 * time.Minute
	if want := "/dlock/jobs%2Fa%2Fb"; b.Path("a/b") != want {
		t.Errorf("the path is %q, and was %q in the first release", b.Path("a/b"), want)
	}
	named := drivertest.Grant(t, b, drivertest.NewRequest("a/b", ttl))
	entries, err := c.Get(t.Context(), b.Path("a/b")+"/", clientv3.WithPrefix())
	must(t, err)
	if want := fmt.Sprintf("%s/write/%x.1", b.Path("a/b"), entries.Kvs[0].Lease); string(entries.Kvs[0].Key) != want {
		t.Errorf("the entry is %s, and would be %s in the first release", entries.Kvs[0].Key, want)
	}
	drivertest.Release(t, named)
	drivertest.RunForeign(t, b, ttl, func(key string) (lock, unlock func() error) {
		m := concurrency.NewMutex(session, b.Path(key))
		if err := m.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
			t.Errorf("TryLock of etcd's mutex beside our lock: %v", err)
		}
		unlock = func() error {
			s, err := b.Lookup(t.Context(), key)
			must(t, err)
			if kv, err := c.Get(t.Context(), m.Key()); err != nil || s.Holders[0].Fence != uint64(kv.Kvs[0].CreateRevision) {
				t.Errorf("etcd's mutex is seen as %+v, %v", s, err)
			}
			return m.Unlock(t.Context())
		}
		return func() error { return m.Lock(t.Context()) }, unlock
	})

	key := "rw"
	rw := recipe.NewRWMutex(session, b.Path(key))
	must(t, rw.RLock())
	if _, err := b.Acquire(t.Context(), drivertest.NewRequest(key, ttl)); drivertest.Verdict(err) != "held" {
		t.Errorf("ours beside the recipe's reader: %v", err)
	}
	reader := drivertest.NewRequest(key, ttl)
	reader.Mode = driver.Shared
	shared := drivertest.Grant(t, b, reader)
	must(t, rw.RUnlock())
	for _, lock := range []func() error{rw.Lock, rw.RLock} {
		got := make(chan error, 1)
		if shared == nil {
			shared = drivertest.Grant(t, b, drivertest.NewRequest(key, ttl))
		}
		go func() { got <- lock() }()
		drivertest.AwaitWaiters(t, b, key, 1)
		drivertest.Release(t, shared)
		shared = nil
		must(t, <-got)
		if _, err := b.Acquire(t.Context(), drivertest.NewRequest(key, ttl)); drivertest.Verdict(err) != "held" {
			t.Errorf("ours beside the recipe's: %v", err)
		}
		must(t, rw.Unlock())
	}
}

// TestNoPathContainsAnother: the path / would contain every other path, and its lock of a key would
// not be that of the default path. The mutex of the page for those who come from etcd's package is
// excluded by the URL that the page names.
func TestNoPathContainsAnother(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	for _, path := range []string{"/", "//", "//jobs", "/jobs//", "/./jobs", "/jobs/../x"} {
		if _, err := etcd.New(c, &etcd.Options{Path: path}); drivertest.Verdict(err) != "invalid" {
			t.Errorf("New with the path %s: %v", path, err)
		}
	}
	session, err := concurrency.NewSession(c)
	must(t, err)
	t.Cleanup(func() { _ = session.Close() })
	mutex := concurrency.NewMutex(session, "/jobs/nightly")
	must(t, mutex.Lock(t.Context()))
	for _, path := range []string{"/jobs", "/jobs/"} {
		_, err := open(t, patientURL(g, path)).Acquire(t.Context(), drivertest.NewRequest("nightly", time.Minute))
		if drivertest.Verdict(err) != "held" {
			t.Errorf("path %s beside etcd's mutex: %v", path, err)
		}
	}
}

// TestTokensFollowTheClock: a base that lags is raised at once, when it is first read and later.
func TestTokensFollowTheClock(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	path := "/" + t.Name()
	way := fault.NewProxy(t, g.Addrs()[0])
	b := open(t, "etcd://"+way.Addr()+path+"?call_timeout=1m")
	stored := uint64(7)
	for range 2 {
		_, err := c.Put(t.Context(), path+"/.dlock", fmt.Sprintf("dlock1 %d", stored))
		must(t, err)
		l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
		if since := time.Since(time.UnixMicro(int64(l.Grant().Fence))); since > time.Minute {
			t.Errorf("with the base %d the token is of %v ago", stored, since)
		}
		drivertest.Release(t, l)
		stored = l.Grant().Fence - uint64(time.Hour/time.Microsecond)
	}
	if n := way.Stats().Conns; n > 3 { // that of the client is one
		t.Errorf("the server is asked for the time %d times", n-1)
	}
	_, err := c.Put(t.Context(), path+"/.dlock", "dlock2 7")
	must(t, err)
	if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "refused" {
		t.Errorf("with the base of a later release: %v", err)
	}
}

// TestABaseThatNeedNotBeRaisedIsNotWritten: a lock is then one write, and its release a plain deletion.
func TestABaseThatNeedNotBeRaisedIsNotWritten(t *testing.T) {
	t.Parallel()
	var puts, deletions, last atomic.Int64
	b := with(t, single(t), func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		for _, op := range writes(req) {
			if op.GetRequestPut() != nil {
				puts.Add(1)
			}
		}
		if strings.HasSuffix(method, "/DeleteRange") {
			deletions.Add(1)
		}
		err := invoke(ctx, method, req, reply, c, opts...)
		if r, ok := reply.(interface {
			GetHeader() *etcdserverpb.ResponseHeader
		}); ok && err == nil {
			last.Store(r.GetHeader().Revision)
		}
		return err
	})
	b.StopClock()
	r := drivertest.NewRequest("k", time.Minute)
	for _, want := range []int64{2, 1, 1} { // first also the base
		puts.Store(0)
		deletions.Store(0)
		drivertest.Release(t, drivertest.Grant(t, b, r))
		if puts.Load() != want || deletions.Load() != 1 {
			t.Errorf("a lock is %d puts, not %d, and %d plain deletions", puts.Load(), want, deletions.Load())
		}
	}
	if revision, took := b.Observed(); revision != last.Load() || took == 0 {
		t.Errorf("of an answer with the revision %d the backend has seen %d, after %v", last.Load(), revision, took)
	}
	b.SetClock(200 * 365 * 24 * time.Hour)
	if _, err := b.Acquire(t.Context(), r); drivertest.Verdict(err) != "refused" {
		t.Errorf("with a clock that is out of the range of tokens: %v", err)
	}
}

// TestDeletionsOfOneTransaction: releases that meet are one request.
func TestDeletionsOfOneTransaction(t *testing.T) {
	t.Parallel()
	c := client(t, single(t))
	keys := []string{"/" + t.Name() + "/1", "/" + t.Name() + "/2"}
	for _, key := range keys {
		_, err := c.Put(t.Context(), key, "x")
		must(t, err)
	}
	must(t, etcd.DeleteAtOnce(t.Context(), c, keys...))
	if left, err := c.Get(t.Context(), "/"+t.Name(), clientv3.WithPrefix()); err != nil || left.Count != 0 {
		t.Errorf("%d keys are left: %v", left.Count, err)
	}
}

// with opens a backend on a client whose requests go through f.
func with(t testing.TB, g *server.Group, f grpc.UnaryClientInterceptor) *etcd.Backend {
	t.Helper()
	return on(t, g, time.Minute, grpc.WithChainUnaryInterceptor(f))
}

// on opens a backend on a client with these options.
func on(t testing.TB, g *server.Group, timeout time.Duration, options ...grpc.DialOption) *etcd.Backend {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{
		Endpoints: g.Addrs(), DialTimeout: time.Minute, Logger: zap.NewNop(), DialOptions: options,
	})
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	b, err := etcd.New(c, &etcd.Options{CallTimeout: timeout, Path: "/" + t.Name()})
	must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// TestALateReleaseFreesNoOtherLock: a release has no answer, is sent again, and arrives when the key has
// another holder, with the same etcd lease. After many of them locks use another lease, since its names
// cannot be used again.
func TestALateReleaseFreesNoOtherLock(t *testing.T) {
	t.Parallel()
	g := single(t)
	var late func() error
	b := with(t, g, func(ctx context.Context, method string, req, reply any, c *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		send := func() error { return invoke(context.WithoutCancel(ctx), method, req, reply, c, opts...) }
		if late == nil && (deletes(req) || strings.HasSuffix(method, "/DeleteRange")) {
			late = send
			return status.Error(codes.Unavailable, "the request is under way")
		}
		return send()
	})
	var first clientv3.LeaseID
	for i := range 101 {
		late = nil
		drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
		if i == 0 {
			first = b.Lease()
		}
		l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
		must(t, late())
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); err != nil {
			t.Errorf("after a late release: %v", err)
		}
		drivertest.Release(t, l)
	}
	if b.Lease() == first {
		t.Error("101 late releases have one lease")
	}
}

// writes returns the requests that a transaction makes if its conditions are true, nested ones too.
func writes(req any) (all []*etcdserverpb.RequestOp) {
	r, _ := req.(*etcdserverpb.TxnRequest)
	for _, op := range r.GetSuccess() {
		all = append(append(all, op), writes(op.GetRequestTxn())...)
	}
	return all
}

// moves returns the etcd lease to which a transaction attaches an entry, or 0.
func moves(req any) int64 {
	for _, op := range writes(req) {
		if lease := op.GetRequestPut().GetLease(); lease != 0 {
			return lease
		}
	}
	return 0
}

// deletes reports whether a transaction deletes an entry.
func deletes(req any) bool {
	return slices.ContainsFunc(writes(req), func(op *etcdserverpb.RequestOp) bool { return op.GetRequestDeleteRange() != nil })
}

// TestAWaiterWhoseWatchHangs: the member that serves the watches answers nothing on them. A waiter
// gets the lock all the same.
func TestAWaiterWhoseWatchHangs(t *testing.T) {
	t.Parallel()
	g := single(t)
	b := on(t, g, 2*time.Second, grpc.WithChainStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		s, err := open(ctx, d, c, method, opts...)
		if strings.HasSuffix(method, "/Watch") {
			s = silent{s}
		}
		return s, err
	}))
	held := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
	got := drivertest.Waiter(t, b, drivertest.NewRequest("k", 30*time.Second))
	drivertest.AwaitWaiters(t, b, "k", 1)
	drivertest.Release(t, held)
	if l := <-got; l != nil {
		drivertest.Release(t, l)
	}
}

// silent is a stream on which nothing arrives.
type silent struct{ grpc.ClientStream }

func (s silent) RecvMsg(any) error {
	<-s.Context().Done()
	return s.Context().Err()
}

// TestLocksOfATTLShareALease of the server, which lasts no shorter than asked for, and Close ends it.
func TestLocksOfATTLShareALease(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b := open(t, patientURL(g, "/"+t.Name()))
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
	lease := b.Lease()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest(fmt.Sprint(i), 59500*time.Millisecond)))
		})
	}
	wg.Wait()
	if b.Lease() != lease {
		t.Errorf("50 locks have the leases %d and %d", lease, b.Lease())
	}
	if got, err := c.TimeToLive(t.Context(), lease); err != nil || got.GrantedTTL != 60 {
		t.Errorf("59.5 s became %+v, %v", got, err)
	}
	held := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
	if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "held" {
		t.Errorf("beside the holder: %v", err)
	}
	ctx, giveUp := context.WithCancel(t.Context())
	gaveUp := make(chan error)
	go func() {
		r := drivertest.NewRequest("k", time.Minute)
		r.Wait = true
		_, err := b.Acquire(ctx, r)
		gaveUp <- err
	}()
	drivertest.AwaitWaiters(t, b, "k", 1)
	giveUp()
	if err := <-gaveUp; err == nil {
		t.Error("a held lock was granted")
	}
	must(t, b.Break(t.Context(), "k", driver.Holder{Fence: held.Grant().Fence}))
	if _, err := held.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); drivertest.Verdict(err) != "lost" {
		t.Errorf("Renew of a broken lock: %v", err)
	}
	must(t, b.Close()) // nobody uses the lease, however its users have ended
	if got, err := c.TimeToLive(t.Context(), lease); err != nil || got.TTL >= 0 {
		t.Errorf("after Close the lease is %+v, %v", got, err)
	}
}

// TestAWaiterThatLosesItsEntryGoesToTheEndOfTheQueue, as often as that is. Then it uses one lease once.
func TestAWaiterThatLosesItsEntryGoesToTheEndOfTheQueue(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b, other := open(t, patientURL(g, "/"+t.Name())), open(t, patientURL(g, "/"+t.Name()))
	held := drivertest.Grant(t, other, drivertest.NewRequest("k", time.Minute))
	granted := make(chan driver.Lease)
	go func() {
		r := drivertest.NewRequest("k", 2*time.Second) // it looks every third of that
		r.Wait = true
		l, err := b.Acquire(t.Context(), r)
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
		granted <- l
	}()
	var last int64
	for range 3 {
		var own *mvccpb.KeyValue
		for own == nil && !t.Failed() {
			got, err := c.Get(t.Context(), b.Path("k")+"/", append(clientv3.WithLastCreate(), clientv3.WithMinCreateRev(last+1))...)
			must(t, err)
			if len(got.Kvs) == 1 && got.Kvs[0].Lease != int64(other.Lease()) {
				own = got.Kvs[0]
			}
		}
		last = own.CreateRevision
		_, err := c.Delete(t.Context(), string(own.Key))
		must(t, err)
	}
	drivertest.Release(t, held)
	l := <-granted
	if l == nil {
		return
	}
	got, err := c.Get(t.Context(), b.Path("k")+"/", clientv3.WithPrefix())
	must(t, err)
	drivertest.Release(t, l)
	must(t, b.Close())
	if left, err := c.TimeToLive(t.Context(), clientv3.LeaseID(got.Kvs[0].Lease)); err != nil || left.TTL >= 0 {
		t.Errorf("after Close the lease is %+v, %v", left, err)
	}
}

// TestALeaseThatEndedEarlyCarriesNoLock: the lease that a backend keeps for its next locks ends while
// the machine sleeps, or is revoked by an operator.
func TestALeaseThatEndedEarlyCarriesNoLock(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b := open(t, patientURL(g, "/"+t.Name()))
	for _, wait := range []bool{false, true} {
		lost := drivertest.Grant(t, b, drivertest.NewRequest("lost", time.Minute))
		_, err := c.Revoke(t.Context(), b.Lease())
		must(t, err)
		req := drivertest.NewRequest("k", time.Minute)
		req.Wait = wait
		l, err := b.Acquire(t.Context(), req)
		if err != nil {
			t.Fatalf("Acquire, wait %v: %v", wait, err)
		}
		drivertest.Renew(t, l, time.Minute)
		drivertest.Release(t, l)
		if _, err := lost.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); drivertest.Verdict(err) != "lost" {
			t.Errorf("Renew after the lease was revoked, wait %v: %v", wait, err)
		}
	}
}

// TestAHolderAndItsWaiterEndTogether: they are of one process and share a lease. The transaction that
// removes the entry before the waiter's removes the waiter's, too.
func TestAHolderAndItsWaiterEndTogether(t *testing.T) {
	t.Parallel()
	g := single(t)
	a, other := open(t, patientURL(g, "/"+t.Name())), open(t, patientURL(g, "/"+t.Name()))
	drivertest.Grant(t, a, drivertest.NewRequest("k", time.Minute))
	granted := drivertest.Waiter(t, a, drivertest.NewRequest("k", time.Minute))
	drivertest.AwaitWaiters(t, other, "k", 1)
	_, err := client(t, g).Revoke(t.Context(), a.Lease())
	must(t, err)
	first := <-granted
	if second, err := drivertest.Acquire(t, other, drivertest.NewRequest("k", time.Minute)); err == nil {
		t.Errorf("two holders: %+v and %+v", first.Grant(), second.Grant())
	}
	drivertest.Release(t, first)
}

// TestALateWriteIsRefused: what a holder writes under IsOwner after its lock was lost changes
// nothing, and the next holder's write stands.
func TestALateWriteIsRefused(t *testing.T) {
	t.Parallel()
	g := single(t)
	c := client(t, g)
	b := open(t, patientURL(g, "/"+t.Name()))
	const ttl = 2 * time.Minute
	write := func(owner clientv3.Cmp, value string) bool {
		t.Helper()
		done, err := c.Txn(t.Context()).If(owner).Then(clientv3.OpPut("/data", value)).Commit()
		must(t, err)
		return done.Succeeded
	}
	paused := drivertest.Grant(t, b, drivertest.NewRequest("k", ttl))
	owner, err := b.IsOwner(t.Context(), "k", paused.Grant().Fence)
	must(t, err)
	if !write(owner, "first") {
		t.Error("the holder's write was refused")
	}
	must(t, b.Break(t.Context(), "k", driver.Holder{Fence: paused.Grant().Fence}))
	next := drivertest.Grant(t, b, drivertest.NewRequest("k", ttl))
	second, err := b.IsOwner(t.Context(), "k", next.Grant().Fence)
	must(t, err)
	if !write(second, "second") || write(owner, "late") {
		t.Error("the late write was made, or the next holder's was not")
	}
	if _, err := b.IsOwner(t.Context(), "k", paused.Grant().Fence); drivertest.Verdict(err) != "lost" {
		t.Errorf("IsOwner with the token of a lost lock: %v", err)
	}
	if got, err := c.Get(t.Context(), "/data"); err != nil || string(got.Kvs[0].Value) != "second" {
		t.Errorf("what is stored is %v, %v", got, err)
	}
	drivertest.Release(t, next)
}

func TestCheckFindsWhatIsWrong(t *testing.T) {
	t.Parallel()
	g := single(t)
	closed := fault.NewProxy(t, g.Addrs()[0])
	must(t, closed.Refuse())
	b := open(t, "etcd://"+g.Addrs()[0]+","+closed.Addr()+"?call_timeout=2s")
	drivertest.AwaitFinding(t, b, "few-members")
	drivertest.AwaitFinding(t, b, "member-unreachable")
}
