package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A deployment has one primary for a key, and another one after a failover.
type deployment struct {
	dsn     string
	key     string
	primary *server.Server
	// promote makes another server the primary if nothing else does; flip does it while the old
	// primary is healthy.
	promote, flip func() error
	// next returns the new primary when it serves.
	next func(context.Context) (*server.Server, error)
	// again reports whether the first primary is the primary again; nil: that cannot happen.
	again func(context.Context) bool
}

// faults are the ways in which a primary fails.
var faults = map[string]func(*deployment) error{
	"kill": func(d *deployment) error { return errors.Join(d.primary.Kill(), d.promote()) },
	"stop": func(d *deployment) error { return errors.Join(d.primary.Pause(), d.promote()) },
	"flip": func(d *deployment) error { return d.flip() },
}

func (s *suite) deployments() map[string]func(*testing.T) *deployment {
	return map[string]func(*testing.T) *deployment{"Sentinel": s.bySentinel, "Cluster": s.byCluster, "one address": s.byAddress}
}

// failovers: calls that fail with their primary succeed soon after the next primary serves, and
// no lease with time left is lost.
func (s *suite) failovers(t *testing.T) {
	for name, deploy := range s.deployments() {
		for how, begin := range faults {
			t.Run(name+", "+how, func(t *testing.T) {
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
	held := s.lock(t, b, d.key, ttl)
	reader := drivertest.Grant(t, b, s.reads(d.key+"read"))
	eventually(t, func() error { // its replicas have the lock, like any lock that is not brand new
		return followed(d.primary)
	})

	old := held.Grant().Server
	type success struct{ at, last time.Time } // a grant by the next primary, and the last one by the old
	soonest := func(try func() (server string, err error)) chan success {
		done := make(chan success, 1)
		go func() {
			var last time.Time
			for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
				switch id, err := try(); {
				case err != nil:
				case id != old:
					done <- success{time.Now(), last}
					return
				default:
					last = time.Now()
				}
			}
		}()
		return done
	}
	failed := time.Now()
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
		if errors.Is(err, driver.ErrLost) { // a failover may take longer than the TTL
			if left := time.Until(held.Grant().Expires); left > 0 {
				t.Errorf("the lease is lost %v before its end", left)
			}
			return "", nil
		}
		return g.Server, err
	})
	drivertest.Must(t, begin(d))
	if _, err := d.next(ctx); err != nil {
		t.Fatal(err)
	}
	served := time.Now()
	after := func(what string, done chan success) time.Duration {
		select {
		case s := <-done: // if the old primary still serves there is no outage
			return max(0, min(s.at.Sub(served), s.at.Sub(s.last))).Round(time.Millisecond)
		case <-ctx.Done():
			if d.again != nil && d.again(t.Context()) {
				t.Skip("a busy machine looked like a failure of the next primary: the first one serves again")
			}
			t.Fatalf("nothing is %s by the next primary", what)
			return 0
		}
	}
	first, kept := after("granted", granted), after("renewed", renewed)
	t.Logf("the next primary serves after %v; a lock is granted %v and a lease renewed %v after that", served.Sub(failed).Round(time.Millisecond), first, kept)
	if first > ttl || kept > ttl {
		t.Errorf("the next primary serves, and for longer than a TTL it grants nothing (%v) or renews nothing (%v)", first, kept)
	}
	eventually(t, func() error { // it has the reader, too, or says that it is lost
		_, err := reader.Renew(ctx, &driver.Renewal{TTL: time.Minute})
		if !errors.Is(err, driver.ErrLost) {
			return err
		}
		if left := time.Until(reader.Grant().Expires); left > 0 {
			t.Errorf("the reader is lost %v before its end", left)
		}
		return nil
	})
}

// followed returns an error until all replicas of a primary have its writes.
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
	drivertest.Must(t, err)
	flip := func() error {
		_, err := g.Sentinels[0].Do("SENTINEL", "FAILOVER", g.Name)
		if err != nil && strings.Contains(err.Error(), "INPROG") {
			return nil
		}
		return err
	}
	return &deployment{
		dsn: strings.Join(g.Addrs(), ",") + "/0?topology=sentinel&master=" + g.Name + "&", key: "k", primary: old,
		promote: func() error { return nil },
		flip:    func() error { eventually(t, flip); return nil }, // refused while a replica looks as if it lagged
		next: func(ctx context.Context) (*server.Server, error) {
			for {
				patience, cancel := context.WithTimeout(ctx, 20*time.Second)
				next, err := g.AwaitFailover(patience, old)
				cancel()
				if err == nil || ctx.Err() != nil {
					return next, err
				}
				_ = flip() // on a busy machine the sentinels may have given up
			}
		},
		again: func(ctx context.Context) bool { p, err := g.Primary(ctx); return err == nil && p == old },
	}
}

// byCluster is a Cluster of three primaries, the first of which has a replica.
func (s *suite) byCluster(t *testing.T) *deployment {
	g := linkedCluster(t, s.kind)
	old, replica := g.Nodes[0], server.StartFor(t, s.kind, server.WithCluster())
	host, port, err := net.SplitHostPort(old.Addr())
	drivertest.Must(t, err)
	id, bus := meeting(t, old)
	do(t, replica, "CLUSTER", "MEET", host, port, bus)
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
	eventually(t, func() error { // it follows the primary, and all nodes know this
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

// meeting returns the name of a Cluster's node, and the port on which others meet it.
func meeting(t *testing.T, node *server.Server) (id, bus string) {
	nodes, err := node.Do("CLUSTER", "NODES")
	drivertest.Must(t, err)
	for line := range strings.Lines(fmt.Sprint(nodes)) {
		if strings.Contains(line, "myself") {
			words := strings.Fields(line)
			id = words[0]
			_, bus, _ = strings.Cut(strings.SplitN(words[1], ",", 2)[0], "@")
		}
	}
	return id, bus
}

// byAddress is a primary behind an address that moves to another server, as in managed services.
func (s *suite) byAddress(t *testing.T) *deployment {
	old := server.StartFor(t, s.kind)
	replica := server.StartFor(t, s.kind, server.WithReplicaOf(old))
	eventually(t, func() error {
		if reply, err := replica.Do("ROLE"); err != nil || !strings.Contains(fmt.Sprint(reply), "connected") {
			return fmt.Errorf("the replica does not follow: %v, %w", reply, err)
		}
		return nil
	})
	a := fault.NewProxy(t, old.Addr())
	promote := func() error {
		_, err := replica.Do("REPLICAOF", "NO", "ONE")
		a.Point(replica.Addr())
		return err
	}
	return &deployment{
		dsn: a.Addr() + "?", key: "k", primary: old,
		promote: func() error { // the manager of the address must notice first
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
