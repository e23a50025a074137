package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func (s *suite) ways(t *testing.T) {
	open := func(name, dsn string) {
		t.Run(name, func(t *testing.T) {
			b := s.open(t, dsn)
			unlock(t, s.lock(t, b, "k", time.Minute))
			if shown := fmt.Sprint(b); strings.Contains(shown, canary) {
				t.Errorf("the password is in %q", shown)
			}
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			drained(watch(t, ctx, b, "k"))
		})
	}
	// A user needs these rights, and no more.
	const least = " +eval +evalsha +time +set +get +del +pexpire +pttl"
	plain := server.StartFor(t, s.kind, server.WithPassword("p@ss/w?rd#%"), server.WithUser("app on >"+canary+" resetkeys ~app:* resetchannels &app:*"+least))
	open("password", s.Scheme+"://:"+url.QueryEscape("p@ss/w?rd#%")+"@"+plain.Addr())
	t.Run("least rights", func(t *testing.T) {
		b := s.openWith(t, &driver.Config{DSN: s.Scheme + "://app:" + canary + "@" + plain.Addr(), Prefix: "app:"})
		l := s.lock(t, b, "k", time.Minute)
		if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: time.Minute}); err != nil {
			t.Errorf("Renew: %v", err)
		}
		if _, err := b.(driver.Watcher).Watch(t.Context(), "k"); !errors.Is(err, driver.ErrRefused) {
			t.Errorf("Watch: %v", err)
		}
		unlock(t, l)
	})
	sock := server.StartFor(t, s.kind, server.WithUnixOnly())
	open("unix socket", s.Scheme+"+unix://"+sock.Socket()+"?db=1")
	secure := server.StartFor(t, s.kind, server.WithClientCerts(), server.WithPassword(canary))
	cert, key := secure.ClientCert()
	q := "?ca=" + url.QueryEscape(secure.CAFile()) + "&cert=" + url.QueryEscape(cert) + "&key=" + url.QueryEscape(key)
	open("TLS", s.Scheme+"s://:"+canary+"@"+secure.Addr()+"/0"+q)
	t.Run("TLS without the authority", func(t *testing.T) {
		b := s.open(t, s.Scheme+"s://:"+canary+"@"+secure.Addr())
		_, err := b.Acquire(context.Background(), s.ask("k", time.Minute))
		if err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "certificate") || strings.Contains(err.Error(), canary) {
			t.Errorf("an unknown authority: %v", err)
		}
	})
}

// waitReplicas: a lock that no replica has confirmed is not granted, and is released.
func (s *suite) waitReplicas(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	replica := server.StartFor(t, s.kind, server.WithReplicaOf(srv))
	b := s.open(t, s.url(srv.Addr(), "?wait_replicas=1&call_timeout=2s"))
	var l driver.Lease
	eventually(t, func() (err error) { // succeeds once the replica follows
		l, err = b.Acquire(context.Background(), s.ask("k", time.Minute))
		return err
	})
	reader := drivertest.Grant(t, b, s.reads("readers"))
	if n, err := replica.Do("EXISTS", "k", "readers", "redlock1:readers:{readers}"); err != nil || n != int64(3) {
		t.Errorf("the replica has %v of a lock, and the mark and the set of a reader: %v", n, err)
	}
	if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: time.Minute}); err != nil {
		t.Errorf("Renew: %v", err)
	}
	drivertest.Must(t, replica.Pause())
	if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: time.Minute}); err == nil || errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew while the replica hangs: %v", err)
	}
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			tries := 0
			err := answered(t, func() (driver.Lease, error) {
				tries++
				req := s.reads(fmt.Sprintf("n%d/%d", i, tries))
				if i > 0 {
					req.Mode = driver.Exclusive
				}
				return b.Acquire(context.Background(), req)
			})
			var refused *driver.RefusedError
			if !errors.As(err, &refused) || refused.RetryAfter == 0 || !strings.Contains(err.Error(), "0 of 1 replicas") {
				t.Errorf("Acquire while the replica hangs: %v", err)
			}
		})
	}
	wg.Wait()
	unlock(t, l)
	unlock(t, reader)
	noLocks(t, srv)
	drivertest.Must(t, replica.Resume())
}

