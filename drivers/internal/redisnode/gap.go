package redisnode

import (
	"context"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/async"
)

// A lock that one waiter hands to the next is never free, so other libraries, which poll, never
// get it. With ForeignGap each second of the server's clock begins with a gap in which locks
// are not handed over: a release frees the lock, and our waiters hold back until the gap is
// over.

// gap returns the rest of the current gap by the server's clock, and the time until the next
// end of a gap. Both are zero without gaps.
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

// holdBack waits until a gap is over, if a waiter of this process watches the key.
func (n *Node) holdBack(ctx context.Context, key string) {
	p := n.router.known(n.names.Lock(key))
	if n.cfg.ForeignGap == 0 || p == nil || !n.queue.watched(key) {
		return
	}
	if left, _ := n.gap(p); left > 0 {
		_ = async.Await(async.Within(ctx, left), n.ending)
	}
}
