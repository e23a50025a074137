package nodetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A deployment has one primary for a key, and another after a failover.
type deployment struct {
	dsn     string
	key     string
	primary *server.Server
	// promote makes another server the primary where nobody else does; flip does so while
	// the old one is well.
	promote, flip func() error
	// next returns the new primary once it serves.
	next func(context.Context) (*server.Server, error)
}

// failovers: what ends with its primary goes on with the next one soon after that serves,
// and no lease is lost that had time left.
func (s *suite) failovers(t *testing.T) {
	for name, deploy := range map[string]func(*testing.T) *deployment{
		"Sentinel": s.bySentinel, "Cluster": s.byCluster, "one address": s.byAddress,
	} {
		for fault, begin := range map[string]func(*deployment) error{
			"kill": func(d *deployment) error { return errors.Join(d.primary.Kill(), d.promote()) },
			"stop": func(d *deployment) error { return errors.Join(d.primary.Pause(), d.promote()) },
			"flip": func(d *deployment) error { return d.flip() },
		} {
			if testing.Short() && fault != "flip" {
				continue
			}
			t.Run(name+", "+fault, func(t *testing.T) {
				t.Parallel()
				s.failover(t, deploy(t), begin)
			})
		}
	}
}

func (s *suite) failover(t *testing.T, d *deployment, begin func(*deployment) error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	b := s.open(t, s.Scheme+"://"+d.dsn+"call_timeout=1s&dial_timeout=1s")
	s.warm(t, b)
	const ttl = 20 * time.Second
	held := s.lockSoon(t, b, d.key, ttl)
	eventually(t, func() error { // its replicas have it, as they have any lock that is not brand new
		return followed(d.primary)
	})

	old := held.Grant().Server
	soonest := func(try func() (server string, err error)) <-chan time.Time {
		done := make(chan time.Time, 1)
		go func() {
			for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
				if id, err := try(); err == nil && id != old {
					done <- time.Now()
					return
				}
			}
		}()
		return done
	}
	fault := time.Now()
	granted := soonest(func() (string, error) {
		l, err := b.Acquire(ctx, s.ask(d.key+fmt.Sprint(s.owner.Add(1)), ttl))
		if err != nil {
			return "", err
		}
		_ = l.Release(ctx)
		return l.Grant().Server, nil
	})
	renewed := soonest(func() (string, error) {
		g, err := held.Renew(ctx, &driver.Renewal{TTL: ttl})
		if left := time.Until(held.Grant().Expires); errors.Is(err, driver.ErrLost) && left > 0 {
			t.Errorf("the lease is lost %v before its end", left)
			return "", nil
		}
		return g.Server, err
	})
	if err := begin(d); err != nil {
		t.Fatal(err)
	}
	if _, err := d.next(ctx); err != nil {
		t.Fatal(err)
	}
	served := time.Now()
	after := func(what string, done <-chan time.Time) time.Duration {
		select {
		case at := <-done:
			return at.Sub(served).Round(time.Millisecond)
		case <-ctx.Done():
			t.Fatalf("nothing is %s by the next primary", what)
			return 0
		}
	}
	first, kept := after("granted", granted), after("renewed", renewed)
	t.Logf("the next primary serves after %v; a lock is granted %v and a lease renewed %v after that", served.Sub(fault).Round(time.Millisecond), first, kept)
	if most := 10 * time.Second; first > most || kept > most {
		t.Errorf("the next primary serves, and grants nothing for %v and renews nothing for %v", first, kept)
	}
}

// followed returns an error until all replicas of a primary have what it wrote.
func followed(primary *server.Server) error {
	reply, err := primary.Do("INFO", "replication")
	if err != nil {
		return err
	}
	info := fmt.Sprint(reply)
	_, rest, _ := strings.Cut(info, "master_repl_offset:")
	offset, _, _ := strings.Cut(rest, "\r\n")
	replicas, online := 0, 0
	for line := range strings.Lines(info) {
		if strings.HasPrefix(line, "slave") {
			replicas++
			if strings.Contains(line, "state=online,offset="+offset+",") {
				online++
			}
		}
	}
	if replicas == 0 || online < replicas {
		return fmt.Errorf("%d of %d replicas have everything: %s", online, replicas, info)
	}
	return nil
}

