package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/redlocktest/server"
)

// A style is in what order a limit asks the nodes of a quorum.
type style string

const (
	sequential style = "one after the other"
	forAll     style = "waits for all"
	early      style = "returns at the majority"
)

// limits returns the contestants that do nothing but the commands: over each client
// library, in each style.
func limits() []Contestant {
	var out []Contestant
	for _, lib := range libraries {
		out = append(out,
			limitOf(lib, "bare", newBare, early),
			limitOf(lib, "scripts", newReplay, early),
			limitOf(lib, "bare", newBare, forAll),
			limitOf(lib, "bare", newBare, sequential))
	}
	return out
}

func limitOf(lib library, what string, protocolFor func(context.Context, string, *Setup) (protocol, error), how style) Contestant {
	c := Contestant{
		Name:   what + ", " + lib.name,
		Kind:   Limit,
		Client: lib.name,
		Renews: true,
		Serves: AnyKeyStore,
	}
	switch what {
	case "bare":
		c.How = "SET NX PX and compare-and-delete, over " + lib.how
	default:
		c.How = "our scripts, as our driver sends them, with nothing around them, over " + lib.how
	}
	if how != early {
		c.Name += ", " + string(how)
		c.How += "; it " + strings.Replace(string(how), "one after", "asks one node after", 1)
		c.Serves = ManyKeyStores
	}
	if what == "scripts" {
		serves := c.Serves
		c.Serves = func(kind server.Kind, nodes int) bool { return serves(kind, nodes) && canReplay() }
	}
	c.Open = func(ctx context.Context, s *Setup) (Locker, error) { return openLimit(ctx, s, lib, protocolFor, how) }
	return c
}

// openLimit connects to all nodes.
func openLimit(ctx context.Context, s *Setup, lib library, protocolFor func(context.Context, string, *Setup) (protocol, error), how style) (Locker, error) {
	l := &limit{setup: s, how: how}
	for _, n := range s.Nodes {
		p, err := protocolFor(ctx, n.Direct, s)
		if err != nil {
			return nil, errors.Join(err, l.Close())
		}
		timeout := time.Second
		if len(s.Nodes) > 1 {
			timeout = s.nodeTimeout()
		}
		c, err := lib.open(n.Addr, timeout)
		if err != nil {
			if len(s.Nodes) == 1 {
				return nil, err
			}
			c = &reopened{open: func() (commands, error) { return lib.open(n.Addr, timeout) }}
		}
		l.nodes = append(l.nodes, &limitNode{commands: c, protocol: p, slots: make(chan struct{}, maxHung)})
	}
	return l, nil
}

// limit is a Locker of bare commands on one node or on several.
type limit struct {
	setup *Setup
	nodes []*limitNode
	how   style
}

// errHung says that a node has too much to do already, errBroken that there is no connection.
var errHung, errBroken = errors.New("too much is unanswered"), errors.New("no connection")

// maxHung bounds what is under way to one node; one that is full is left out.
const maxHung = 512

type limitNode struct {
	commands
	protocol
	slots chan struct{}
}

func (l *limit) quorum() int { return len(l.nodes)/2 + 1 }

func (l *limit) Close() error {
	var errs []error
	for _, n := range l.nodes {
		errs = append(errs, n.commands.close())
	}
	return errors.Join(errs...)
}

func (l *limit) Lock(ctx context.Context, key string, _ bool) (Held, error) {
	h := &limitHeld{limit: l, key: key, owner: newOwner(), grants: make([]grant, len(l.nodes))}
	if len(l.nodes) == 1 {
		return h, h.ask(ctx, 0)
	}
	if l.how == sequential {
		return h, h.each(func(i int) error { return h.askBounded(ctx, i) })
	}
	h.start(ctx)
	if err := h.verdict(h.locked); err != nil {
		close(h.release)
		return nil, err
	}
	return h, nil
}