// linkedCluster starts a Cluster and waits until all nodes are connected with each other;
// before that they lose messages.
func linkedCluster(t testing.TB, kind server.Kind, options ...server.Option) *server.Group {
	g := server.Cluster(t, kind, options...)
	eventually(t, func() error {
		for _, n := range g.Nodes {
			nodes, err := n.Do("CLUSTER", "NODES")
			if err != nil {
				return err
			}
			if strings.Count(fmt.Sprint(nodes), " connected") < len(g.Nodes) {
				return fmt.Errorf("a node is not connected with all others: %v", nodes)
			}
		}
		return nil
	})
	return g
}

// published returns how many pub/sub messages a node of a Cluster has forwarded to others.
func published(t testing.TB, node *server.Server) (n int) {
	t.Helper()
	info, err := node.Do("CLUSTER", "INFO")
	drivertest.Must(t, err)
	if _, rest, found := strings.Cut(fmt.Sprint(info), "cluster_stats_messages_publish_sent:"); found {
		if _, err := fmt.Sscan(rest, &n); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (s *suite) cluster(t *testing.T) {
	g := linkedCluster(t, s.kind)
	dsn := s.url(strings.Join(g.Addrs(), ","), "?topology=cluster")
	b, other := s.open(t, dsn), s.open(t, dsn)
	servers := map[string]bool{}
	for i := range 18 {
		key := [...]string{"plain%d", "{tag}%d", "a{%d", "b}%d", "{}c%d", "d}{%d}"}[i%6]
		key = fmt.Sprintf(key, i)
		l := s.lock(t, b, key, time.Minute)
		servers[l.Grant().Server] = true
		wake := watch(t, t.Context(), other, key) // on the server of the key's slot
		var held *driver.HeldError
		if _, err := other.Acquire(context.Background(), s.ask(key, time.Minute)); !errors.As(err, &held) || held.PollAfter < 10*time.Second {
			t.Errorf("%q, held for a minute: %v", key, err)
		}
		if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: time.Minute, MinFence: l.Grant().Fence + 5}); err != nil {
			t.Errorf("Renew %q: %v", key, err)
		}
		unlock(t, l)
		awake(t, wake)
		next := s.lock(t, other, key, time.Minute)
		if next.Grant().Fence <= l.Grant().Fence+5 {
			t.Errorf("%q: token %d follows a counter at %d", key, next.Grant().Fence, l.Grant().Fence+5)
		}
		unlock(t, next)
		first, second := drivertest.Grant(t, b, s.reads(key)), drivertest.Grant(t, other, s.reads(key))
		drivertest.Renew(t, first, time.Minute)
		unlock(t, first)
		unlock(t, second)
	}
	if len(servers) != 3 {
		t.Errorf("the grants name %d servers, want 3", len(servers))
	}
	total := func(of func(testing.TB, *server.Server) int) (n int) {
		for _, node := range g.Nodes {
			n += of(t, node)
		}
		return n
	}
	scripts := func(t testing.TB, node *server.Server) int { return calls(t, node, "evalsha", "eval") }
	told := total(published) // over the nodes' bus
	var cost [100]int
	for i, before := 0, total(scripts); i < len(cost); i++ { // keys of slots that were never used
		unlock(t, s.lock(t, b, fmt.Sprintf("cold%d", i), time.Minute))
		cost[i], before = total(scripts)-before, total(scripts)
	}
	// The first locks show which server has which slots, and an answer that comes late is asked for again.
	slices.Sort(cost[:])
	if half := cost[len(cost)/2]; half > 2 {
		t.Errorf("half of %d locks in slots that were never used cost at least %d scripts", len(cost), half)
	}
	if told = total(published) - told; told > 0 {
		t.Errorf("%d releases without waiters were announced to other nodes %d times", len(cost), told)
	}
	findings, err := b.(driver.Inspector).Check(context.Background())
	if err != nil || len(findings) < 3 {
		t.Errorf("Check of a Cluster: %v, %v", findings, err)
	}
}

