package consul_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/consul"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var must = drivertest.Must

const long = "takes too long for -short"

// roundTripper is a client's transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// body returns the body of a request, which is not sent yet.
func body(r *http.Request) string {
	if r.Body == nil {
		return ""
	}
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return ""
	}
	r.Body = io.NopCloser(bytes.NewReader(text))
	return string(text)
}

// old is a transport to servers that do not know what came with 1.14.
var old = roundTripper(func(r *http.Request) (*http.Response, error) {
	text := strings.ReplaceAll(body(r), string(api.KVGetOrEmpty), "get-as-ever")
	r.Body, r.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
	return http.DefaultTransport.RoundTrip(r)
})

// counter is a client's transport that counts.
type counter struct{ sent, open, mostOpen atomic.Int64 }

func (c *counter) RoundTrip(r *http.Request) (*http.Response, error) {
	c.sent.Add(1)
	if r.URL.Query().Has("index") {
		n := c.open.Add(1)
		c.mostOpen.Store(max(c.mostOpen.Load(), n))
		defer c.open.Add(-1)
	}
	return http.DefaultTransport.RoundTrip(r)
}

// client returns the api's client of the first server.
func client(t testing.TB, g *server.Group) (*api.Client, *counter) {
	t.Helper()
	var n counter
	c, err := api.NewClient(&api.Config{Address: g.Addrs()[0], HttpClient: &http.Client{Transport: &n}})
	must(t, err)
	return c, &n
}

func TestURLsAreChecked(t *testing.T) {
	drivertest.RunBadURLs(t, consul.Driver{}, map[string]string{
		"consul://a/b//c":                     "path",
		"consul://a/x/.dlock":                 "path",
		"consul://a/?call_timeout=1ms":        "call_timeout",
		"consul://a/?session_ttl_min=1ms":     "session_ttl_min",
		"consul://a/?nothing=1":               "nothing",
		"consul://a/?ca=/etc/ca.pem":          "ca",
		"consul://secret@a/":                  "URL",
		"consuls://a/?ca=/nowhere/at/all.pem": "ca",
	})
	if _, err := consul.New(nil, nil); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("New without a client: %v", err)
	}
	b := open(t, "consul://a")
	if b.Path("a/b c+%") != "dlock/a%2Fb%20c%2B%25" || b.Info().MinTTL != 10*time.Second {
		t.Errorf("%q, %v", b.Path("a/b c+%"), b.Info().MinTTL)
	}
}

// The api's own Lock excludes this driver's, and is excluded by it.
func TestTheApisOwnLock(t *testing.T) {
	t.Parallel()
	g, url := single(t)
	c, _ := client(t, g)
	b := open(t, url)
	theirs, err := c.LockOpts(&api.LockOptions{Key: b.Path("k"), Value: []byte("them"), LockTryOnce: true, LockWaitTime: 100 * time.Millisecond, SessionOpts: &api.SessionEntry{TTL: "10s", LockDelay: time.Millisecond}})
	must(t, err)
	lost, err := theirs.Lock(nil)
	must(t, err)
	if _, err := drivertest.Acquire(t, b, drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "held" {
		t.Errorf("a lock of the api's: %v", err)
	}
	granted := drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Minute))
	drivertest.AwaitWaiters(t, b, "k", 1)
	must(t, theirs.Unlock())
	<-lost
	ours := <-granted
	if stop, err := theirs.Lock(nil); stop != nil || err != nil {
		t.Errorf("the api took our lock, or says %v", err)
	}
	drivertest.Renew(t, ours, time.Minute)
	drivertest.Release(t, ours)
	lost, err = theirs.Lock(nil)
	if lost == nil {
		t.Fatalf("the api cannot take a lock that is free: %v", err)
	}
	s, err := b.Lookup(t.Context(), "k")
	must(t, err)
	if len(s.Holders) != 1 || !strings.HasPrefix(s.Holders[0].Owner, "session ") {
		t.Fatalf("the api's lock is seen as %+v", s)
	}
	must(t, b.Break(t.Context(), "k", s.Holders[0]))
	<-lost
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
}

