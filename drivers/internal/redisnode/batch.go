package redisnode

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// The calls that a pipeline has gathered are sent as one script, lua/batch.lua, because most of
// a call's cost for the server is not its commands. Unusual calls are sent singly beside it;
// calls that the script has left alone are sent singly after it.

const (
	// leastInBatch is the least number of calls for which a batch is worth its cost.
	leastInBatch = 2
	// No batch is sent for this long after one that the server refused, or that was useless.
	afterRefusal, afterNoUse = time.Minute, time.Second
)

// A batch is one script for several calls.
type batch struct {
	Call
	calls    []*Call // the releases, and then the acquires
	releases int     // how many there are
}

// gather puts calls into batches. It returns the list to send, which is of the batches and of the calls
// that they do not take, and the batches. A script blocks its server, so a batch has at most maxBatch
// calls.
func gather(calls []*Call, usual time.Duration) (send []*Call, batches []*batch) {
	for some := range slices.Chunk(calls, maxBatch) {
		b, alone := newBatch(some, usual)
		if b != nil {
			send, batches = append(send, &b.Call), append(batches, b)
		}
		send = append(send, alone...)
	}
	return send, batches
}

// newBatch puts calls into one batch. It returns the batch, and the calls that it does not take; nil and
// all calls if a batch is not worth its cost.
func newBatch(calls []*Call, usual time.Duration) (*batch, []*Call) {
	now, least := time.Now(), max(promptly*usual, minTimeout/5)
	// It may change meanwhile: another goroutine loads the script.
	ready := func(b *bound) bool { return now.UnixNano() >= b.until.Load() }
	is := func(c *Call, o lua.Op) bool { return c.batch != nil && c.of.op == o }
	takes := func(c *Call) bool {
		return is(c, lua.Acquire) && c.deadline.Sub(now) >= least && ready(c.batch)
	}
	var first *Call // of the acquires, which must be alike
	if i := slices.IndexFunc(calls, takes); i >= 0 {
		first = calls[i]
	}
	var alone, releases, acquires []*Call
	seen := make(map[string]bool, len(calls))
	for _, c := range calls {
		switch {
		case seen[c.Keys[0]]:
			alone = append(alone, c)
		case is(c, lua.Release) && (first != nil || ready(c.batch)):
			releases = append(releases, c)
		case first != nil && takes(c) && c.batch == first.batch && c.Args[2] == first.Args[2] && c.Args[4] == first.Args[4] && digits(c) == digits(first):
			acquires = append(acquires, c)
		default:
			alone = append(alone, c)
		}
		seen[c.Keys[0]] = true
	}
	if len(releases)+len(acquires) < leastInBatch {
		return nil, calls
	}
	b := &batch{calls: append(releases, acquires...), releases: len(releases)}
	b.fill()
	return b, alone
}

// digits returns the length of an acquire's proposed token; zero: it has none.
func digits(c *Call) int {
	if c.Args[3] == "0" {
		return 0
	}
	return len(c.Args[3])
}

// last returns a call whose batch script this is: an acquire, if there is one.
func (b *batch) last() *Call { return b.calls[len(b.calls)-1] }

// fill makes the call: see lua/batch.lua.
func (b *batch) fill() {
	notAfter, px, life, tokens := int64(0), "0", "0", 0
	acquires := b.calls[b.releases:]
	for i, c := range acquires {
		if i == 0 || c.notAfter < notAfter {
			notAfter = c.notAfter
		}
		px, life, tokens = c.Args[2], c.Args[4], digits(c)
	}
	b.SHA = b.last().batch.scripts[lua.Batch].SHA
	b.Keys = make([]string, 0, 2*len(b.calls)+2)
	b.Args = append(make([]string, 0, 6+len(b.calls)), strconv.FormatInt(notAfter, 10), px, life,
		strconv.Itoa(b.releases), strconv.Itoa(len(acquires)), strconv.Itoa(tokens))
	for i := range 2 { // the locks, and then what is beside each
		for _, c := range b.calls {
			b.Keys = append(b.Keys, c.Keys[i])
		}
	}
	for i, c := range b.calls {
		value := c.Args[1]
		if i >= b.releases {
			value += "|" + c.Args[3][:tokens]
		}
		b.Args = append(b.Args, value)
	}
	if len(acquires) > 0 {
		b.Keys = append(b.Keys, acquires[0].Keys[2:]...) // mark, and meta
	}
}

