package redisnode

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// What a pipeline has gathered goes as one script, lua/batch.lua: most of what a call costs a
// server is not its commands. A call that is not usual goes beside it, by itself; and so does,
// after it, a call that the script has left alone.

const (
	// leastInBatch calls are worth a script of their own.
	leastInBatch = 2
	// No batch is sent for so long after one that the server has refused, or that was no use.
	afterRefusal, afterNoUse = time.Minute, time.Second
)

// A batcher is the batch script of one process, for one guard or without any.
type batcher struct {
	until  atomic.Int64 // no batch is sent until then: Unix time in ns
	asking atomic.Bool  // the script is being loaded
}

// ready reports whether a batch may be sent.
func (b *batcher) ready(now time.Time) bool { return now.UnixNano() >= b.until.Load() }

// rest lets no batch be sent for a while.
func (b *batcher) rest(d time.Duration) { b.until.Store(time.Now().Add(d).UnixNano()) }

// inBatch is what a batch needs to know of a call; by is nil where none can take it.
type inBatch struct {
	by       *batcher
	at       *process
	ask      *request
	sha      string // of the script
	notAfter int64  // of an acquire
	alone    bool   // a batch has left it alone
	// unanswered says that it has no answer yet: it goes by itself.
	unanswered bool
}

// joins says what a batch may take of a call.
func (f *router) joins(r *request, s *answer) inBatch {
	if f.cluster || s.Replicas > 0 || strings.ContainsAny(r.keys[0], "{}") { // the script makes names itself
		return inBatch{}
	}
	p := s.process
	in := inBatch{by: &p.batches, at: p, ask: r, sha: p.scripts[opBatch].sha}
	switch {
	case r.op == opRelease && len(s.Args) == releaseArgs && !strings.HasSuffix(s.Args[1], "|"):
		return in
	case r.op == opAcquire && len(s.Args) == acquireArgs:
		in.notAfter, _ = strconv.ParseInt(s.Args[0], 10, 64)
		if s.guard != nil {
			in.by, in.sha = &s.guard.batches, s.guard.scripts[opBatch].sha
		}
		return in
	}
	return inBatch{}
}

// How many ARGV acquire and release have where no place in line is concerned.
const acquireArgs, releaseArgs = 5, 6

func (b *inBatch) is(o op) bool { return b.by != nil && !b.alone && b.ask.op == o }

// A batch is one script for several calls.
type batch struct {
	Call
	of       *Call // one of them
	releases []*Call
	acquires []*Call
}

// gather returns a batch of what it may take of calls, and what is to be sent: the batch, and the
// calls that it does not take. It returns nil and calls where that is not worth it.
func (f *router) gather(calls []*Call, usual time.Duration) (*batch, []*Call) {
	now, least := time.Now(), max(promptly*usual, minCallTimeout/5)
	takes := func(c *Call) bool { return c.is(opAcquire) && c.deadline.Sub(now) >= least && c.by.ready(now) }
	var first *Call // of the acquires, which must be alike
	for _, c := range calls {
		if takes(c) {
			first = c
			break
		}
	}
	b := &batch{of: first}
	seen := make(map[string]bool, len(calls))
	send := append(make([]*Call, 0, 1+len(calls)), &b.Call)
	for _, c := range calls {
		twice := seen[c.Keys[0]]
		seen[c.Keys[0]] = true
		switch {
		case twice:
			send = append(send, c)
		case c.is(opRelease) && (first != nil || c.by.ready(now)):
			b.releases = append(b.releases, c)
		case takes(c) && c.by == first.by && c.Args[2] == first.Args[2] && c.Args[4] == first.Args[4]:
			b.acquires = append(b.acquires, c)
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
	b.fill(names{f.guard.cfg.Prefix})
	return b, send
}

func (b *batch) size() int { return len(b.releases) + len(b.acquires) }

// call returns the call with this number.
func (b *batch) call(i int) *Call {
	if i < len(b.releases) {
		return b.releases[i]
	}
	return b.acquires[i-len(b.releases)]
}

// fill makes the call.
func (b *batch) fill(n names) {
	notAfter, px, life := int64(0), "0", "0"
	for i, c := range b.acquires {
		if i == 0 || c.notAfter < notAfter {
			notAfter = c.notAfter
		}
		px, life = c.Args[2], c.Args[4]
	}
	b.SHA, b.ctx = b.of.sha, context.Background()
	b.Keys = make([]string, 0, b.size()+2)
	b.Args = append(make([]string, 0, 7+b.size()+len(b.acquires)), strconv.FormatInt(notAfter, 10), px, life,
		strconv.Itoa(len(b.releases)), strconv.Itoa(len(b.acquires)), n.plain("line"), n.plain("fence"))
	for _, c := range b.releases {
		b.Keys = append(b.Keys, c.Keys[0])
		b.Args = append(b.Args, c.Args[1])
	}
	for _, c := range b.acquires {
		b.Keys = append(b.Keys, c.Keys[0])
		b.Args = append(b.Args, c.Args[1]+"|", c.Args[3])
	}
	if len(b.acquires) > 0 {
		b.Keys = append(b.Keys, b.acquires[0].Keys[2:]...) // mark, and meta
	}
}

// spread gives each call of the batch the reply that the single script would have given, or
// marks it as left alone. An error of a server that is no refusal leaves the outcome unknown.
func (f *router) spread(b *batch) {
	var refusal ServerError
	switch {
	case b.Err == nil:
		if !b.read() {
			b.of.by.rest(afterNoUse) // a right is missing, or everywhere somebody waits
		}
	case isCode(b.Err, "NOSCRIPT"):
		f.loadBatch(b.of)
		b.leave(0, b.size())
	case errors.As(b.Err, &refusal) && !f.unknown(b.Err):
		b.of.by.rest(afterRefusal)
		b.leave(0, b.size())
	default:
		for i := range b.size() {
			b.call(i).Err = b.Err
		}
	}
}

// leave has calls sent by themselves.
func (b *batch) leave(from, to int) {
	for i := from; i < to; i++ {
		c := b.call(i)
		c.alone, c.unanswered, c.Reply, c.Number = true, true, nil, 0
	}
}

// read reads the reply: see lua/batch.lua. It reports false where the script has left all releases alone,
// or all acquires.
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
		c.Number = now
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
			c.Reply = []any{int64(1), what, now}
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

// verdict is what refuses all acquires: that the batch was too late, or what the guard says.
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

// loadBatch loads the script for a call's process and guard, in the background.
func (f *router) loadBatch(of *Call) {
	c, at := of.inBatch, &request{op: opBatch, keys: slices.Clone(of.ask.keys)}
	if q := of.ask.q; q != nil { // the call may be used again meanwhile
		mine := *q
		at.q = &mine
	}
	if !c.by.asking.CompareAndSwap(false, true) {
		return
	}
	c.by.rest(afterRefusal)
	f.guard.wg.add()
	go func() {
		defer f.guard.wg.done()
		defer c.by.asking.Store(false)
		ctx, cancel := context.WithTimeout(context.Background(), f.guard.cfg.CallTimeout)
		defer cancel()
		p, err := f.load(ctx, c.at, at, false)
		c.by.rest(afterNoUse)
		if err == nil && p == c.at {
			c.by.rest(0)
		}
	}()
}
