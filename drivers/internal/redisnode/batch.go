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
	of       *answer // one of the calls
	releases []*answer
	acquires []*answer
}

// gather puts calls into batches. It returns the batches and the calls that they do not take. A
// script blocks its server, so a batch has at most maxBatch calls.
func (f *router) gather(calls []*Call, usual time.Duration) (send []*Call, spread func()) {
	var batches []*batch
	for some := range slices.Chunk(calls, maxBatch) {
		b, sent := f.gatherOne(some, usual)
		send = append(send, sent...)
		if b != nil {
			batches = append(batches, b)
		}
	}
	return send, func() {
		for _, b := range batches {
			f.spread(b)
		}
	}
}

// gatherOne puts calls into one batch. It returns the batch, and the list to send: the batch
// and the calls that it does not take. It returns nil and calls if a batch is not worth its
// cost.
func (f *router) gatherOne(calls []*Call, usual time.Duration) (*batch, []*Call) {
	now, least := time.Now(), max(promptly*usual, minTimeout/5)
	is := func(a *answer, o lua.Op) bool { return a != nil && !a.alone && a.request.op == o }
	// Its answer may change meanwhile: another goroutine loads the script.
	takes := func(a *answer) bool { return is(a, lua.Acquire) && a.deadline.Sub(now) >= least && a.by.ready(now) }
	var first *answer // of the acquires, which must be alike
	for _, c := range calls {
		if a := c.gathered; takes(a) {
			first = a
			break
		}
	}
	b := &batch{of: first}
	seen := make(map[string]bool, len(calls))
	send := append(make([]*Call, 0, 1+len(calls)), &b.Call)
	for _, c := range calls {
		twice := seen[c.Keys[0]]
		seen[c.Keys[0]] = true
		a := c.gathered
		switch {
		case twice:
			send = append(send, c)
		case is(a, lua.Release) && (first != nil || a.by.ready(now)):
			b.releases = append(b.releases, a)
		case first != nil && takes(a) && a.by == first.by && a.Args[2] == first.Args[2] && a.Args[4] == first.Args[4] && digits(a) == digits(first):
			b.acquires = append(b.acquires, a)
		default:
			send = append(send, c)
		}
	}
	if b.size() < leastInBatch {
		return nil, calls
	}
	if first == nil {
		b.of = b.releases[0]
	}
	b.fill()
	return b, send
}

// digits returns the length of an acquire's proposed token; zero: it has none.
func digits(c *answer) int {
	if c.Args[3] == "0" {
		return 0
	}
	return len(c.Args[3])
}

func (b *batch) size() int { return len(b.releases) + len(b.acquires) }

// call returns the call with this number.
func (b *batch) call(i int) *answer {
	if i < len(b.releases) {
		return b.releases[i]
	}
	return b.acquires[i-len(b.releases)]
}

// fill makes the call: see lua/batch.lua.
func (b *batch) fill() {
	notAfter, px, life, tokens := int64(0), "0", "0", 0
	for i, c := range b.acquires {
		if i == 0 || c.notAfter < notAfter {
			notAfter = c.notAfter
		}
		px, life, tokens = c.Args[2], c.Args[4], digits(c)
	}
	b.SHA = b.of.sha
	b.Keys = make([]string, 0, 2*b.size()+2)
	b.Args = append(make([]string, 0, 6+b.size()), strconv.FormatInt(notAfter, 10), px, life,
		strconv.Itoa(len(b.releases)), strconv.Itoa(len(b.acquires)), strconv.Itoa(tokens))
	for i := range 2 { // the locks, and then what is beside each
		for _, c := range b.releases {
			b.Keys = append(b.Keys, c.Keys[i])
		}
		for _, c := range b.acquires {
			b.Keys = append(b.Keys, c.Keys[i])
		}
	}
	for _, c := range b.releases {
		b.Args = append(b.Args, c.Args[1])
	}
	for _, c := range b.acquires {
		b.Args = append(b.Args, c.Args[1]+"|"+c.Args[3][:tokens])
	}
	if len(b.acquires) > 0 {
		b.Keys = append(b.Keys, b.acquires[0].Keys[2:]...) // mark, and meta
	}
}

// spread gives each call of the batch the reply of its single script, or marks it as left
// alone. A server's error that is not a refusal leaves the outcome unknown.
func (f *router) spread(b *batch) {
	var refusal ServerError
	switch {
	case b.Err == nil:
		if !b.read() {
			b.of.by.rest(afterNoUse) // a right is missing, or all locks have waiters
		}
	case isCode(b.Err, "NOSCRIPT"):
		f.loadBatch(b.of)
		b.leave(0, b.size())
	case errors.As(b.Err, &refusal) && !f.node.unknown(b.Err):
		b.of.by.rest(afterRefusal)
		b.leave(0, b.size())
	default:
		for i := range b.size() {
			b.call(i).Err = b.Err
		}
	}
}

// leave marks calls to be sent singly.
func (b *batch) leave(from, to int) {
	for i := from; i < to; i++ {
		c := b.call(i)
		c.alone, c.inBatch, c.unanswered, c.Reply, c.Number = true, false, true, nil, 0
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
	if !ok {
		for i := range b.size() {
			b.call(i).Err = errGarbled
		}
		return false
	}
	for _, c := range b.releases {
		c.Number = 1
	}
	for _, c := range b.acquires {
		c.Number, c.inBatch = now, true
	}
	if b.Reply == nil {
		return true
	}
	if verdict, ok := b.Reply[1].([]any); ok {
		b.verdict(verdict)
	}
	releases, acquires := 0, 0 // left alone
	for i := 2; i < len(b.Reply); i += 3 {
		at, _ := number(b.Reply, i)
		if at < 1 || int(at) > b.size() {
			continue
		}
		c := b.call(int(at) - 1)
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
			b.leave(int(at)-1, int(at))
			if int(at) <= len(b.releases) {
				releases++
			} else {
				acquires++
			}
		}
	}
	return (releases < 2 || releases < len(b.releases)) && (acquires < 2 || acquires < len(b.acquires))
}

// verdict is the reason for refusing all acquires: the batch was late, or the guard's reason.
func (b *batch) verdict(reply []any) {
	code, _ := number(reply, 0)
	now, _ := number(reply, 1)
	for i, c := range b.acquires {
		c.Reply = reply
		if code == -1 && c.notAfter >= now {
			b.leave(len(b.releases)+i, len(b.releases)+i+1)
		}
	}
}

// loadBatch loads the batch script for a call's process and guard, in the background.
func (f *router) loadBatch(of *answer) {
	// Copies: the call may be reused meanwhile.
	by, at := of.by, of.process
	keys, q := slices.Clone(of.request.keys), of.request.q
	by.rest(afterRefusal)
	f.guard.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), f.guard.cfg.CallTimeout)
		defer cancel()
		p, err := f.load(ctx, at, lua.Batch, q, keys, false)
		by.rest(afterNoUse)
		if err == nil && p == at {
			by.rest(0)
		}
	})
}
