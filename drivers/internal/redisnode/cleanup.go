package redisnode

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// maxCleaning bounds the clean-ups under way; beyond it a key that may have been
// left ends with its TTL.
const maxCleaning = 4096

// cleanUp undoes an attempt whose outcome is unknown, in the background and
// detached from the caller's context: at once, which frees it for others if it did
// take effect; and again when nothing of it can take effect any more, since
// a release may overtake it on another connection. That is when its call has
// returned with an answer, or after its not-after.
func (n *Node) cleanUp(ctx context.Context, t *attempt) {
	if n.cleaning.Add(1) > maxCleaning {
		n.cleaning.Add(-1)
		n.cfg.Event(driver.Notice{Kind: driver.NoticeDegraded, Node: n.cfg.Addr, Key: t.key, Detail: "too many clean-ups are under way: a lock may stay until its TTL ends"})
		return
	}
	n.work.add()
	n.wg.add()
	go func() {
		defer n.wg.done()
		defer n.work.done()
		defer n.cleaning.Add(-1)
		n.undo(context.WithoutCancel(ctx), t)
	}()
}

func (n *Node) undo(ctx context.Context, t *attempt) {
	value := t.owner + "|"
	if !slices.ContainsFunc(t.late, n.answered) {
		_, _ = n.release(ctx, t.key, value, 1)
	}
	most := within(ctx, 2*n.cfg.CallTimeout+time.Second)
	for _, d := range t.late { // each may be the last to take effect
		n.settle(most, d)
	}
	_, _ = n.releasePlace(ctx, t.key, value, n.waiters.unused(t.key, t.place), releaseTries)
}

// answered reports whether the server has answered the call by now.
func (n *Node) answered(d inDoubtCall) bool {
	select {
	case <-d.call.done:
		return d.call.Err == nil || !n.unknown(d.call.Err)
	default:
		return false
	}
}

// cut reports whether the call ended because its connection did: not by a timeout, after
// which the request may be anywhere.
func (d inDoubtCall) cut() bool {
	select {
	case <-d.call.done:
	default:
		return false
	}
	var slow net.Error
	var reply ServerError
	return !errors.As(d.call.Err, &reply) && !errors.Is(d.call.Err, context.DeadlineExceeded) && !errors.Is(d.call.Err, context.Canceled) &&
		!(errors.As(d.call.Err, &slow) && slow.Timeout())
}

// stray is how long after its connection was cut a request may still arrive: what a proxy
// had passed on. Only Close relies on it.
const stray = 100 * time.Millisecond

// settle returns when the call cannot take effect any more: it was answered, or the
// server's clock has passed its not-after for certain. It is bounded by most, for a
// server whose clock is set back meanwhile, and by Close, which does not wait for the
// not-after of a request whose connection was cut.
func (n *Node) settle(most context.Context, d inDoubtCall) {
	past := within(most, time.Until(d.process.clock.passed(d.notAfter)))
	if await(past, d.call.done) != nil || n.answered(d) {
		return
	}
	if d.cut() {
		_ = await(past, n.ending)
		past = within(past, stray)
	}
	_ = await(past, n.over)
}
