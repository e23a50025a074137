package redisnode

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

const (
	// releaseTries is how often a release is sent before it gives up, and releasePause the
	// first pause between two: each is four times the one before, 850 ms in all. Some failures
	// pass quickly, for example if the client's connections were just cut.
	releaseTries = 5
	releasePause = 10 * time.Millisecond
)

// releasePlace frees the lock if its value is this one, or begins with it if value ends in '|', and
// gives up a place in the queue, if there is one. It reports whether it found such a lock. It tries
// again if the outcome is unknown; then "not found" counts as found.
func (n *Node) releasePlace(ctx context.Context, key, value, place string, tries int) (found bool, err error) {
	return n.releasing(key, value, place, names.Siblings{WaitQueue: n.names.WaitQueue(key)}).run(ctx, tries)
}

// A releasing is one release, which may be sent several times.
type releasing struct {
	node  *Node
	key   string
	place string // place in the queue to give up
	value string
	names names.Siblings
	ask   request
	again bool // an earlier try may have taken effect

	silent   bool  // no waiter is told
	giveBack bool  // the first try sets the counter back…
	before   int64 // …to this

	lease interface { // of a started release
		freed(ctx context.Context, found bool, err error) error
	}
	term     async.Term
	receiver async.Receiver
}

func (n *Node) releasing(key, value, place string, beside names.Siblings) *releasing {
	t, _ := n.releasings.Get().(*releasing)
	if t == nil {
		t = new(releasing)
	}
	t.node, t.key, t.value, t.place, t.names = n, key, value, place, beside
	t.ask.op, t.ask.script = lua.Release, t
	t.ask.keys = append(t.ask.room.keys[:0], n.names.Lock(key), beside.WaitQueue)
	return t
}

// giveBackTo makes the first try set the counter back.
func (t *releasing) giveBackTo(before int64) {
	t.giveBack, t.before = true, before
	t.ask.keys = append(t.ask.keys, t.names.Counter)
}

// free returns t for reuse: nothing refers to it any more, and its calls are answered.
func (t *releasing) free() {
	if t.again {
		return
	}
	n, wake := t.node, t.ask.first.wake
	*t = releasing{}
	t.ask.first.wake = wake
	n.releasings.Put(t)
}

func (t *releasing) args(p *process, args []string) []string {
	n, tells := t.node, "1"
	if n.cfg.Cluster { // PUBLISH counts only the subscribers of one node
		tells = "0"
	}
	args = append(args, tells, t.value, n.waiterChannels)
	if t.place != "" {
		return append(args, t.place)
	}
	silent := ""
	if left, _ := n.gap(p); left > 0 || t.silent {
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
		args = append(args, "", silent)
	}
	return args
}

// run sends the release, at most this many times, and reports whether it has found the lock.
func (t *releasing) run(ctx context.Context, tries int) (found bool, err error) {
	n := t.node
	a, err := n.router.run(async.Within(ctx, n.cfg.CallTimeout), &t.ask)
	found, err, over := t.heard(a, err)
	if !over {
		return t.more(async.Within(ctx, 2*n.cfg.CallTimeout), tries-1, err)
	}
	if err == nil {
		t.free()
	}
	return found, err
}

// answered gets the result of a started release.
func (t *releasing) answered(a *answer, err error) {
	l, term, receiver := t.lease, t.term, t.receiver
	found, err, _ := t.heard(a, err)
	if err == nil {
		t.free()
	}
	receiver.Released(l.freed(term, found, err))
}

// heard reads an answer, or the error instead of one; over says that another try is useless.
func (t *releasing) heard(a *answer, err error) (found bool, _ error, over bool) {
	n := t.node
	if err != nil {
		var reply ServerError
		if errors.As(err, &reply) && n.verdict(t.key, reply) != nil {
			return false, err, true
		}
		t.again = t.again || n.unknown(err)
		return false, err, false
	}
	code := a.code()
	if code < 0 || code > 3 {
		t.again = true
		return false, errGarbled, false
	}
	if code == 2 {
		n.publishRefused.Do(func() {
			n.cfg.Notify(driver.Notice{Kind: driver.NoticeDegraded, Node: n.cfg.Addr, Detail: "PUBLISH is not allowed: waiters learn of a release only by polling (allow the channel " + n.cfg.Prefix + names.Layout + "*)"})
		})
	}
	if code == 3 {
		n.queue.handedOver(t.key)
	}
	return code != 0 || t.again, nil, true
}

// more tries this many times more, with pauses; err is the error of the first try.
func (t *releasing) more(ctx context.Context, tries int, err error) (found bool, _ error) {
	n, pause := t.node, releasePause
	for range tries {
		if !n.pause(ctx, pause) {
			break
		}
		pause *= 4
		var a *answer
		var over bool
		a, err = n.router.run(async.Within(ctx, n.cfg.CallTimeout), &t.ask)
		if found, err, over = t.heard(a, err); over {
			return found, err
		}
	}
	return false, err
}

// pause pauses, and reports whether ctx and Close allow another try.
func (n *Node) pause(ctx context.Context, pause time.Duration) bool {
	return async.Await(async.Within(ctx, pause), n.over) != nil && ctx.Err() == nil
}
