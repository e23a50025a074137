package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// limits returns the contestants that only send the commands, over each client library. With
// several nodes they ask all at once, and return at the majority's answers.
func limits() (out []Contestant) {
	for _, lib := range libraries {
		out = append(out,
			limitOf(lib, "bare", "SET NX PX and compare-and-delete", newBare),
			limitOf(lib, "scripts", "our scripts, as our driver sends them, with nothing around them", newReplay))
	}
	return out
}

func limitOf(lib library, name, what string, speak func(context.Context, string, *Setup) (protocol, error)) Contestant {
	c := Contestant{Name: name + ", " + lib.name, Kind: Limit, Client: lib.name, Serves: AnyKeyStore, How: what + ", over " + lib.how}
	c.Open = func(ctx context.Context, s *Setup) (Locker, error) {
		l := &limit{setup: s}
		for _, n := range s.Nodes {
			p, err := speak(ctx, n.Direct, s)
			if err != nil {
				return nil, errors.Join(err, l.Close())
			}
			timeout := time.Second
			if len(s.Nodes) > 1 {
				timeout = s.nodeTimeout()
			}
			c, err := lib.open(n.Addr, timeout)
			if err != nil {
				return nil, errors.Join(err, l.Close())
			}
			l.nodes = append(l.nodes, limitNode{c, p})
		}
		return l, nil
	}
	return c
}

// limit is a Locker that only sends commands, to one node or to several.
type limit struct {
	setup *Setup
	nodes []limitNode
}

type limitNode struct {
	commands
	protocol
}

func (l *limit) Close() error {
	var errs []error
	for _, n := range l.nodes {
		errs = append(errs, n.commands.close())
	}
	return errors.Join(errs...)
}

// all calls f for every node, and returns when f has succeeded for a majority.
func (l *limit) all(ctx context.Context, f func(ctx context.Context, i int) error) error {
	if len(l.nodes) == 1 {
		return f(ctx, 0)
	}
	results := make(chan error, len(l.nodes))
	for i := range l.nodes {
		go func() {
			ctx, cancel := context.WithTimeout(ctx, l.setup.nodeTimeout())
			defer cancel()
			results <- f(ctx, i)
		}()
	}
	good, bad := 0, error(nil)
	for range l.nodes {
		if err := <-results; err != nil {
			bad = err
		} else if good++; good > len(l.nodes)/2 {
			return nil
		}
	}
	return fmt.Errorf("%d of %d nodes: %w", good, len(l.nodes), bad)
}

func (l *limit) Lock(ctx context.Context, key string, _ bool) (Held, error) {
	h := &limitHeld{limit: l, key: key, owner: newOwner(), grants: make([]grant, len(l.nodes))}
	for i := range h.grants {
		h.grants[i].asked.Add(1)
	}
	err := l.all(ctx, h.ask)
	if err != nil && len(l.nodes) > 1 {
		go h.Unlock() //nolint:errcheck // the caller does not wait for it
	}
	return h, err
}

// limitHeld is one lock.
type limitHeld struct {
	*limit
	key, owner string
	grants     []grant // per node
}

// A grant is a node's answer. A release waits for asked, so that it does not overtake the
// acquisition.
type grant struct {
	asked sync.WaitGroup
	token string
}

func (h *limitHeld) ask(ctx context.Context, i int) error {
	n, g := h.nodes[i], &h.grants[i]
	defer g.asked.Done()
	reply, err := n.do(ctx, n.acquire(h.key, h.owner))
	if err != nil {
		return err
	}
	token, ok := n.granted(reply)
	if g.token = token; !ok {
		return errHeld
	}
	return nil
}

func (h *limitHeld) Unlock() error {
	return h.all(context.Background(), func(ctx context.Context, i int) error {
		n, g := h.nodes[i], &h.grants[i]
		g.asked.Wait()
		_, err := n.do(ctx, n.protocol.release(h.key, h.owner, g.token))
		return err
	})
}