// patient asks again if a busy machine gave no answer in time.
type patient struct{ driver.Inspector }

func (p patient) Lookup(ctx context.Context, key string) (st *driver.State, err error) {
	for end := time.Now().Add(30 * time.Second); ; {
		st, err = p.Inspector.Lookup(ctx, key)
		if !errors.Is(err, context.DeadlineExceeded) || time.Now().After(end) {
			return st, err
		}
	}
}

func (s *suite) inspector(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	b := s.open(t, s.url(srv.Addr(), ""))
	in := patient{b.(driver.Inspector)}
	var fences []uint64
	for i := range 3 {
		fences = append(fences, s.lock(t, b, fmt.Sprintf("job[%d]", i), time.Minute).Grant().Fence)
	}
	for _, cmd := range [][]string{
		{"SET", "job[x]", "some value", "PX", "60000"}, {"HSET", "job[h]", "a", "b"}, {"SET", "job[kept]", "redlock1:next|1|x.1.30", "PX", "60000"},
		{"EVAL", "for i = 1, 20000 do redis.call('SET', 'job[y' .. i, 'v', 'PX', 600000) end", "0"},
	} {
		do(t, srv, cmd...)
	}
	// A lock that is reserved for a waiter is not free, and the waiters are counted.
	waiter := s.open(t, s.url(srv.Addr(), ""))
	watch(t, t.Context(), waiter, "job[2]")
	if _, err := waiter.Acquire(context.Background(), s.ask("job[2]", time.Minute)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("a held lock: %v", err)
	}
	if st, err := in.Lookup(context.Background(), "job[kept]"); err != nil || st.ReservedFor <= 30*time.Second || len(st.Holders) != 0 {
		t.Errorf("a lock that is kept for a waiter: %+v, %v", st, err)
	}
	// Keys of other programs cost only the server's own scan.
	before, got := calls(t, srv, "evalsha"), map[string]uint64{}
	if err := in.List(context.Background(), "job[", func(st *driver.State) bool {
		got[st.Key] = st.Holders[0].Fence
		return true
	}); err != nil || len(got) != 3 || got["job[1]"] != fences[1] {
		t.Errorf("List yields %v, want the tokens %v: %v", got, fences, err)
	}
	if n := calls(t, srv, "evalsha") - before; n > 10 {
		t.Errorf("List ran %d scripts for 3 locks", n)
	}
}

// With the rights that the package docs name, no server logs a denial.
const (
	rights        = "+eval +evalsha +time +info +get +mget +exists +set +del +pexpire +pttl +zadd +zpopmin +zrem +zrange +zcount +getrange +publish +subscribe +unsubscribe +ping +select"
	rightsCluster = "+cluster|slots +cluster|shards +command +role"
	rightsPrimary = "+role" // behind Sentinel
	rightsGuard   = "+multi +exec +script|load"
	rightsInspect = "+scan +config|get +acl|whoami"
)