// limitHeld is one lock. Each node has one goroutine for its whole life, so that the
// release cannot overtake the acquisition.
type limitHeld struct {
	*limit
	key, owner string

	mu     sync.Mutex
	grants []grant // per node; those of stragglers come later

	locked, freed chan error    // a result per node
	release       chan struct{} // closed by Unlock
}

// A grant is what a node answered.
type grant struct {
	token string
	ok    bool
}

// grant returns what a node has granted so far.
func (h *limitHeld) grant(i int) grant {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.grants[i]
}

func (h *limitHeld) ask(ctx context.Context, i int) error {
	n := h.nodes[i]
	reply, err := n.do(ctx, n.acquire(h.key, h.owner))
	if err != nil {
		return err
	}
	token, ok := n.granted(reply)
	if !ok {
		return errHeld
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.grants[i] = grant{token, true}
	return nil
}

func (h *limitHeld) askBounded(ctx context.Context, i int) error {
	ctx, cancel := context.WithTimeout(ctx, h.setup.nodeTimeout())
	defer cancel()
	return h.ask(ctx, i)
}

func (h *limitHeld) free(ctx context.Context, i int) error {
	n := h.nodes[i]
	_, err := n.do(ctx, n.protocol.release(h.key, h.owner, h.grant(i).token))
	return err
}

func (h *limitHeld) freeBounded(i int) error {
	ctx, cancel := context.WithTimeout(context.Background(), h.setup.nodeTimeout())
	defer cancel()
	return h.free(ctx, i)
}

// start asks all nodes at once.
func (h *limitHeld) start(ctx context.Context) {
	h.locked = make(chan error, len(h.nodes))
	h.freed = make(chan error, len(h.nodes))
	h.release = make(chan struct{})
	for i, n := range h.nodes {
		select {
		case n.slots <- struct{}{}:
		default:
			h.locked <- errHung
			h.freed <- errHung
			continue
		}
		go func() {
			defer func() { <-n.slots }()
			h.locked <- h.askBounded(ctx, i)
			<-h.release
			h.freed <- h.freeBounded(i)
		}()
	}
}

// verdict waits for the majority, or for all.
func (h *limitHeld) verdict(results <-chan error) error {
	good, bad := 0, error(nil)
	for range h.nodes {
		if err := <-results; err != nil {
			bad = err
		} else if good++; good == h.quorum() && h.how == early {
			return nil
		}
	}
	if good < h.quorum() {
		return fmt.Errorf("%d of %d nodes: %w", good, len(h.nodes), bad)
	}
	return nil
}

// each asks one node after the other.
func (h *limitHeld) each(ask func(i int) error) error {
	good, bad := 0, error(nil)
	for i := range h.nodes {
		if err := ask(i); err != nil {
			bad = err
		} else {
			good++
		}
	}
	if good < h.quorum() {
		return fmt.Errorf("%d of %d nodes: %w", good, len(h.nodes), bad)
	}
	return nil
}

func (h *limitHeld) Unlock() error {
	switch {
	case len(h.nodes) == 1:
		return h.free(context.Background(), 0)
	case h.how == sequential:
		return h.each(h.freeBounded)
	}
	close(h.release)
	return h.verdict(h.freed)
}

func (h *limitHeld) Renew(ctx context.Context) error {
	renew := func(i int) error {
		g := h.grant(i)
		if !g.ok {
			return errHeld
		}
		ctx, cancel := context.WithTimeout(ctx, h.setup.nodeTimeout())
		defer cancel()
		n := h.nodes[i]
		_, err := n.do(ctx, n.protocol.renew(h.key, h.owner, g.token))
		return err
	}
	if len(h.nodes) == 1 {
		return renew(0)
	}
	if h.how == sequential {
		return h.each(renew)
	}
	results := make(chan error, len(h.nodes))
	for i, n := range h.nodes {
		select {
		case n.slots <- struct{}{}:
		default:
			results <- errHung
			continue
		}
		go func() {
			defer func() { <-n.slots }()
			results <- renew(i)
		}()
	}
	return h.verdict(results)
}
