package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

// This file is the quorum's part of the restart guard: it decides whether nodes are new. A node
// without a memory may be new or restarted, and cannot know which. If no node has a memory, all
// are new or all were restarted, and an operator must decide.

const (
	// The nodes are asked again if some remember and some do not, because another client may be
	// declaring them new at this moment.
	mostLooks = 25
	lookAgain = 20 * time.Millisecond

	// meetPatience is how long nodes may take at the first contact if no answer so far shows a
	// memory: giving up early would cost a quarantine.
	meetPatience = time.Second
)

// meet decides at the first contact whether the nodes are new. If they are not, or if that is
// unknown, each node's own guard decides. Other callers wait for the same decision. An error is
// the end of ctx or of the backend.
func (b *Backend) meet(ctx context.Context, ttl time.Duration) error {
	if b.opts.Guard == 0 || b.met.Load() {
		return nil
	}
	b.mu.Lock()
	if b.meeting == nil && !b.met.Load() {
		b.meeting = make(chan struct{})
		b.calls.Add(1) // the caller is counted already, so Close waits
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

// hold runs the first contact.
func (b *Backend) hold(ctx context.Context, ttl time.Duration) {
	defer b.calls.Done()
	met := b.introduce(ctx, b.timeout(ttl))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.met.Store(met)
	close(b.meeting)
	b.meeting = nil
}

// introduce examines the nodes, and lets them vote at once if they are new. It reports whether
// that is decided; if not, the next contact counts as the first.
func (b *Backend) introduce(ctx context.Context, timeout time.Duration) (settled bool) {
	for range mostLooks {
		seen, errs := b.look(ctx, timeout)
		least, most := extremes(seen)
		switch {
		case most < quorum.MemoryKept && hasError(errs):
			if timeout >= meetPatience || !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, context.DeadlineExceeded) }) {
				return false
			}
			timeout = meetPatience
			continue
		case b.answered(errs) != nil:
			return false
		case !b.opts.Bootstrap, most == quorum.MemoryFlushed, most == least && most != quorum.MemoryNew:
			return true
		case most == quorum.MemoryNew && !hasError(b.state(ctx, max(timeout, meetPatience), quorum.StateNew, seen)):
			b.notify(driver.Notice{Kind: quorum.NoticeBootstrapped, Detail: "the nodes are new, because bootstrap is set: they vote at once"})
			return true
		}
		if async.Await(async.Within(ctx, lookAgain), b.closed) == nil {
			return false
		}
	}
	return true
}

// extremes returns the smallest and the largest memory of the nodes that answered.
func extremes(seen []*quorum.MemoryReport) (least, most quorum.Memory) {
	least = quorum.MemoryKept
	for _, r := range seen {
		if r != nil {
			least, most = min(least, r.Memory), max(most, r.Memory)
		}
	}
	return least, most
}

// look asks all nodes for their memory; nil stands for a node that did not answer.
func (b *Backend) look(ctx context.Context, timeout time.Duration) (seen []*quorum.MemoryReport, errs []error) {
	seen = make([]*quorum.MemoryReport, len(b.nodes))
	began := b.clock.Now()
	errs = b.administer(ctx, timeout, func(ctx context.Context, n *node, a quorum.Admin) error {
		sent := b.now()
		r, err := a.Bootstrap(ctx, &quorum.Bootstrap{Quorum: b.quorum(n, sent.at, 0), DryRun: true})
		if err != nil {
			return err
		}
		b.identify(n, r.Server)
		b.learn(n, b.read(r.Clock, r.Terms, sent, b.clock.Now()), r.Terms, sent.jumps)
		seen[n.index] = r
		return nil
	})
	if _, most := extremes(seen); most < quorum.MemoryKept && !hasError(errs) {
		b.blank.Store(int64(max(began, 1)))
	}
	return seen, errs
}

// state makes the statement s on all nodes, if they are still the observed ones.
func (b *Backend) state(ctx context.Context, timeout time.Duration, s quorum.Statement, seen []*quorum.MemoryReport) []error {
	return b.administer(ctx, timeout, func(ctx context.Context, n *node, a quorum.Admin) error {
		q := *b.quorum(n, b.clock.Now(), 0)
		if s == quorum.StateChanged {
			q.Remembered = b.changed(seen)
		}
		_, err := a.Bootstrap(ctx, &quorum.Bootstrap{Quorum: &q, Statement: s, Observed: seen[n.index]})
		return err
	})
}

