package memory

import (
	"context"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Lookup returns the state of key.
func (b *Backend) Lookup(ctx context.Context, key string) (*driver.State, error) {
	if _, err := b.applyOutage(ctx, false); err != nil {
		return nil, err
	}
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	now := time.Now()
	if err := b.usable(ctx, now); err != nil {
		return nil, err
	}
	e := b.space.entries[b.key(key)]
	if e == nil {
		return &driver.State{Key: key}, nil
	}
	return b.state(e, now), nil
}

// List yields the keys that begin with prefix and are held when it is called.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	states, err := b.states(ctx, prefix)
	if err != nil {
		return err
	}
	for _, s := range states {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !yield(s) {
			return nil
		}
	}
	return nil
}

// states collects all states before List yields the first, because yield may call the backend.
func (b *Backend) states(ctx context.Context, prefix string) ([]*driver.State, error) {
	if _, err := b.applyOutage(ctx, false); err != nil {
		return nil, err
	}
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	now := time.Now()
	if err := b.usable(ctx, now); err != nil {
		return nil, err
	}
	var states []*driver.State
	for key, e := range b.space.entries {
		if !strings.HasPrefix(key, b.prefix) || !strings.HasPrefix(key[len(b.prefix):], prefix) {
			continue
		}
		if s := b.state(e, now); len(s.Holders) > 0 {
			states = append(states, s)
		}
	}
	return states, nil
}

func (b *Backend) state(e *entry, now time.Time) *driver.State {
	e.purge(now)
	s := &driver.State{Key: e.key[len(b.prefix):], Fence: e.counter, Waiters: len(e.queue)}
	for _, w := range e.queue[:min(len(e.queue), 100)] {
		s.Queue = append(s.Queue, driver.Waiter{Owner: w.req.Owner})
	}
	for i := range e.holders {
		h := &e.holders[i]
		s.Mode = h.mode
		holder := driver.Holder{Owner: h.owner, Fence: h.fence, Since: wall(h.since)}
		if !h.until.IsZero() {
			holder.TTL = h.until.Sub(now)
		}
		s.Holders = append(s.Holders, holder)
	}
	return s
}

// Check returns a note that the locks are those of one process.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	if _, err := b.applyOutage(ctx, false); err != nil {
		return nil, err
	}
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	if err := b.usable(ctx, time.Now()); err != nil {
		return nil, err
	}
	return []driver.Diagnostic{{
		Code:     "one-process",
		Severity: driver.SeverityNote,
		Node:     b.space.address,
		Summary:  "locks exclude only within this process",
		Remedy:   "use file: between processes of one machine, and a driver with a server between machines",
	}}, nil
}

// Break takes key from the holder with h's token, which learns so at once.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	if _, err := b.applyOutage(ctx, false); err != nil {
		return err
	}
	b.space.mu.Lock()
	defer b.space.mu.Unlock()
	now := time.Now()
	if err := b.usable(ctx, now); err != nil {
		return err
	}
	e := b.space.entries[b.key(key)]
	if e == nil {
		return driver.ErrLost
	}
	e.purge(now)
	err := driver.ErrLost
	e.evict(now, func(other *hold) bool {
		if other.fence != h.Fence {
			return false
		}
		err = nil
		return true
	})
	return err
}
