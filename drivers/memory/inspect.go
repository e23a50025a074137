package memory

import (
	"context"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// Lookup returns the state of key.
func (b *Backend) Lookup(ctx context.Context, key string) (state *driver.State, err error) {
	err = b.call(ctx, false, func(_, now time.Time) error {
		if e := b.space.entries[b.prefix+key]; e != nil {
			state = b.state(e, now)
		} else {
			state = &driver.State{Key: key}
		}
		return nil
	})
	return state, err
}

// List yields the keys that begin with prefix and are held when it is called.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	var states []*driver.State // before the first is given to yield, which may call the backend
	err := b.call(ctx, false, func(_, now time.Time) error {
		for key, e := range b.space.entries {
			if !strings.HasPrefix(key, b.prefix+prefix) {
				continue
			}
			if s := b.state(e, now); len(s.Holders) > 0 {
				states = append(states, s)
			}
		}
		return nil
	})
	for _, s := range states {
		if err = ctx.Err(); err != nil || !yield(s) {
			break
		}
	}
	return err
}

func (b *Backend) state(e *entry, now time.Time) *driver.State {
	e.purge(now)
	queue := make([]base.Entry, 0, len(e.holders)+len(e.queue))
	for _, l := range e.holders {
		holder := driver.Holder{Owner: l.owner, Fence: l.fence, Tokens: l.tokens, Since: wall(l.since)}
		if !l.until.IsZero() {
			holder.TTL = l.until.Sub(now)
		}
		queue = append(queue, base.Entry{Holder: holder, Mode: l.mode})
	}
	for _, w := range e.queue {
		queue = append(queue, base.Entry{Holder: driver.Holder{Owner: w.req.Owner}, Mode: w.req.Mode})
	}
	return base.QueueState(e.key[len(b.prefix):], e.counter, queue)
}

// Check finds nothing: locks exclude within this process.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	return nil, b.call(ctx, false, func(_, _ time.Time) error { return nil })
}

// Break takes key from the holder with h's token, which learns so at once.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	return b.call(ctx, false, func(_, now time.Time) error {
		err := driver.ErrLost
		if e := b.space.entries[b.prefix+key]; e != nil {
			e.purge(now)
			e.evict(now, func(other *lease) bool {
				if other.fence == h.Fence {
					err = nil
				}
				return other.fence == h.Fence
			})
		}
		return err
	})
}
