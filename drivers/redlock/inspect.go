package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// inspectTimeout bounds what an operator asks of one node, but for List.
const inspectTimeout = 5 * time.Second

// each calls f for every node at once, and returns the errors in the order of the
// nodes. It waits for all of them: f is bounded by its context.
func (b *Backend) each(ctx context.Context, f func(context.Context, *node) error) []error {
	errs := make([]error, len(b.nodes))
	var all sync.WaitGroup
	for i, n := range b.nodes {
		all.Go(func() { errs[i] = f(ctx, n) })
	}
	all.Wait()
	return errs
}

var errBlind = errors.New("it cannot be inspected")

func (n *node) inspector() (driver.Inspector, error) {
	if i, ok := n.backend.(driver.Inspector); ok {
		return i, nil
	}
	return nil, errBlind
}

// answered returns nil if a majority has no error, and a *driver.QuorumError otherwise.
func (b *Backend) answered(errs []error) error {
	ok := 0
	e := &driver.QuorumError{Need: b.q, Votes: make([]driver.Vote, len(errs))}
	for i, err := range errs {
		e.Votes[i] = driver.Vote{Node: b.nodes[i].name, Granted: err == nil, Err: err}
		if err == nil {
			ok++
			continue
		}
		if e.Detail != "" {
			e.Detail += "; "
		}
		e.Detail += b.nodes[i].says(err)
	}
	if ok >= b.q {
		return nil
	}
	return e
}

// Lookup asks all nodes. The Holders are those that a majority names, with the q-th
// smallest TTL; the Votes say which nodes have the key: Granted is "somebody has
// it here", and Err why a node did not answer. Fence is the largest counter, and Waiters
// the longest queue. ReservedFor is for how long a majority is kept for the first waiter.
func (b *Backend) Lookup(ctx context.Context, key string) (*driver.State, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	states := make([]*driver.State, len(b.nodes))
	took := make([]time.Duration, len(b.nodes))
	errs := b.each(ctx, func(ctx context.Context, n *node) error {
		i, err := n.inspector()
		if err != nil {
			return err
		}
		start := time.Now()
		states[n.index], err = i.Lookup(ctx, key)
		took[n.index] = time.Since(start)
		return err
	})
	if err := b.answered(errs); err != nil {
		return nil, err
	}
	s := b.merge(key, states)
	s.Votes = make([]driver.Vote, len(b.nodes))
	for i, n := range b.nodes {
		s.Votes[i] = driver.Vote{Node: n.name, Latency: took[i], Err: errs[i]}
		s.Votes[i].Granted = states[i] != nil && len(states[i].Holders) > 0
	}
	return s, nil
}

// merge makes one state of the nodes'; nil ones did not answer.
func (b *Backend) merge(key string, states []*driver.State) *driver.State {
	type found struct {
		driver.Holder
		ttls     []time.Duration
		counters []uint64
	}
	s := &driver.State{Key: key}
	holders := map[string]*found{}
	var counters []uint64
	var kept []time.Duration
	for _, st := range states {
		if st == nil {
			continue
		}
		counters = append(counters, st.Fence)
		s.Waiters = max(s.Waiters, st.Waiters)
		if st.ReservedFor > 0 {
			kept = append(kept, st.ReservedFor)
		}
		for _, h := range st.Holders {
			base := request(h.Owner)
			f := holders[base]
			if f == nil {
				f = &found{Holder: h}
				f.Owner = base
				holders[base] = f
			}
			f.Fence = max(f.Fence, h.Fence)
			f.counters = append(f.counters, st.Fence)
			f.ttls = append(f.ttls, h.TTL)
		}
	}
	s.Fence = reached(counters, b.q)
	for _, f := range holders {
		if t := reached(f.counters, b.q); t > 0 {
			f.Fence = t
		}
		if len(f.ttls) >= b.q {
			slices.Sort(f.ttls)
			f.TTL = f.ttls[len(f.ttls)-b.q] // so long a majority has it
			s.Holders = append(s.Holders, f.Holder)
		}
	}
	if len(kept) >= b.q {
		slices.Sort(kept)
		s.ReservedFor = kept[len(kept)-b.q]
	}
	return s
}

// reached is the largest counter that q nodes have reached: a lease's token, which was
// written to a majority. What is above it on fewer nodes is of bids that came to
// nothing. Zero where there are fewer than q.
func reached(counters []uint64, q int) uint64 {
	if len(counters) < q {
		return 0
	}
	slices.Sort(counters)
	return counters[len(counters)-q]
}