// spread gives each call of the batch the reply of its single script, or marks it as left
// alone. A server's error that is not a refusal leaves the outcome unknown.
func (f *router) spread(b *batch) {
	var refusal ServerError
	of := b.last().batch
	switch {
	case b.Err == nil:
		if !b.read() {
			of.rest(afterNoUse) // a right is missing, or all locks have waiters
		}
	case isCode(b.Err, "NOSCRIPT"):
		f.loadBatch(b.last())
		leave(b.calls...)
	case errors.As(b.Err, &refusal) && !f.node.unknown(b.Err):
		of.rest(afterRefusal)
		leave(b.calls...)
	default:
		for _, c := range b.calls {
			c.Err = b.Err
		}
	}
}

// leave marks calls to be sent singly.
func leave(calls ...*Call) {
	for _, c := range calls {
		c.batch, c.inBatch, c.unanswered, c.Reply, c.Number = nil, false, true, nil, 0
	}
}

// read parses the reply: see lua/batch.lua. It returns false if the script has left all
// releases alone, or all acquires.
func (b *batch) read() bool {
	now, ok := b.Number, true
	more := len(b.Reply) - 2
	if b.Reply != nil {
		now, ok = number(b.Reply, 0)
		ok = ok && more >= 0 && more%3 == 0
	}
	for i, c := range b.calls {
		switch {
		case !ok:
			c.Err = errGarbled
		case i < b.releases:
			c.Number = 1
		default:
			c.Number, c.inBatch = now, true
		}
	}
	if !ok || b.Reply == nil {
		return ok
	}
	if verdict, ok := b.Reply[1].([]any); ok {
		b.verdict(verdict)
	}
	releases, acquires := 0, 0 // left alone
	for i := 2; i < len(b.Reply); i += 3 {
		at, _ := number(b.Reply, i)
		if at < 1 || int(at) > len(b.calls) {
			continue
		}
		c := b.calls[at-1]
		what, isNumber := number(b.Reply, i+1)
		switch {
		case !isNumber:
			c.Reply = []any{int64(0), b.Reply[i+1], b.Reply[i+2], now}
		case what == 0:
			c.Number = 0
		case what > 0:
			c.Reply = []any{int64(1), what, now, b.Reply[i+2]}
		case what == -6:
			why, _ := text(b.Reply, i+2)
			c.Reply, c.Err = nil, ServerError(why)
		default:
			leave(c)
			if int(at) <= b.releases {
				releases++
			} else {
				acquires++
			}
		}
	}
	return (releases < 2 || releases < b.releases) && (acquires < 2 || acquires < len(b.calls)-b.releases)
}

// verdict is the reason for refusing all acquires: the batch was late, or the guard's reason.
func (b *batch) verdict(reply []any) {
	code, _ := number(reply, 0)
	now, _ := number(reply, 1)
	for _, c := range b.calls[b.releases:] {
		if c.Reply = reply; code == -1 && c.notAfter >= now {
			leave(c)
		}
	}
}

// loadBatch loads the batch script for a call's process and guard, in the background.
func (f *router) loadBatch(c *Call) {
	of, at, key, q := c.batch, c.process, c.Keys[0], c.of.q // the call may be reused meanwhile
	of.rest(afterRefusal)
	f.guard.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), f.guard.cfg.CallTimeout)
		defer cancel()
		p, err := f.load(ctx, at, lua.Batch, q, key, false)
		of.rest(afterNoUse)
		if err == nil && p == at {
			of.rest(0)
		}
	})
}
