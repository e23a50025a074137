package redlock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

// inspectTimeout bounds an operator's request to one node, except List.
const inspectTimeout = 5 * time.Second

var errBlind = errors.New("it cannot be inspected")

func (n *node) inspector() (driver.Inspector, error) {
	if i, ok := n.backend.(driver.Inspector); ok {
		return i, nil
	}
	return nil, errBlind
}

// answered returns nil if a majority has no error, and a *quorum.Error otherwise.
func (b *Backend) answered(errs []error) error {
	ok := 0
	e := &quorum.Error{Need: b.q, Action: "answered", Votes: make([]quorum.Vote, len(errs))}
	for i, err := range errs {
		e.Votes[i] = quorum.Vote{Node: b.nodes[i].name, Granted: err == nil, Err: err}
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

// Lookup asks all nodes. Holders are the owners that a majority names, with the q-th smallest
// TTL; Nodes has each node's answer. Fence is the largest counter, and Waiters the length of
// the longest queue. ReservedFor is how long a majority keeps the key for the first waiter.
func (b *Backend) Lookup(ctx context.Context, key string) (*driver.State, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	nodes := b.nodeStates()
	errs := b.each(ctx, func(ctx context.Context, n *node) error {
		i, err := n.inspector()
		if err != nil {
			return err
		}
		start := time.Now()
		nodes[n.index].State, err = i.Lookup(ctx, key)
		nodes[n.index].Latency = time.Since(start)
		return err
	})
	if err := b.answered(errs); err != nil {
		return nil, err
	}
	for i, err := range errs {
		if err != nil {
			nodes[i].Err = err.Error()
		}
	}
	return b.merge(key, nodes), nil
}

// nodeStates returns a state for every node, with only its name.
func (b *Backend) nodeStates() []driver.NodeState {
	nodes := make([]driver.NodeState, len(b.nodes))
	for i, n := range b.nodes {
		nodes[i].Node = n.name
	}
	return nodes
}

// merge combines the nodes' states.
func (b *Backend) merge(key string, nodes []driver.NodeState) *driver.State {
	type found struct {
		driver.Holder
		mode     driver.Mode
		ttls     []time.Duration
		counters []uint64
	}
	s := &driver.State{Key: key, Nodes: nodes}
	holders := map[string]*found{}
	var counters []uint64
	var kept []time.Duration
	for i := range nodes {
		st := nodes[i].State
		if st == nil {
			continue
		}
		counters = append(counters, st.Fence)
		if st.Waiters > s.Waiters {
			s.Waiters, s.Queue = st.Waiters, st.Queue
		}
		kept = append(kept, st.ReservedFor)
		for j := range st.Holders {
			h := &st.Holders[j]
			h.Owner = requester(h.Owner)
			base := h.Owner
			f := holders[base]
			if f == nil {
				f = &found{Holder: *h, mode: st.Mode}
				holders[base] = f
			}
			f.Fence = max(f.Fence, h.Fence)
			f.counters = append(f.counters, st.Fence)
			f.ttls = append(f.ttls, h.TTL)
		}
	}
	s.Fence, s.ReservedFor = reached(counters, b.q), reached(kept, b.q)
	for _, f := range holders {
		if t := reached(f.counters, b.q); t > 0 && f.mode == driver.Exclusive { // the counters count other readers too
			f.Fence = t
		}
		if len(f.ttls) >= b.q {
			f.TTL, s.Mode = reached(f.ttls, b.q), f.mode
			s.Holders = append(s.Holders, f.Holder)
		}
	}
	return s
}

// List yields the keys that one owner holds on a majority of the nodes, and those split keys
// that it meets. It reads all keys of the nodes. When a majority has answered it waits for the
// others no longer than slowList, after which it ends their calls.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.calls.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	slow := slowList
	if end, ok := ctx.Deadline(); ok {
		slow = min(slow, time.Until(end)/4)
	}
	var answered atomic.Int32
	lists := make([][]*driver.State, len(b.nodes))
	errs := b.each(ctx, func(ctx context.Context, n *node) error {
		in, err := n.inspector()
		if err == nil {
			err = in.List(ctx, prefix, func(s *driver.State) bool { lists[n.index] = append(lists[n.index], s); return true })
		}
		switch {
		case err == nil && int(answered.Add(1)) == b.q:
			time.AfterFunc(slow, func() { cancel(errLate) })
		case err != nil && errors.Is(context.Cause(ctx), errLate):
			return errLate
		}
		return err
	})
	found := map[string][]driver.NodeState{}
	for i, states := range lists {
		for _, s := range states {
			if errs[i] != nil {
				break
			}
			if found[s.Key] == nil {
				found[s.Key] = b.nodeStates()
			}
			found[s.Key][i].State = s
		}
	}
	if err := b.answered(errs); err != nil {
		return err
	}
	for key, nodes := range found {
		for i := range nodes {
			switch {
			case errs[i] != nil:
				nodes[i].Err = errs[i].Error()
			case nodes[i].State == nil:
				nodes[i].State = &driver.State{Key: key}
			}
		}
		s := b.merge(key, nodes)
		if (len(s.Holders) > 0 || s.Verdict() == "split") && !yield(s) {
			return nil
		}
	}
	return nil
}

// slowList is how long List waits for a minority.
const slowList = 2 * time.Second

var errLate = errors.New("it did not answer in time")

// Break takes key from the holder with token fence, on every node that has it; readers whose tokens
// are equal lose it together. A majority must answer. ErrLost: none of them knows such a holder. A
// node's own token may be smaller than the lease's, which was raised after the grant, so Break first
// finds the holder by Lookup.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	if err := b.begin(ctx); err != nil {
		return err
	}
	defer b.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, inspectTimeout)
	defer cancel()
	owners, err := b.ownersOf(ctx, key, h.Fence)
	if err != nil {
		return err
	}
	return b.answered(b.each(ctx, func(ctx context.Context, n *node) error {
		return n.breakHold(ctx, key, owners)
	}))
}

// ownersOf returns the owners of key with token fence: of leases with this token on a majority,
// or of a node on which only this token is known.
func (b *Backend) ownersOf(ctx context.Context, key string, fence uint64) (owners []string, err error) {
	s, err := b.Lookup(ctx, key)
	if err != nil {
		return nil, err
	}
	leases := map[string]bool{}
	for _, h := range s.Holders {
		if leases[h.Owner] = true; h.Fence == fence {
			owners = append(owners, h.Owner)
		}
	}
	for i := 0; i < len(s.Nodes) && owners == nil; i++ {
		if n := s.Nodes[i].State; n != nil {
			for _, h := range n.Holders {
				if h.Fence == fence && !leases[h.Owner] {
					owners = append(owners, h.Owner)
				}
			}
		}
	}
	if owners == nil {
		return nil, driver.ErrLost
	}
	return owners, nil
}

// breakHold takes key from owners on one node.
func (n *node) breakHold(ctx context.Context, key string, owners []string) error {
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
		if !slices.Contains(owners, requester(h.Owner)) {
			continue
		}
		if err := a.Break(ctx, key, h); err != nil && !errors.Is(err, driver.ErrLost) {
			return err
		}
	}
	return nil
}