// List yields the keys that a majority of the nodes hold for one owner. It collects
// first what every node has.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.calls.Done()
	var mu sync.Mutex
	keys := map[string][]*driver.State{}
	errs := b.each(ctx, func(ctx context.Context, n *node) error {
		i, err := n.inspector()
		if err != nil {
			return err
		}
		return i.List(ctx, prefix, func(s *driver.State) bool {
			mu.Lock()
			defer mu.Unlock()
			keys[s.Key] = append(keys[s.Key], s)
			return true
		})
	})
	if err := b.answered(errs); err != nil {
		return err
	}
	for key, states := range keys {
		if s := b.merge(key, states); len(s.Holders) > 0 && !yield(s) {
			return nil
		}
	}
	return nil
}

// Check gathers what the nodes find in themselves, and adds what only the whole shows:
// nodes that do not answer, servers listed twice, clocks that disagree, an even
// number. A majority has to answer.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	found := make([][]driver.Diagnostic, len(b.nodes))
	errs := b.each(ctx, func(ctx context.Context, n *node) error {
		i, err := n.inspector()
		if err != nil {
			return err
		}
		found[n.index], err = i.Check(ctx)
		return err
	})
	if err := b.answered(errs); err != nil {
		return nil, err
	}
	all := b.findings()
	for i, n := range b.nodes {
		if errs[i] != nil {
			all = append(all, driver.Diagnostic{Severity: driver.SeverityWarning, Node: n.name, Summary: "does not answer: " + errs[i].Error(), Remedy: "bring it back; the quorum lives without it, but has less to lose"})
		}
		for _, f := range found[i] {
			if f.Node == "" {
				f.Node = n.name
			}
			all = append(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b driver.Diagnostic) int { return cmp.Compare(b.Severity, a.Severity) })
	return all, nil
}

// findings are those of the whole.
func (b *Backend) findings() []driver.Diagnostic {
	var all []driver.Diagnostic
	if dup := b.duplicate.Load(); dup != nil {
		all = append(all, driver.Diagnostic{Severity: driver.SeverityUnsafe, Summary: dup.Reason, Remedy: "list every server once"})
	}
	if n := len(b.nodes); n%2 == 0 {
		all = append(all, driver.Diagnostic{Severity: driver.SeverityNote, Summary: fmt.Sprintf("%d nodes outlive the loss of %d, as %d do", n, n-b.q, n-1), Remedy: "use an odd number"})
	}
	for _, n := range b.nodes {
		if n.skewed.Load() {
			all = append(all, driver.Diagnostic{Severity: driver.SeverityUnsafe, Node: n.name, Summary: fmt.Sprintf("its clock disagrees with the others' by more than %v, and it does not count", b.opts.ClockAllowance), Remedy: "run NTP on it"})
		}
		if n.tripped.Load() {
			all = append(all, driver.Diagnostic{Severity: driver.SeverityWarning, Node: n.name, Summary: "keeps timing out and is skipped", Remedy: "look at the server and the network to it"})
		}
	}
	return all
}

// Break takes key from the holder with token fence, on every node that has it.
// A majority has to answer. ErrLost: none of them knows such a holder. The tokens on
// the nodes may be under the lease's where they were raised after the grant, so
// the holder is found by Lookup first.
func (b *Backend) Break(ctx context.Context, key string, fence uint64) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	owner, err := b.ownerOf(ctx, key, fence)
	if err != nil {
		return err
	}
	return b.answered(b.each(ctx, func(ctx context.Context, n *node) error {
		return n.breakHold(ctx, key, owner)
	}))
}

// ownerOf returns who has key with token fence: on a majority of the nodes, where the
// token is the lease's, or on some node, where it has nothing but that.
func (b *Backend) ownerOf(ctx context.Context, key string, fence uint64) (string, error) {
	states := make([]*driver.State, len(b.nodes))
	errs := b.each(ctx, func(ctx context.Context, n *node) error {
		i, err := n.inspector()
		if err != nil {
			return err
		}
		states[n.index], err = i.Lookup(ctx, key)
		return err
	})
	if err := b.answered(errs); err != nil {
		return "", err
	}
	leases := map[string]bool{}
	for _, h := range b.merge(key, states).Holders {
		if h.Fence == fence {
			return h.Owner, nil
		}
		leases[h.Owner] = true
	}
	for _, s := range states {
		if s == nil {
			continue
		}
		for _, h := range s.Holders {
			if h.Fence == fence && !leases[request(h.Owner)] {
				return request(h.Owner), nil
			}
		}
	}
	return "", driver.ErrLost
}

// breakHold takes key from owner on one node.
func (n *node) breakHold(ctx context.Context, key, owner string) error {
	a, ok := n.backend.(driver.Admin)
	if !ok {
		return errors.New("it has no way to break a lock")
	}
	i, err := n.inspector()
	if err != nil {
		return err
	}
	s, err := i.Lookup(ctx, key)
	if err != nil {
		return err
	}
	for _, h := range s.Holders {
		if request(h.Owner) != owner {
			continue
		}
		if err := a.Break(ctx, key, h.Fence); err != nil && !errors.Is(err, driver.ErrLost) {
			return err
		}
	}
	return nil
}