// allRights: a user with the rights that the documentation names is denied nothing.
func (s *suite) allRights(t *testing.T) {
	user := func(more string) server.Option {
		return server.WithUser("app on >" + canary + " resetkeys ~app:* resetchannels &app:* " + rights + " " + more)
	}
	use := func(t *testing.T, dsn string, servers []*server.Server) {
		b := s.openWith(t, &driver.Config{DSN: s.Scheme + "://app:" + canary + "@" + dsn, Prefix: "app:"})
		other := s.openWith(t, &driver.Config{DSN: s.Scheme + "://app:" + canary + "@" + dsn, Prefix: "app:"})
		for i := range 100 {
			key := fmt.Sprintf("k%d", i%10)
			l := s.lock(t, b, key, 20*time.Second)
			if i%10 == 0 {
				ctx, cancel := context.WithCancel(context.Background())
				wake := watch(t, ctx, other, key)
				if _, err := other.Acquire(context.Background(), s.ask(key, 20*time.Second)); !errors.Is(err, driver.ErrHeld) {
					t.Errorf("Acquire of a held lock: %v", err)
				}
				if _, err := l.Renew(context.Background(), &driver.Renewal{TTL: 20 * time.Second}); err != nil {
					t.Errorf("Renew: %v", err)
				}
				unlock(t, l)
				select {
				case <-wake:
				case <-time.After(time.Second): // the nodes of a new Cluster may lose a message
				}
				l = s.lock(t, other, key, 20*time.Second)
				cancel()
			}
			eventually(t, func() error {
				_, err := b.(driver.Inspector).Lookup(context.Background(), key)
				return err
			})
			unlock(t, l)
			req := s.ask(key, 20*time.Second)
			req.Mode = driver.Shared
			reader := drivertest.Grant(t, b, req)
			drivertest.Renew(t, reader, 20*time.Second)
			unlock(t, reader)
		}
		var wg sync.WaitGroup // enough concurrent calls to be gathered
		for i := range 32 {
			wg.Go(func() {
				for range 20 {
					l, err := b.Acquire(context.Background(), s.ask(fmt.Sprintf("g%d", i), 20*time.Second))
					if err == nil {
						err = l.Release(context.Background())
					}
					if err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		for _, srv := range servers {
			log, err := srv.Do("ACL", "LOG")
			drivertest.Must(t, err)
			for _, entry := range log.([]any) {
				if said := fmt.Sprint(entry); strings.Contains(said, "username app") {
					t.Errorf("a denial: %v", said)
				}
			}
		}
	}
	doc, err := os.ReadFile("../../goredis/doc.go") // package valkeygo refers to it
	drivertest.Must(t, err)
	for _, word := range strings.Fields(strings.Join([]string{rights, rightsCluster, rightsPrimary, rightsGuard, rightsInspect}, " ")) {
		if !strings.Contains(string(doc), " "+word) && !strings.Contains(string(doc), "\t"+word) {
			t.Errorf("the right %s is not in the package's documentation", word)
		}
	}
	for _, word := range strings.Fields("acl bgrewriteaof bgsave client cluster command config debug failover lastsave migrate module monitor object psync replicaof role save shutdown slaveof sync") {
		if strings.Contains(" "+rights+" "+rightsGuard, " +"+word) {
			t.Errorf("locks need the right to %s, which managed services refuse: see the table of package redlock", word)
		}
	}
	t.Run("single", func(t *testing.T) {
		srv := server.StartFor(t, s.kind, user(""))
		use(t, srv.Addr(), []*server.Server{srv})
	})
	t.Run("another database", func(t *testing.T) {
		srv := server.StartFor(t, s.kind, user(rightsGuard))
		use(t, srv.Addr()+"/3?restart_guard=30s&bootstrap=true", []*server.Server{srv})
	})
	t.Run("inspection", func(t *testing.T) {
		srv := server.StartFor(t, s.kind, user(rightsInspect))
		b := s.openWith(t, &driver.Config{DSN: s.Scheme + "://app:" + canary + "@" + srv.Addr(), Prefix: "app:"})
		s.lock(t, b, "k", time.Minute)
		found := 0
		if err := b.(driver.Inspector).List(context.Background(), "", func(*driver.State) bool { found++; return true }); err != nil || found != 1 {
			t.Errorf("List finds %d locks, %v", found, err)
		}
		if _, err := b.(driver.Inspector).Check(context.Background()); err != nil {
			t.Errorf("Check: %v", err)
		}
		use(t, srv.Addr(), []*server.Server{srv})
	})
	t.Run("Sentinel", func(t *testing.T) {
		t.Parallel()
		g := server.Sentinel(t, s.kind, user(rightsPrimary))
		use(t, strings.Join(g.Addrs(), ",")+"/0?topology=sentinel&master="+g.Name, g.Nodes)
	})
	t.Run("Cluster", func(t *testing.T) {
		t.Parallel()
		g := linkedCluster(t, s.kind, user(rightsCluster))
		use(t, strings.Join(g.Addrs(), ",")+"?topology=cluster", g.Nodes)
	})
}