// A lock whose session had a lock-delay is held until that has passed. The leader alone says so, so a
// majority confirms it.
func TestTheLockDelayOfOthers(t *testing.T) {
	t.Parallel()
	g, url := single(t)
	var alone atomic.Bool
	var requests atomic.Int64
	c, err := api.NewClient(&api.Config{Address: g.Addrs()[0], HttpClient: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		requests.Add(1)
		if strings.HasSuffix(r.URL.Path, "/txn") && alone.Load() && !strings.Contains(body(r), `"lock"`) {
			return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("No cluster leader"))}, nil
		}
		return http.DefaultTransport.RoundTrip(r)
	})}})
	must(t, err)
	b, err := consul.New(c, &consul.Options{Path: t.Name()})
	must(t, err)
	defer b.Close() //nolint:errcheck // of a test
	id, _, err := c.Session().Create(&api.SessionEntry{TTL: "10s", Behavior: api.SessionBehaviorDelete, LockDelay: time.Minute}, nil)
	must(t, err)
	_, _, err = c.KV().Acquire(&api.KVPair{Key: open(t, url).Path("k"), Session: id}, nil)
	must(t, err)
	_, err = c.Session().Destroy(id, nil)
	must(t, err)
	if _, err := drivertest.Acquire(t, b, drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "held" {
		t.Errorf("within the lock-delay: %v", err)
	}
	req := drivertest.NewRequest("k", time.Minute)
	req.Wait = true
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	before := requests.Load()
	if _, err := b.Acquire(ctx, req); drivertest.Verdict(err) != "held" {
		t.Errorf("a waiter: %v", err)
	}
	if n := requests.Load() - before; n > 200 { // one try in 50 ms at most
		t.Errorf("a waiter makes %d requests a second", n)
	}
	alone.Store(true)
	if _, err := b.Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "unknown" {
		t.Errorf("by a leader that leads nobody: %v", err)
	}
}

// A key with data of another program is refused, and stays as it is.
func TestDataOfOthersStays(t *testing.T) {
	t.Parallel()
	g, url := single(t)
	c, _ := client(t, g)
	b := open(t, url)
	_, err := c.KV().Put(&api.KVPair{Key: b.Path("k"), Value: []byte("data")}, nil)
	must(t, err)
	if _, err := drivertest.Acquire(t, b, drivertest.NewRequest("k", time.Minute)); !strings.Contains(drivertest.Refusal(err), "another program") {
		t.Errorf("Acquire: %v", err)
	}
	if p, _, err := c.KV().Get(b.Path("k"), nil); err != nil || p == nil || string(p.Value) != "data" {
		t.Errorf("the data are %+v, %v", p, err)
	}
}

// Requests of a lock and its release, beside the api's own Lock in a session that lives on.
func TestRequestsOfAPair(t *testing.T) {
	g := server.Consul(t, 1)
	ours, n := client(t, g)
	b, err := consul.New(ours, nil)
	must(t, err)
	defer b.Close() //nolint:errcheck // of a test
	api1, m := client(t, g)
	id, _, err := api1.Session().Create(&api.SessionEntry{TTL: "60s"}, nil)
	must(t, err)
	theirs, err := api1.LockOpts(&api.LockOptions{Key: "theirs", Session: id})
	must(t, err)
	const rounds = 50
	var took, tookTheirs time.Duration
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Hour)))
	n.sent.Store(0)
	m.sent.Store(0)
	for range rounds {
		from := time.Now()
		drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Hour)))
		took += time.Since(from)
		from = time.Now()
		_, err := theirs.Lock(nil)
		must(t, err)
		must(t, theirs.Unlock())
		tookTheirs += time.Since(from)
	}
	x, y := float64(n.sent.Load())/rounds, float64(m.sent.Load())/rounds
	t.Logf("a pair: %.2f requests and %v, beside %.2f and %v", x, took/rounds, y, tookTheirs/rounds)
	next, err := api1.LockOpts(&api.LockOptions{Key: "theirs", SessionTTL: "60s"})
	must(t, err)
	n.sent.Store(0)
	m.sent.Store(0)
	took, tookTheirs = 0, 0
	const handoffs = 10
	for range handoffs {
		l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Hour))
		waiting := drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Hour))
		drivertest.AwaitWaiters(t, b, "k", 1)
		from := time.Now()
		drivertest.Release(t, l)
		l = <-waiting
		took += time.Since(from)
		drivertest.Release(t, l)
		_, err := theirs.Lock(nil)
		must(t, err)
		got, sent := make(chan error, 1), m.sent.Load()
		go func() { _, err := next.Lock(nil); got <- err }()
		for m.sent.Load() < sent+3 || m.open.Load() == 0 { // it has a session, has looked, and waits
			time.Sleep(time.Millisecond)
		}
		from = time.Now()
		must(t, theirs.Unlock())
		must(t, <-got)
		tookTheirs += time.Since(from)
		must(t, next.Unlock())
	}
	t.Logf("a handoff: %v, beside %v", took/handoffs, tookTheirs/handoffs)
	if x > 0.5*y {
		t.Errorf("a pair is %.2f requests, beside %.2f", x, y)
	}
}

