package bench

import (
	"context"
	"fmt"
	"time"
)

// floor is a quorum over bare sockets without a goroutine per node: the least that
// asking them all can cost. A socket keeps the order of what one caller sends, so that
// a release cannot overtake its acquisition.
type floor struct{ *limit }

type floorHeld struct {
	*floor
	key, owner string
	tokens     []string
}

func (f *floor) Lock(ctx context.Context, key string, _ bool) (Held, error) {
	h := &floorHeld{floor: f, key: key, owner: newOwner(), tokens: make([]string, len(f.nodes))}
	done := make(chan *call, len(f.nodes))
	for i, n := range f.nodes {
		n.commands.(*socket).start(&call{node: i, done: done}, n.acquire(key, h.owner))
	}
	return h, h.verdict(ctx, done, func(c *call) (ok bool) {
		h.tokens[c.node], ok = h.nodes[c.node].granted(c.reply)
		return ok
	})
}

// verdict waits until a majority is good.
func (f *floor) verdict(ctx context.Context, done <-chan *call, good func(*call) bool) error {
	timeout := time.NewTimer(f.setup.nodeTimeout())
	defer timeout.Stop()
	count, last := 0, any(nil)
	for range f.nodes {
		select {
		case c := <-done:
			if !good(c) {
				last = c.reply
			} else if count++; count == f.quorum() {
				return nil
			}
		case <-timeout.C:
			return fmt.Errorf("%d of %d nodes answered in time", count, len(f.nodes))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return fmt.Errorf("%d of %d nodes: %v", count, len(f.nodes), last)
}

// all sends a command to every node and waits for a majority to take it.
func (h *floorHeld) all(ctx context.Context, command func(n *limitNode, token string) []string) error {
	done := make(chan *call, len(h.nodes))
	for i, n := range h.nodes {
		n.commands.(*socket).start(&call{node: i, done: done}, command(n, h.tokens[i]))
	}
	return h.verdict(ctx, done, func(c *call) bool {
		_, failed := c.reply.(error)
		return !failed
	})
}

func (h *floorHeld) Renew(ctx context.Context) error {
	return h.all(ctx, func(n *limitNode, token string) []string { return n.renew(h.key, h.owner, token) })
}

func (h *floorHeld) Unlock() error {
	return h.all(context.Background(), func(n *limitNode, token string) []string {
		return n.protocol.release(h.key, h.owner, token)
	})
}
