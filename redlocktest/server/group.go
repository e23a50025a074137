package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A Group is servers that belong together: a Cluster, a primary and its replicas under
// sentinels, or the members of an etcd or a ZooKeeper.
type Group struct {
	// Nodes hold the data: a Cluster's three primaries; or the primary as it was at
	// the start, and its replicas; or the members of an etcd or a ZooKeeper.
	Nodes []*Server
	// Sentinels watch them; none in a Cluster.
	Sentinels []*Server
	// Name is the primary's name among the sentinels; empty in a Cluster.
	Name string

	kills atomic.Int64 // of a majority
}

// Addrs returns the addresses that a client needs: those of the sentinels, or of the Cluster.
func (g *Group) Addrs() []string {
	servers := g.Sentinels
	if len(servers) == 0 {
		servers = g.Nodes
	}
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr()
	}
	return addrs
}

// Close closes all servers.
func (g *Group) Close() error {
	var err error
	for _, s := range slices.Concat(g.Sentinels, g.Nodes) {
		err = errors.Join(err, s.Close())
	}
	return err
}

const (
	sentinelName = "primary"
	sentinels    = 3
	replicas     = 2
	// Short enough for quick tests, and long enough that sentinels do not take a busy machine
	// for a failure.
	downAfter       = 3 * time.Second
	failoverTimeout = 5 * time.Second
)

// StartSentinel starts a primary, two replicas and three sentinels, and returns when they all
// know each other. A primary that does not answer for three seconds is replaced. cfg applies to
// the primary and its replicas.
func StartSentinel(ctx context.Context, cfg Config) (*Group, error) {
	return startGroup(ctx, func(ctx context.Context, g *Group) error {
		g.Name = sentinelName
		for range 1 + replicas {
			if err := g.add(ctx, &g.Nodes, cfg); err != nil {
				return err
			}
			cfg.ReplicaOf = g.Nodes[0]
		}
		primary := g.Nodes[0]
		for range sentinels {
			if err := g.add(ctx, &g.Sentinels, Config{Kind: cfg.Kind, TLS: cfg.TLS, authority: primary.certs, sentinel: sentinelLines(primary)}); err != nil {
				return err
			}
		}
		return poll(ctx, g.acquainted)
	})
}

// startGroup builds a group, and closes what there is of it after an error.
func startGroup(ctx context.Context, build func(ctx context.Context, g *Group) error) (*Group, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	g := &Group{}
	err := build(ctx, g)
	if err != nil {
		err = errors.Join(err, g.Close())
	}
	return g, err
}

// add starts another server.
func (g *Group) add(ctx context.Context, to *[]*Server, cfg Config) error {
	s, err := Start(ctx, cfg)
	if err == nil {
		*to = append(*to, s)
	}
	return err
}

func sentinelLines(primary *Server) string {
	var b strings.Builder
	fmt.Fprintf(&b, "sentinel monitor %s 127.0.0.1 %d %d\n", sentinelName, primary.port, sentinels/2+1)
	fmt.Fprintf(&b, "sentinel down-after-milliseconds %s %d\n", sentinelName, downAfter.Milliseconds())
	fmt.Fprintf(&b, "sentinel failover-timeout %s %d\n", sentinelName, failoverTimeout.Milliseconds())
	if auth := primary.auth(); auth != nil {
		fmt.Fprintf(&b, "sentinel auth-pass %s %s\n", sentinelName, quote(auth[len(auth)-1]))
		if len(auth) == 3 {
			fmt.Fprintf(&b, "sentinel auth-user %s %s\n", sentinelName, auth[1])
		}
	}
	return b.String()
}