// A thousand waiters for a hundred keys keep one query open, and a release wakes one of them.
func TestManyWaiters(t *testing.T) {
	if testing.Short() {
		t.Skip(long)
	}
	keys, each := 20, 10
	if server.IsDeep() {
		keys = 100
	}
	g := server.Consul(t, 1)
	holder := open(t, "consul://"+g.Addrs()[0]+"?call_timeout=20s")
	c, n := client(t, g)
	b, err := consul.New(c, &consul.Options{CallTimeout: 20 * time.Second})
	must(t, err)
	defer b.Close() //nolint:errcheck // of a test
	var wg sync.WaitGroup
	held := make([]driver.Lease, keys)
	for i := range keys {
		held[i] = drivertest.Grant(t, holder, drivertest.NewRequest(fmt.Sprint("k", i), time.Hour))
		for range each {
			granted := drivertest.Waiter(t, b, drivertest.NewRequest(fmt.Sprint("k", i), time.Hour))
			wg.Go(func() {
				if l := <-granted; l != nil {
					drivertest.Release(t, l)
				}
			})
		}
	}
	for i := range keys {
		drivertest.AwaitWaiters(t, holder, fmt.Sprint("k", i), each)
	}
	n.sent.Store(0)
	from := time.Now()
	time.Sleep(10 * time.Second) // nothing happens
	idle := float64(n.sent.Load()) / time.Since(from).Seconds()
	n.sent.Store(0)
	from = time.Now()
	for _, l := range held {
		drivertest.Release(t, l)
	}
	wg.Wait()
	t.Logf("%d waiters for %d keys: %d open queries, %.2f requests a second while idle, %.2f requests a handoff, %v a handoff",
		keys*each, keys, n.mostOpen.Load(), idle, float64(n.sent.Load())/float64(keys*each), time.Since(from)/time.Duration(keys*each))
	if n.mostOpen.Load() > 1 || idle > 4 || n.sent.Load() > int64(10*keys*each) {
		t.Error("that is too much")
	}
}

// A holder's death, and a session that an operator destroyed, free the lock for the first waiter.
func TestTakeover(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip(long)
	}
	g, url := single(t)
	c, _ := client(t, g)
	b := open(t, url)
	await := func(what string, most time.Duration, end func()) {
		granted := drivertest.Waiter(t, b, drivertest.NewRequest("k", 10*time.Second))
		drivertest.AwaitWaiters(t, b, "k", 1)
		from := time.Now()
		end()
		drivertest.Release(t, <-granted)
		t.Logf("%s: %v", what, time.Since(from))
		if time.Since(from) > most {
			t.Errorf("%s: the takeover took %v", what, time.Since(from))
		}
	}
	other := open(t, url)
	l := drivertest.Grant(t, other, drivertest.NewRequest("k", 10*time.Second))
	await("a destroyed session", 20*time.Second, func() {
		p, _, err := c.KV().Get(b.Path("k"), nil)
		must(t, err)
		_, err = c.Session().Destroy(p.Session, nil)
		must(t, err)
	})
	if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: 10 * time.Second}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew: %v", err)
	}
	drivertest.Release(t, drivertest.Grant(t, other, drivertest.NewRequest("k", 10*time.Second))) // in a new session
	server.Deep(t)
	p, err := redlocktest.StartClient(url)
	must(t, err)
	_, err = p.Acquire(t.Context(), drivertest.NewRequest("k", 10*time.Second))
	must(t, err)
	await("a killed holder, TTL 10 s", time.Minute, func() { p.Kill() })
}

