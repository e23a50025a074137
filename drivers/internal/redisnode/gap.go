package redisnode

import (
	"context"
	"time"
)

// Where a lock is handed from one waiter to the next it is never free, and other libraries,
// which ask now and then whether it is, never get it. With ForeignGap each second of the
// server's clock begins with a time in which it is not handed over: a release frees it, and
// those who wait here hold back until the gap is over.

const gapEvery = time.Second

// gap returns how much is left of the gap that the server's clock is in, and the time until
// the next end of one. Both are zero where there are no gaps.
func (n *Node) gap(p *process) (left, end time.Duration) {
	if n.cfg.ForeignGap == 0 {
		return 0, 0
	}
	phase := time.Duration(p.clock.at(time.Now())) * time.Microsecond % gapEvery
	if phase < n.cfg.ForeignGap {
		return n.cfg.ForeignGap - phase, n.cfg.ForeignGap - phase
	}
	return 0, gapEvery - phase + n.cfg.ForeignGap
}

// holdBack waits until a gap is over, if somebody watches the key here.
func (n *Node) holdBack(ctx context.Context, key string) {
	p := n.router.known(n.names.lock(key))
	if n.cfg.ForeignGap == 0 || p == nil || !n.waiters.watched(key) {
		return
	}
	if left, _ := n.gap(p); left > 0 {
		_ = await(within(ctx, left), n.ending)
	}
}

// watched reports whether somebody watches the key here.
func (h *waiters) watched(key string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[h.node.names.channel(key)]
	return t != nil && len(t.watchers) > 0
}