// acquainted returns nil as soon as every sentinel knows of all others.
func (g *Group) acquainted(ctx context.Context) error {
	want := map[string]string{
		"flags": "master", "num-slaves": strconv.Itoa(len(g.Nodes) - 1), "num-other-sentinels": strconv.Itoa(len(g.Sentinels) - 1),
	}
	for _, s := range g.Sentinels {
		reply, err := s.do(ctx, "SENTINEL", "MASTER", g.Name)
		if err != nil {
			return err
		}
		fields, ok := reply.([]any)
		if !ok {
			return errors.New("SENTINEL MASTER's reply is odd")
		}
		for i := 0; i+1 < len(fields); i += 2 {
			name, _ := fields[i].(string)
			if w, ok := want[name]; ok && fields[i+1] != w {
				return fmt.Errorf("a sentinel says: %s %v, not %s", name, fields[i+1], w)
			}
		}
	}
	return nil
}

// Primary returns the node that a majority of the sentinels calls the primary now.
func (g *Group) Primary(ctx context.Context) (*Server, error) {
	votes := map[string]int{}
	for _, s := range g.Sentinels {
		reply, err := s.do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", g.Name)
		pair, ok := reply.([]any)
		if err != nil || !ok || len(pair) != 2 {
			continue // it may be down
		}
		host, _ := pair[0].(string)
		port, _ := pair[1].(string)
		votes[net.JoinHostPort(host, port)]++
	}
	for _, n := range g.Nodes {
		if votes[n.Addr()] > len(g.Sentinels)/2 {
			return n, nil
		}
	}
	return nil, errors.New("the sentinels do not agree on a primary")
}

// AwaitFailover waits until a node other than old is the primary and serves as such,
// and returns it. It is bounded by ctx.
func (g *Group) AwaitFailover(ctx context.Context, old *Server) (*Server, error) {
	var found *Server
	err := poll(ctx, func(ctx context.Context) error {
		s, err := g.Primary(ctx)
		if err != nil {
			return err
		}
		if s == old {
			return errors.New("the primary is still the old one")
		}
		info, err := s.info(ctx)
		if err != nil {
			return err
		}
		if info["role"] != "master" {
			return errors.New("the new primary is not yet promoted")
		}
		found = s
		return nil
	})
	return found, err
}

// StartCluster starts a Cluster of three primaries, and returns when every node
// serves all of its slots.
func StartCluster(ctx context.Context, cfg Config) (*Group, error) {
	cfg.Cluster = true
	return startGroup(ctx, func(ctx context.Context, g *Group) error {
		for range 3 {
			if err := g.add(ctx, &g.Nodes, cfg); err != nil {
				return err
			}
			cfg.authority = g.Nodes[0].certs
		}
		if err := g.meet(ctx); err != nil {
			return err
		}
		return poll(ctx, g.whole)
	})
}

// slots is the number of a Cluster's hash slots.
const slots = 16384

// meet divides the slots among the nodes and introduces them to the first.
func (g *Group) meet(ctx context.Context) error {
	n := len(g.Nodes)
	for i, s := range g.Nodes {
		first, last := i*slots/n, (i+1)*slots/n-1
		for _, command := range [][]string{
			// Distinct epochs, so that the nodes need not resolve a conflict first.
			{"CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i + 1)},
			{"CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last)},
			{"CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(g.Nodes[0].port), strconv.Itoa(g.Nodes[0].bus)},
		} {
			if i == 0 && command[1] == "MEET" {
				continue
			}
			if _, err := s.do(ctx, command...); err != nil {
				return fmt.Errorf("CLUSTER %s: %w", command[1], err)
			}
		}
	}
	return nil
}

// whole returns nil as soon as every node sees every other and all slots.
func (g *Group) whole(ctx context.Context) error {
	want := []string{
		"cluster_state:ok", fmt.Sprintf("cluster_slots_ok:%d", slots), fmt.Sprintf("cluster_known_nodes:%d", len(g.Nodes)),
	}
	for _, s := range g.Nodes {
		reply, err := s.do(ctx, "CLUSTER", "INFO")
		if err != nil {
			return err
		}
		text, _ := reply.(string)
		for _, w := range want {
			if !strings.Contains(text, w+"\r\n") {
				return fmt.Errorf("a node does not say %s", w)
			}
		}
	}
	return nil
}

// poll calls check until it returns nil or ctx ends.
func poll(ctx context.Context, check func(context.Context) error) error {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		case <-pause.C:
		}
	}
}