// What a server refuses for good is a refusal that says what to do; the token is the URL's or the
// environment's, and is in no error.
func TestServersThatRefuse(t *testing.T) {
	const token = "5ec4e700-0000-4000-8000-000000000000"
	g := server.Consul(t, 1, server.WithPassword(token))
	addr := g.Addrs()[0]
	for url, says := range map[string]string{
		"consul://" + addr:            "lacks a permission",
		"consul://u:bad5ec4e@" + addr: "lacks a permission",
		"consul://u:" + token + "@" + addr + "?session_ttl_min=1s": "session_ttl_min",
	} {
		b := open(t, url)
		_, err := drivertest.Acquire(t, b, drivertest.NewRequest("k", b.Info().MinTTL))
		if !strings.Contains(drivertest.Refusal(err), says) || strings.Contains(fmt.Sprint(err, b), "5ec4e") {
			t.Errorf("%s: %v", url, err)
		}
		found, err := b.Check(t.Context())
		if err != nil || len(found) == 0 || found[0].Code != "refused" {
			t.Errorf("%s: Check finds %+v, %v", url, found, err)
		}
	}
	for _, url := range []string{"consul://u:" + token + "@" + addr + "?dc=dc1", "consul://" + addr} {
		b := open(t, url)
		drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
		drivertest.AwaitFinding(t, b, "few-members")
		t.Setenv("CONSUL_HTTP_TOKEN", token)
	}
}

// Servers that are too old are refused by name.
func TestOldServers(t *testing.T) {
	t.Parallel()
	g, _ := single(t)
	c, err := api.NewClient(&api.Config{Address: g.Addrs()[0], HttpClient: &http.Client{Transport: old}})
	must(t, err)
	b, err := consul.New(c, &consul.Options{Path: t.Name()})
	must(t, err)
	defer b.Close() //nolint:errcheck // of a test
	if _, err := drivertest.Acquire(t, b, drivertest.NewRequest("k", time.Minute)); !strings.Contains(drivertest.Refusal(err), "older than Consul 1.14") {
		t.Errorf("Acquire: %v", err)
	}
	if d := drivertest.AwaitFinding(t, b, "refused"); !strings.Contains(d.Summary, "older than Consul 1.14") {
		t.Errorf("Check finds %+v", d)
	}
}

// TLS is asked for by the scheme.
func TestTLS(t *testing.T) {
	t.Parallel()
	g := server.Consul(t, 1, server.WithClientCerts())
	s := g.Nodes[0]
	cert, key := s.ClientCert()
	b := open(t, fmt.Sprintf("%s/a/b?ca=%s&cert=%s&key=%s", s.URL(), s.CAFile(), cert, key))
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
	if _, err := open(t, s.URL()).Acquire(t.Context(), drivertest.NewRequest("k", time.Minute)); drivertest.Verdict(err) != "unknown" {
		t.Errorf("without the authority: %v", err)
	}
}

// What another program writes into a lock, or below the queue, keeps nobody from freeing it.
func TestStrangersWriteIntoALock(t *testing.T) {
	t.Parallel()
	g, url := single(t)
	c, _ := client(t, g)
	b := open(t, url)
	l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
	for _, key := range []string{b.Path("k"), t.Name() + "/.dlock/q/k/", t.Name() + "/.dlock/q/k/junk"} {
		_, err := c.KV().Put(&api.KVPair{Key: key, Value: []byte("junk")}, nil)
		must(t, err)
	}
	granted := drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Minute))
	drivertest.AwaitWaiters(t, b, "k", 1)
	drivertest.Renew(t, l, time.Minute)
	drivertest.Release(t, l)
	drivertest.Release(t, <-granted)
	drivertest.Release(t, drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute)))
}

