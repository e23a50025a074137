package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// What a quorum adds to the restart guard of its nodes: the clocks of the others, which
// each node is told (see terms), and who is new. A node without a memory may be new,
// or may have been restarted, and cannot tell. If no node has one, all are new, or all
// were restarted, and their clocks or an operator have to tell.

const (
	// The nodes are asked again where some remember and some do not, and those might be
	// taken for new: another client may be doing so right now.
	looks     = 25
	lookAgain = 20 * time.Millisecond

	// meetPatience is how long nodes may take at the first contact, where none of those that
	// answered has a memory: to give up early would cost a quarantine.
	meetPatience = time.Second
)

// meet settles at the first contact whether the nodes are new. Where they are not, or
// where it cannot be told yet, each node's own guard decides. Who comes meanwhile waits
// for the same answer; an error is the end of ctx or of the backend.
func (b *Backend) meet(ctx context.Context, ttl time.Duration) error {
	if b.met.Load() || b.opts.Guard == 0 {
		return nil
	}
	b.mu.Lock()
	if b.meeting == nil && !b.met.Load() {
		b.meeting = make(chan struct{})
		b.calls.Add(1) // the caller has one already, so that Close waits
		go b.hold(context.WithoutCancel(ctx), ttl)
	}
	meeting := b.meeting
	b.mu.Unlock()
	if meeting == nil {
		return nil
	}
	select {
	case <-meeting:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-b.closed:
		return driver.ErrClosed
	}
}

// hold holds a meeting.
func (b *Backend) hold(ctx context.Context, ttl time.Duration) {
	defer b.calls.Done()
	met := b.introduce(ctx, b.timeout(ttl))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.met.Store(met)
	close(b.meeting)
	b.meeting = nil
}

// introduce looks at the nodes, and makes them vote at once if they are new. It reports
// whether that is settled; if not, the next contact is the first.
func (b *Backend) introduce(ctx context.Context, timeout time.Duration) (settled bool) {
	for range looks {
		seen, errs := b.look(ctx, timeout)
		least, most := extremes(seen)
		if b.without(allRemember) {
			most = least
		}
		switch {
		case most < driver.MemoryKept && hasError(errs):
			if timeout >= meetPatience || !anyLate(errs) {
				return false
			}
			timeout = meetPatience
			continue
		case b.answered(errs) != nil:
			return false
		case most < driver.MemoryKept:
			why := b.whyNew(most)
			if why == "" {
				return true
			}
			if !hasError(b.state(ctx, max(timeout, meetPatience), &driver.Bootstrap{}, seen)) {
				b.event(driver.Notice{Kind: driver.NoticeBootstrapped, Detail: why})
				return true
			}
		case least == most || b.whyNew(least) == "":
			return true
		}
		if !b.sleep(lookAgain) {
			return false
		}
	}
	return true
}

// extremes returns the least and the most of what the nodes that answered remember.
func extremes(seen []*driver.MemoryReport) (least, most driver.Memory) {
	least = driver.MemoryKept
	for _, r := range seen {
		if r != nil {
			least, most = min(least, r.Memory), max(most, r.Memory)
		}
	}
	return least, most
}

func anyLate(errs []error) bool {
	for _, err := range errs {
		if errors.Is(err, context.DeadlineExceeded) {
			return true
		}
	}
	return false
}

// whyNew says why nodes without a memory are new; empty: they may have been restarted.
func (b *Backend) whyNew(most driver.Memory) string {
	switch {
	case most == driver.MemoryUnguarded:
		return ""
	case most == driver.MemoryUnused && !b.opts.StrictGuard:
		return "the nodes have never been used, and have been up for longer than the restart guard: they vote at once"
	case most <= driver.MemoryNew && b.opts.Bootstrap:
		return "the nodes are new, as bootstrap says: they vote at once"
	}
	return ""
}

// look asks all nodes what they remember; nil stands for those that did not answer.
func (b *Backend) look(ctx context.Context, timeout time.Duration) (seen []*driver.MemoryReport, errs []error) {
	seen = make([]*driver.MemoryReport, len(b.nodes))
	errs = b.administer(ctx, timeout, func(ctx context.Context, n *node, a driver.Admin) error {
		terms := b.terms(n, 0)
		sent := time.Now()
		r, err := a.Bootstrap(ctx, &driver.Bootstrap{Quorum: &terms, DryRun: true})
		if err != nil {
			return err
		}
		n.identify(r.Server)
		n.learn(b.sample(r.Clock, sent, time.Now()))
		seen[n.index] = r
		return nil
	})
	return seen, errs
}

// state makes all nodes do what s says, if they are those that were seen.
func (b *Backend) state(ctx context.Context, timeout time.Duration, s *driver.Bootstrap, seen []*driver.MemoryReport) []error {
	return b.administer(ctx, timeout, func(ctx context.Context, n *node, a driver.Admin) error {
		terms := b.terms(n, 0)
		_, err := a.Bootstrap(ctx, &driver.Bootstrap{Quorum: &terms, Resize: s.Resize, Observed: seen[n.index]})
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

// Bootstrap states that the nodes are new, or, with s.Nodes, that they are more or fewer
// than they were. All of them have to answer; and none may have a memory, unless it is of
// a change of nodes. A node is replaced by another in two such changes, since clients
// with the old list are told apart by their number: add one first, then leave one out.
func (b *Backend) Bootstrap(ctx context.Context, s *driver.Bootstrap) (*driver.MemoryReport, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	seen, errs := b.look(ctx, inspectTimeout)
	if err := b.all(errs); err != nil {
		return nil, err
	}
	_, most := extremes(seen)
	r := &driver.MemoryReport{Memory: most}
	switch {
	case s.DryRun:
		return r, nil
	case most == driver.MemoryKept && !s.Resize:
		return r, &driver.RefusedError{Reason: "the servers are not new: some of them remember locks"}
	}
	if dup := b.duplicate.Load(); dup != nil {
		return r, dup
	}
	errs = b.state(ctx, inspectTimeout, s, seen)
	if s.Resize && !hasError(errs) && !b.without(onePass) {
		// Until the last node knew, clients with the old list could renew: on every node the
		// guard must begin after that.
		errs = b.state(ctx, inspectTimeout, s, seen)
	}
	return r, b.all(errs)
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
