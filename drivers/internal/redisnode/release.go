package redisnode

import (
	"context"
	"slices"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// A releasing is one release, which may be sent several times: it frees the lock if its value is this
// one, or begins with it if value ends in '|', and gives up a place in the queue, if there is one.
type releasing struct {
	operation
	place string // place in the queue to give up
	value string

	silent   bool  // no waiter is told
	giveBack bool  // the first try sets the counter back…
	before   int64 // …to this

	lease *Lease // nil: a clean-up
	maybe bool   // an earlier try may have taken effect: then "not found" counts as found
	found bool   // it has found such a lock
}

func (n *Node) releasing(of *names.Texts, value, place string, shared bool) *releasing {
	t := reused[releasing](&n.releasings)
	t.node, t.part, t.op, t.texts, t.value, t.place = n, t, lua.Release, of, value, place
	t.keys = append(t.room.keys[:0], of.Lock, of.WaitQueue)
	if shared {
		t.share()
	}
	return t
}

// share asks the script that knows readers: a reader releases, or the release met readers.
func (t *releasing) share() {
	t.shared, t.op = true, lua.ReleaseShared
	t.keys = append(t.keys[:2:2], t.node.names.Readers(t.texts.Key))
}

// giveBackTo makes the first try set the counter back.
func (t *releasing) giveBackTo(before int64) {
	t.giveBack, t.before = true, before
	t.keys = append(t.keys, t.texts.Counter)
}

func (t *releasing) args(c *Call, args []string) []string {
	n := t.node
	args = append(args, n.tells, t.value, n.waiterChannels)
	silent := ""
	if t.silent {
		silent = "silent"
	}
	switch {
	case t.giveBack && !t.again:
		before := ""
		if t.before > 0 {
			before = strconv.FormatInt(t.before, 10)
		}
		args = append(args, "", silent, before)
	case silent != "":
		args = append(args, t.place, silent)
	case t.place != "":
		args = append(args, t.place)
	}
	return args
}

// do sends the release, within a call timeout, and reports whether it has found the lock.
func (t *releasing) do(ctx context.Context) (found bool, err error) {
	err = t.run(async.Within(ctx, t.node.cfg.CallTimeout))
	found = t.found
	reuse(&t.node.releasings, t, &t.operation)
	return found, err
}

// tell gives a started release's receiver the result.
func (t *releasing) tell(err error) {
	l, term, receiver, found := t.lease, t.term, t.receiver, t.found
	reuse(&t.node.releasings, t, &t.operation)
	receiver.Released(l.freed(term, found, err))
}

func (t *releasing) heard(c *Call, err error, late bool) error {
	n := t.node
	if err != nil {
		if isReply(err) && !n.unknown(err) {
			return err
		}
		t.maybe = t.maybe || n.unknown(err)
		return t.failed(err, late)
	}
	switch code := c.code(); code {
	case 0, 1, 2, 3:
		t.found = code != 0 || t.maybe
		return nil
	case 4:
		if !t.shared { // which has given the vote back
			t.giveBack = false
			t.share()
			return errAgain
		}
	}
	t.maybe = true
	return t.failed(errGarbled, late)
}

// release tries once to free a lock in the background: see releasing.
func (n *Node) release(ctx context.Context, key, value, place string, shared bool) error {
	t := n.releasing(n.names.Texts(key, "", 0), value, place, shared)
	t.once = true
	_, err := t.do(ctx)
	return err
}

// maxCleaning bounds the concurrent clean-ups: as many as calls may be under way to a server
// when it stops answering. Beyond it, a key that may be left ends with its TTL.
const maxCleaning = maxUnderWay

// unsettled is a lock that may be left: that of an attempt, some calls of which have an unknown outcome,
// or of a release.
type unsettled struct {
	key    string
	value  string        // as for a release
	shared bool          // of a reader
	life   time.Duration // when the lock has ended by itself
	place  string        // in the wait queue, if it has one
	late   []*Call       // of an attempt
	vote   bool          // in a quorum, which did not count it
}

// cleanUp frees it in the background and detached from the caller's context: at once, which frees the
// lock for others if an attempt has taken effect; and again when no request of it can take effect any
// more, because a release may overtake it on another connection. That time has come when its call has
// returned with an answer, or after its not-after. A vote whose calls may still be answered is undone
// only then, because its answer says what it did to the counter, and the vote can be given back. If
// the server does not answer, or refuses for now, it asks again until the lock has ended by itself.
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
	if len(t.late) > 0 && !slices.ContainsFunc(t.late, n.answered) && (!t.vote || slices.ContainsFunc(t.late, (*Call).cut)) {
		_ = n.release(ctx, t.key, t.value, "", t.shared)
	}
	most := async.Within(ctx, 2*n.cfg.CallTimeout+time.Second)
	for _, c := range t.late { // any of them may be the last to take effect
		n.settle(most, c)
	}
	ended := async.Within(ctx, t.life)
	if fence, before := n.votes(t.late); t.vote && before != unknown {
		vote := n.releasing(n.names.Texts(t.key, "", 0), t.value+strconv.FormatInt(fence, 10), "", t.shared)
		vote.giveBackTo(before)
		_, _ = vote.do(ctx)
	}
	pause := firstPause / 4
	for last := false; ; {
		began := time.Now()
		err := n.release(ctx, t.key, t.value, n.queue.unused(t.key, t.place), t.shared)
		if err == nil || n.final(err) || last {
			return
		}
		pause = min(4*max(pause, time.Since(began)), mostPause)
		if last = async.Await(async.Within(ended, pause), n.ending) == nil; !last && ended.Err() != nil {
			return
		}
	}
}

// The pauses of a clean-up after a release without an answer. Some failures pass quickly, for example
// if the client's connections were just cut. A server that does not answer at all is asked seldom.
const firstPause, mostPause = 10 * time.Millisecond, time.Second

// stray is how long after its connection was cut a request may still arrive, if a proxy had
// forwarded it. Only Close relies on this.
const stray = 100 * time.Millisecond

// settle waits until the call cannot take effect any more: it was answered, or the server's
// clock has certainly passed its not-after. Two bounds end the wait: most, in case the server's
// clock is set back meanwhile, and Close, which does not wait for the not-after of a request
// whose connection was cut.
func (n *Node) settle(most context.Context, c *Call) {
	past := async.Within(most, time.Until(c.process.clock.passed(c.notAfter)))
	if async.Await(past, c.done) != nil || n.answered(c) {
		return
	}
	if c.cut() {
		_ = async.Await(past, n.ending)
		past = async.Within(past, stray)
	}
	_ = async.Await(past, n.over)
}