// A waiter whose place was removed, though it lives, takes the lock all the same.
func TestARemovedWaiterComesAgain(t *testing.T) {
	t.Parallel()
	g, url := single(t)
	c, _ := client(t, g)
	b := open(t, url)
	l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
	granted := drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Minute))
	drivertest.AwaitWaiters(t, b, "k", 1)
	_, err := c.KV().DeleteTree(t.Name()+"/.dlock/q/", nil)
	must(t, err)
	drivertest.Release(t, l)
	drivertest.Release(t, <-granted)
}

// What is stored is gone with the locks and waiters, but for the base of the tokens.
func TestNothingIsLeft(t *testing.T) {
	t.Parallel()
	g := server.Consul(t, 1)
	c, _ := client(t, g)
	b := open(t, "consul://"+g.Addrs()[0])
	l := drivertest.Grant(t, b, drivertest.NewRequest("k", time.Minute))
	for range 3 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		req := drivertest.NewRequest("k", time.Minute)
		req.Wait = true
		if _, err := b.Acquire(ctx, req); !errors.Is(err, driver.ErrHeld) && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		cancel()
	}
	granted := drivertest.Waiter(t, b, drivertest.NewRequest("k", time.Minute))
	drivertest.AwaitWaiters(t, b, "k", 1)
	drivertest.Release(t, l)
	drivertest.Release(t, <-granted)
	must(t, b.Close())
	keys, _, err := c.KV().Keys("dlock/", "", nil)
	must(t, err)
	sessions, _, err := c.Session().List(nil)
	must(t, err)
	if len(keys) != 1 || len(sessions) != 0 {
		t.Errorf("left: %v, and %d sessions", keys, len(sessions))
	}
}

// Waiters that leave while their lock is given to them leave nothing.
func TestWaitersThatLeave(t *testing.T) {
	t.Parallel()
	_, url := single(t)
	b := open(t, url)
	for range 20 {
		req := drivertest.NewRequest("k", time.Minute)
		req.Wait = true // until all of the round before are undone
		l := drivertest.Grant(t, b, req)
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(3*i)*time.Millisecond)
				defer cancel()
				req := drivertest.NewRequest("k", time.Minute)
				req.Wait = true
				if l, err := b.Acquire(ctx, req); err == nil {
					drivertest.Release(t, l)
				}
			})
		}
		time.Sleep(10 * time.Millisecond)
		drivertest.Release(t, l)
		wg.Wait()
	}
}

// A leader that was just elected may not know a session yet: neither an attempt that has got the lock
// in it without an answer nor a lease takes it for ended.
func TestALeaderThatDoesNotKnowTheSession(t *testing.T) {
	t.Parallel()
	g, _ := single(t)
	var lost, denied atomic.Bool
	var once sync.Once
	told := make(chan struct{})
	c, err := api.NewClient(&api.Config{Address: g.Addrs()[0], HttpClient: &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if strings.HasPrefix(r.URL.Path, "/v1/session/renew/") && lost.Load() && denied.CompareAndSwap(false, true) {
			once.Do(func() { close(told) })
			return &http.Response{StatusCode: http.StatusNotFound, Header: http.Header{}, Body: http.NoBody}, nil
		}
		takes := strings.Contains(body(r), `"lock"`)
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err == nil && takes && lost.CompareAndSwap(false, true) {
			<-told
			return nil, errors.Join(io.ErrUnexpectedEOF, answer.Body.Close())
		}
		return answer, err
	})}})
	must(t, err)
	b, err := consul.New(c, &consul.Options{Path: t.Name(), CallTimeout: 5 * time.Second})
	must(t, err)
	defer b.Close() //nolint:errcheck // of a test
	req := drivertest.NewRequest("k", 30*time.Second)
	req.Wait = true
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second) // the session lives for longer
	defer cancel()
	l, err := b.Acquire(ctx, req)
	must(t, err)
	denied.Store(false)
	time.Sleep(1600 * time.Millisecond) // a renewal within a twentieth of the TTL asks for none
	drivertest.Renew(t, l, 30*time.Second)
	if !denied.Load() {
		t.Error("nothing asked for the session")
	}
	drivertest.Release(t, l)
}
