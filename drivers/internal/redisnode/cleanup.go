package redisnode

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

// maxCleaning bounds the concurrent clean-ups: as many as calls may be under way to a server
// when it stops answering. Beyond it, a key that may be left ends with its TTL.
const maxCleaning = maxUnderWay

// unsettled is an attempt, some calls of which have an unknown outcome.
type unsettled struct {
	key, owner string
	place      string // in the wait queue, if it has one
	late       []inDoubtCall
	vote       bool // in a quorum, which did not count it
}

// cleanUp undoes an attempt whose outcome is unknown, in the background and detached from the
// caller's context: at once, which frees the lock for others if the attempt has taken effect;
// and again when no request of it can take effect any more, because a release may overtake it
// on another connection. That time has come when its call has returned with an answer, or after
// its not-after. A vote whose calls may still be answered is undone only then, because its answer
// says what it did to the counter, and the vote can be given back. If the server does not answer, or refuses for now, it asks again until the lock
// has ended by itself.
func (n *Node) cleanUp(ctx context.Context, t unsettled) {
	if n.cleaning.Add(1) > maxCleaning {
		n.cleaning.Add(-1)
		n.cfg.Notify(driver.Notice{Kind: driver.NoticeDegraded, Node: n.cfg.Addr, Key: t.key, Detail: "too many clean-ups are under way: a lock may stay until its TTL ends"})
		return
	}
	n.aside(func() {
		defer n.cleaning.Add(-1)
		n.undo(context.WithoutCancel(ctx), t)
	})
}

func (n *Node) undo(ctx context.Context, t unsettled) {
	value := t.owner + "|"
	if !slices.ContainsFunc(t.late, n.answered) && (!t.vote || slices.ContainsFunc(t.late, inDoubtCall.cut)) {
		_, _ = n.releasePlace(ctx, t.key, value, "", 1)
	}
	most := async.Within(ctx, 2*n.cfg.CallTimeout+time.Second)
	for _, d := range t.late { // any of them may be the last to take effect
		n.settle(most, d)
	}
	ended := async.Within(ctx, t.late[0].life)
	if fence, before := n.votes(t.late); t.vote && before != unknown {
		vote := n.releasing(t.key, value+strconv.FormatInt(fence, 10), "", names.Siblings{Counter: n.names.Counter(t.key), WaitQueue: n.names.WaitQueue(t.key)})
		vote.giveBackTo(before)
		_, _ = vote.run(ctx, 1)
	}
	for last := false; ; {
		_, err := n.releasePlace(ctx, t.key, value, n.queue.unused(t.key, t.place), releaseTries)
		if err == nil || n.final(err) || last {
			return
		}
		last = async.Await(async.Within(ended, cleanUpPause), n.ending) == nil || ended.Err() != nil
	}
}

// cleanUpPause is the pause of a clean-up after a release without an answer.
const cleanUpPause = time.Second

// stray is how long after its connection was cut a request may still arrive, if a proxy had
// forwarded it. Only Close relies on this.
const stray = 100 * time.Millisecond

// settle waits until the call cannot take effect any more: it was answered, or the server's
// clock has certainly passed its not-after. Two bounds end the wait: most, in case the server's
// clock is set back meanwhile, and Close, which does not wait for the not-after of a request
// whose connection was cut.
func (n *Node) settle(most context.Context, d inDoubtCall) {
	past := async.Within(most, time.Until(d.process.clock.passed(d.notAfter)))
	if async.Await(past, d.call.done) != nil || n.answered(d) {
		return
	}
	if d.cut() {
		_ = async.Await(past, n.ending)
		past = async.Within(past, stray)
	}
	_ = async.Await(past, n.over)
}
