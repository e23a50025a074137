package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// What a quorum adds to the restart guard of its nodes: the clocks of the others, which
// each node is told (see terms), and who is new. A node without a memory may be new,
// or may have been restarted, and cannot tell. If no node has one, all are new, or all
// were restarted, and their clocks or an operator have to tell.

const (
	// The nodes are asked again where some remember and some do not: another client
	// may be making its first contact just now.
	looks     = 3
	lookAgain = 20 * time.Millisecond
)

// meet settles at the first contact whether the nodes are new. Where they are not, or
// where it cannot be told yet, each node's own guard decides.
func (b *Backend) meet(ctx context.Context, ttl time.Duration) {
	if b.met.Load() || b.opts.Guard == 0 {
		return
	}
	b.meeting.Lock() // bounded by the nodes' timeout
	defer b.meeting.Unlock()
	if b.met.Load() {
		return
	}
	for range looks {
		least, most, errs := b.look(ctx, b.timeout(ttl))
		switch {
		case b.answered(errs) != nil:
			return // the next contact is the first
		case most < driver.Remembers && hasError(errs):
			return
		case most < driver.Remembers:
			if why := b.whyNew(most); why != "" && !hasError(b.state(ctx, b.timeout(ttl), &driver.Bootstrap{})) {
				b.event(driver.Event{Kind: driver.Bootstrapped, Detail: why})
			}
			b.met.Store(true)
			return
		case least == most:
			b.met.Store(true)
			return
		}
		if !b.sleep(lookAgain) || ctx.Err() != nil {
			return
		}
	}
	b.met.Store(true)
}

// whyNew says why nodes without a memory are new; empty: they may have been restarted.
func (b *Backend) whyNew(most driver.Memory) string {
	switch {
	case most == driver.Unguarded:
		return ""
	case most == driver.Blank && !b.opts.StrictGuard:
		return "the nodes have never been used, and have been up for longer than the restart guard: they vote at once"
	case most <= driver.Young && b.opts.Bootstrap:
		return "the nodes are new, as bootstrap says: they vote at once"
	}
	return ""
}

// look asks all nodes what they remember, and returns the least and the most of those
// that answered.
func (b *Backend) look(ctx context.Context, timeout time.Duration) (least, most driver.Memory, errs []error) {
	memories := make([]driver.Memory, len(b.nodes))
	errs = b.administer(ctx, timeout, func(ctx context.Context, n *node, a driver.Admin) error {
		terms := b.terms(n, 0)
		sent := time.Now()
		r, err := a.Bootstrap(ctx, &driver.Bootstrap{Quorum: &terms, Look: true})
		if err != nil {
			return err
		}
		n.identify(r.Server)
		n.learn(b.sample(r.Clock, sent, time.Now()))
		memories[n.index] = r.Memory
		return nil
	})
	least = driver.Remembers
	for i, err := range errs {
		if err == nil {
			least, most = min(least, memories[i]), max(most, memories[i])
		}
	}
	return least, most, errs
}

// state makes all nodes do what s says.
func (b *Backend) state(ctx context.Context, timeout time.Duration, s *driver.Bootstrap) []error {
	return b.administer(ctx, timeout, func(ctx context.Context, n *node, a driver.Admin) error {
		terms := b.terms(n, 0)
		_, err := a.Bootstrap(ctx, &driver.Bootstrap{Quorum: &terms, Nodes: s.Nodes})
		return err
	})
}

// administer calls f for every node that is a driver.Admin, at once.
func (b *Backend) administer(ctx context.Context, timeout time.Duration, f func(context.Context, *node, driver.Admin) error) []error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return b.each(ctx, func(ctx context.Context, n *node) error {
		if a, ok := n.backend.(driver.Admin); ok {
			return f(ctx, n, a)
		}
		return nil
	})
}

func hasError(errs []error) bool {
	for _, err := range errs {
		if err != nil {
			return true
		}
	}
	return false
}

// Bootstrap states that the nodes are new, or, with s.Nodes, that they are others, or
// more or fewer, than they were. All of them have to answer; and none may have a memory,
// unless it is of a change of nodes.
func (b *Backend) Bootstrap(ctx context.Context, s *driver.Bootstrap) (*driver.Remembrance, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	_, most, errs := b.look(ctx, inspectTimeout)
	if err := b.all(errs); err != nil {
		return nil, err
	}
	r := &driver.Remembrance{Memory: most}
	switch {
	case s.Look:
		return r, nil
	case most == driver.Remembers && !s.Nodes:
		return r, &driver.RefusedError{Reason: "the servers are not new: some of them remember locks"}
	}
	if dup := b.duplicate.Load(); dup != nil {
		return r, dup
	}
	return r, b.all(b.state(ctx, inspectTimeout, s))
}

// all returns the first of the errors, with its node.
func (b *Backend) all(errs []error) error {
	for i, err := range errs {
		if err != nil {
			return fmt.Errorf("node %s: %w", b.nodes[i].name, err)
		}
	}
	return nil
}