func (s *suite) bySentinel(t *testing.T) *deployment {
	g := server.Sentinel(t, s.kind)
	old, err := g.Primary(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return &deployment{
		dsn: strings.Join(g.Addrs(), ",") + "/0?topology=sentinel&master=" + g.Name + "&", key: "k", primary: old,
		promote: func() error { return nil },
		flip:    func() error { _, err := g.Sentinels[0].Do("SENTINEL", "FAILOVER", g.Name); return err },
		next:    func(ctx context.Context) (*server.Server, error) { return g.AwaitFailover(ctx, old) },
	}
}

// byCluster is a Cluster of three primaries, the first of which has a replica.
func (s *suite) byCluster(t *testing.T) *deployment {
	g := linkedCluster(t, s.kind)
	old, replica := g.Nodes[0], server.StartFor(t, s.kind, server.WithCluster())
	host, port, err := net.SplitHostPort(old.Addr())
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := old.Do("CLUSTER", "NODES")
	if err != nil {
		t.Fatal(err)
	}
	var id, bus string
	for line := range strings.Lines(fmt.Sprint(nodes)) {
		if strings.Contains(line, "myself") {
			words := strings.Fields(line)
			id = words[0]
			_, bus, _ = strings.Cut(strings.SplitN(words[1], ",", 2)[0], "@")
		}
	}
	if _, err := replica.Do("CLUSTER", "MEET", host, port, bus); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := replica.Do("CLUSTER", "REPLICATE", id)
		return err
	})
	role := func(srv *server.Server) string {
		reply, err := srv.Do("ROLE")
		if err != nil {
			return ""
		}
		return fmt.Sprint(reply)
	}
	eventually(t, func() error { // it follows, and all know it
		for _, n := range g.Nodes {
			if list, err := n.Do("CLUSTER", "NODES"); err != nil || !strings.Contains(fmt.Sprint(list), "slave "+id) {
				return fmt.Errorf("a node does not know the replica: %w", err)
			}
		}
		if !strings.Contains(role(replica), "connected") {
			return errors.New("the replica does not follow")
		}
		return nil
	})
	return &deployment{
		dsn: strings.Join(g.Addrs(), ",") + "?topology=cluster&", key: "{7}k", primary: old, // slot 1,716: the first node's
		promote: func() error { return nil },
		flip:    func() error { _, err := replica.Do("CLUSTER", "FAILOVER"); return err },
		next: func(ctx context.Context) (*server.Server, error) {
			for tick := time.NewTicker(10 * time.Millisecond); ; {
				if _, err := replica.Do("SET", "{7}probe", "x", "PX", "1"); err == nil && strings.Contains(role(replica), "master") {
					return replica, nil
				}
				select {
				case <-tick.C:
				case <-ctx.Done():
					return nil, errors.New("the replica is not promoted")
				}
			}
		},
	}
}

// byAddress is a primary behind an address that is moved, as managed services do it.
func (s *suite) byAddress(t *testing.T) *deployment {
	old := server.StartFor(t, s.kind)
	replica := server.StartFor(t, s.kind, server.WithReplicaOf(old))
	eventually(t, func() error {
		if reply, err := replica.Do("ROLE"); err != nil || !strings.Contains(fmt.Sprint(reply), "connected") {
			return fmt.Errorf("the replica does not follow: %v, %w", reply, err)
		}
		return nil
	})
	a := newAddress(t, old.Addr())
	promote := func() error {
		_, err := replica.Do("REPLICAOF", "NO", "ONE")
		a.point(replica.Addr())
		return err
	}
	return &deployment{
		dsn: a.listener.Addr().String() + "?", key: "k", primary: old,
		promote: func() error { // what manages the address has to notice first
			<-time.After(2 * time.Second)
			return promote()
		},
		flip: func() error {
			if err := promote(); err != nil {
				return err
			}
			host, port, _ := net.SplitHostPort(replica.Addr())
			_, err := old.Do("REPLICAOF", host, port)
			return err
		},
		next: func(context.Context) (*server.Server, error) { return replica, nil },
	}
}

// An address passes connections on to a server. Connections that there are stay where they
// are when it is pointed elsewhere.
type address struct {
	listener net.Listener
	mu       sync.Mutex
	target   string
}

func newAddress(t *testing.T, target string) *address {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	a := &address{listener: l, target: target}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go a.pass(c)
		}
	}()
	return a
}

func (a *address) point(target string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.target = target
}

func (a *address) pass(c net.Conn) {
	defer func() { _ = c.Close() }()
	a.mu.Lock()
	target := a.target
	a.mu.Unlock()
	to, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	defer func() { _ = to.Close() }()
	go func() {
		_, _ = io.Copy(to, c)
		_ = to.Close()
	}()
	_, _ = io.Copy(c, to)
}