// changed returns the terms that the statement of a change proposes: those of the options. But a node
// that has forgotten leases of other permissions may have forgotten the protections against them
// too. So these stay as large as any node remembers, unless all nodes remember the permissions of
// the options; each node then keeps its own until its guard is over.
func (b *Backend) changed(seen []*quorum.MemoryReport) *quorum.Terms {
	own, alike := b.terms, true
	kept := own
	for _, r := range seen {
		if r == nil || r.Terms == nil {
			alike = false
			continue
		}
		old := r.Terms
		alike = alike && old.Guard == own.Guard && old.Excuse == own.Excuse && old.Allowance == own.Allowance
		kept.Quarantine = max(kept.Quarantine, old.Quarantine+max(own.Excuse-old.Excuse, 0))
		kept.Grace, kept.Drift = max(kept.Grace, old.Grace), max(kept.Drift, old.Drift)
	}
	if alike {
		return &own
	}
	return &kept
}

// administer calls f concurrently for every node that is a quorum.Admin.
func (b *Backend) administer(ctx context.Context, timeout time.Duration, f func(context.Context, *node, quorum.Admin) error) []error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return b.each(ctx, func(ctx context.Context, n *node) error {
		if a, ok := n.backend.(quorum.Admin); ok {
			return f(ctx, n, a)
		}
		return nil
	})
}

func hasError(errs []error) bool {
	return slices.ContainsFunc(errs, func(err error) bool { return err != nil })
}

// Bootstrap states that the nodes are new, or that the quorum has changed: the nodes' number and terms
// become those of this backend. All nodes must answer; and for StateNew none may have a memory. Replacing
// a node takes two changes, because only the number tells clients with the old list apart: first add the
// new node, then remove the old one. A change that leaves a majority of the old list out is refused.
//
// A dry run reports the nodes that answer. Its error names a node that does not answer, or says
// why the statement could not be made. If a statement fails on some nodes the report names
// them; the nodes still never serve two clients under terms that are unsafe together. Repeat
// the statement then. StateNew cannot be repeated, because a node that knows of it has a memory:
// the other nodes vote after one restart guard. Without a guard nothing is stated.
func (b *Backend) Bootstrap(ctx context.Context, s *quorum.Bootstrap) (*quorum.MemoryReport, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	seen, errs := b.look(ctx, inspectTimeout)
	r := b.report(seen, errs)
	if err := b.all(errs); err != nil || r.Memory == quorum.MemoryUnguarded || s.DryRun && s.Statement == quorum.StateNew {
		return r, err
	}
	if err := b.fits(s.Statement, r); err != nil || s.DryRun {
		return r, err
	}
	errs = b.state(ctx, inspectTimeout, s.Statement, seen)
	if s.Statement == quorum.StateChanged && !hasError(errs) {
		// Earlier leases could be renewed until the last node knew of the change: on every node the
		// guard must begin after that.
		errs = b.state(ctx, inspectTimeout, quorum.StateChanged, seen)
	}
	for i := range r.Nodes {
		r.Nodes[i].Done, r.Nodes[i].Err = errs[i] == nil, errs[i]
	}
	return r, b.all(errs)
}

func (b *Backend) report(seen []*quorum.MemoryReport, errs []error) *quorum.MemoryReport {
	_, most := extremes(seen)
	own := b.terms
	r := &quorum.MemoryReport{Memory: most, Terms: &own}
	for i, n := range b.nodes {
		r.Nodes = append(r.Nodes, quorum.NodeReport{Node: n.name, Report: seen[i], Err: errs[i]})
	}
	return r
}

// fits refuses a statement that is false.
func (b *Backend) fits(s quorum.Statement, r *quorum.MemoryReport) error {
	if dup := b.duplicate.Load(); dup != nil {
		return dup
	}
	if s == quorum.StateNew && r.Memory == quorum.MemoryKept {
		return &driver.RefusedError{Reason: "the servers are not new: some of them remember locks"}
	}
	if s == quorum.StateChanged {
		return b.keepsOut(r)
	}
	return nil
}

// keepsOut refuses a change that leaves a majority of the old list out: its clients would go on there, beside
// those of the new list. A node that has forgotten counts as missing, because a new one looks the same.
func (b *Backend) keepsOut(r *quorum.MemoryReport) error {
	with := map[int]int{} // nodes, by the number of nodes that they remember
	for _, n := range r.Nodes {
		if n.Report != nil && n.Report.Terms != nil {
			with[n.Report.Terms.N]++
		}
	}
	for old, here := range with {
		here += with[len(b.nodes)] // of an earlier try
		if missing := old - here; old != len(b.nodes) && missing > old/2 {
			return &driver.RefusedError{Reason: fmt.Sprintf("of the %d nodes of the old list %d are not in this one, or have forgotten it, and clients with the old list could still lock on them: take out less than a majority at a time; if nodes have forgotten, first run this with the old list", old, missing)}
		}
	}
	return nil
}

// all returns the first error, with its node's name.
func (b *Backend) all(errs []error) error {
	for i, err := range errs {
		if err != nil {
			if b.nodes[i].says(err) == err.Error() {
				return err
			}
			return fmt.Errorf("node %s: %w", b.nodes[i].name, err)
		}
	}
	return nil
}
