package redisnode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
)

const (
	// maxConnections is how many pipelines there are to one server: more callers share them.
	maxConnections = 4
	// maxBatch bounds a pipeline: its last command waits for all before it.
	maxBatch = 128
	// maxQueue bounds what waits for a pipeline.
	maxQueue = 16384
	// Fewer pipelines are in use where so many calls are under way or wait: what gathers costs the
	// server less. Where a round trip is long they all are, since one that waits for a pipeline
	// waits for one.
	crowd, bigCrowd = 6, 32
	longTrip        = 2 * time.Millisecond
	// promptly is how many round trips a call has to have to go on its caller's goroutine.
	promptly = 16
)

// A Call is one script to run. It belongs to the pipelines once it was handed over.
type Call struct {
	SHA  string // EVALSHA of this…
	Text string // …or, where it is not empty, EVAL of this
	Keys []string
	Args []string
	// Behind, where it is not empty, is a key that is written right before, in one
	// transaction with the script: a server that takes no writes now does not even see
	// the text, and so cannot know it later. (EVAL alone makes a text callable by EVALSHA,
	// also where it was refused.)
	Behind string
	// Replicas, where it is not zero, is for how many replicas the command WAIT waits right
	// after the script, on the same connection, and Patience for how long at most.
	Replicas int
	Patience time.Duration
	// Repeated has a bit for each of Args, from the lowest, that is the same in most calls.
	Repeated uint8
	// OnCaller says that the call goes on its caller's goroutine: see Direct.
	OnCaller bool

	Reply  []any // strings, int64s, nil and lists of them…
	Number int64 // …or, where Reply is nil, a number
	Err    error
	Acked  int64 // how many replicas have what the connection wrote; WAIT's answer

	inBatch
	ctx      context.Context // the caller's…
	deadline time.Time       // …and its deadline
	timed    int             // its place in pipelines.timed, from 1; zero: it has none
	then     receiver        // of a call that nobody waits for
	wake     chan struct{}   // of one that somebody waits for: gets a value at its end
	left     error           // why its end is not its answer
	self     [1]*Call        // a batch of itself
	state    atomic.Int32
	done     chan struct{} // of a call in doubt: closed once Reply and Err are set
}

// A receiver is told the error of a call once, and never from within start.
type receiver interface{ finished(err error) }

// The states of a call. Only one of sending and leaving wins, and only one of its answer and its
// deadline.
const (
	callQueued int32 = iota
	callSent
	callLeft
	callAnswered
	callOverdue
)

// pipelines carry calls to one server process, several at a time: a call that finds an
// idle pipeline goes alone at once; those that find all of them under way gather, and
// go together with the next pipeline that comes back. So a lone caller
// waits for nobody, and many share round trips.
//
// A call is given to the library for the call timeout, however soon its caller
// leaves: a library closes the connection under a call whose deadline ends, and those
// that come next would have to wait for another.
//
// Where the library heeds deadlines, and the server has answered so fast that this one
// is far away, a call that goes alone does so on the caller's own goroutine: passing it
// to another costs a third of a round trip on loopback. It is then bounded by its own
// deadline, and notices a cancellation with the answer. One that may have to connect
// first does not: that takes a time of its own. Beside another call it may have to: two that
// were answered at a time may have had one connection, one right after the other.
//
// What is under way to a server that does not answer is bounded: the pipelines, and only
// one of them once a call was not answered, until one is.
type pipelines struct {
	exec    func(ctx context.Context, calls []*Call)
	batches *router // makes batches; nil: it makes none
	direct  Direct
	bound   time.Duration // the call timeout
	calls   *tracker      // whose callers wait
	wg      *tracker      // goroutines

	mu      sync.Mutex
	queue   []*Call
	timed   []*Call     // those that end at their deadline if no answer comes before
	timer   *time.Timer // of the first of these deadlines, or one before
	alarm   time.Time   // when it ends; zero: it is not set
	closed  bool
	conns   []pipeline
	busy    int
	calling int           // calls under way, and in the queue
	most    int           // so many they were, some round trips ago
	on      [3]int        // of these, in each mode
	proven  int           // so many at a time were answered; zero: the last call was not
	missed  int           // calls in a row that were not
	usual   time.Duration // a round trip
}

// A pipeline is idle where due is zero.
type pipeline struct {
	due   time.Time // by when it must be back
	mode  mode
	calls int
	*carrier
}

// A carrier is what a pipeline works with. It belongs to who has taken the pipeline.
type carrier struct {
	batch []*Call
	run   func() // carries batch, and what comes after it
}

type mode uint8

const (
	passed     mode = iota // to a goroutine of its own
	onCaller               // on the caller's
	connecting             // passed, and may have to connect
)

func (c *Config) pipelines() int {
	if c.Connections > 0 && c.Connections < maxConnections {
		return c.Connections
	}
	return maxConnections
}

func newPipelines(exec func(context.Context, []*Call), most int, direct Direct, bound time.Duration, calls, wg *tracker) *pipelines {
	l := &pipelines{exec: exec, direct: direct, bound: bound, conns: make([]pipeline, most), calls: calls, wg: wg}
	for i := range l.conns {
		l.conns[i].carrier = &carrier{}
	}
	return l
}

// do runs c and returns its error; ctx has a deadline. An error that is ErrNotSent
// says that no byte left; any other that is no ServerError leaves the outcome
// unknown, and c.done tells when the client library gave up.
func (l *pipelines) do(ctx context.Context, c *Call) error {
	if err := ctx.Err(); err != nil {
		return &notSent{err}
	}
	l.calls.add()
	defer l.calls.done()
	c.ctx = ctx
	c.deadline, _ = ctx.Deadline()
	conn, mode, err := l.enter(c)
	switch {
	case err != nil:
		return &notSent{err}
	case conn >= 0 && mode == onCaller:
		return l.alone(conn, c)
	case conn >= 0:
		l.carry(conn, c)
	}
	select {
	case <-c.wake:
	case <-ctx.Done():
		if !l.leave(c, ctx.Err()) {
			<-c.wake // at the same moment: an answer is worth more
		}
	}
	if c.left != nil {
		return c.left
	}
	return c.Err
}

// start is do for a call that nobody waits for, whose then, ctx and deadline are set. It
// reports false where do would fail at once.
func (l *pipelines) start(c *Call) bool {
	l.calls.add()
	conn, _, err := l.enter(c)
	if err != nil {
		l.calls.done()
		return false
	}
	if conn >= 0 {
		l.carry(conn, c)
	}
	return true
}

// notify tells who waits for c that it is over.
func (l *pipelines) notify(c *Call) {
	if c.then == nil {
		c.wake <- struct{}{} // has room: it is told once
		return
	}
	defer l.calls.done()
	err := c.left
	if err == nil {
		err = c.Err
	}
	c.then.finished(err)
}

// finishAll tells who waits for calls that Reply and Err are set. What is told may be used again.
func (l *pipelines) finishAll(calls []*Call) {
	l.mu.Lock()
	for _, c := range calls {
		l.untrack(c)
	}
	l.mu.Unlock()
	for _, c := range calls {
		if c.state.CompareAndSwap(callSent, callAnswered) {
			c.done = answered
			l.notify(c)
		} else {
			close(c.done)
		}
	}
}

// leave ends a call without an answer, and reports whether it did. Then it is in doubt, or was not
// sent.
func (l *pipelines) leave(c *Call, why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.giveUp(c, why)
}

// giveUp is leave. l.mu is held.
func (l *pipelines) giveUp(c *Call, why error) bool {
	if c.timed == 0 {
		return false
	}
	l.untrack(c)
	c.done = make(chan struct{})
	switch {
	case c.state.CompareAndSwap(callQueued, callLeft):
		c.left = &notSent{why}
	case c.state.CompareAndSwap(callSent, callOverdue):
		c.left = why
	}
	return true
}

// expire ends the calls whose deadline has come.
func (l *pipelines) expire() {
	var over []*Call
	l.mu.Lock()
	now := time.Now()
	l.alarm = time.Time{}
	for i := 0; i < len(l.timed); {
		c := l.timed[i]
		if now.Before(c.deadline) {
			l.expect(c.deadline, now)
			i++
		} else if l.giveUp(c, context.DeadlineExceeded) { // another takes its place
			over = append(over, c)
		}
	}
	l.mu.Unlock()
	for _, c := range over {
		l.notify(c)
	}
}

// track has a call end at its deadline. l.mu is held.
func (l *pipelines) track(c *Call, now time.Time) {
	if c.then == nil && c.wake == nil {
		c.wake = make(chan struct{}, 1)
	}
	l.timed = append(l.timed, c)
	c.timed = len(l.timed)
	l.expect(c.deadline, now)
}

// expect sets the timer to a deadline, unless it comes before that. Most calls are answered long
// before, so it is not set anew for each. l.mu is held.
func (l *pipelines) expect(deadline, now time.Time) {
	switch {
	case !l.alarm.IsZero() && !deadline.Before(l.alarm):
		return
	case l.timer == nil:
		l.timer = time.AfterFunc(deadline.Sub(now), l.expire)
	default:
		l.timer.Reset(deadline.Sub(now))
	}
	l.alarm = deadline
}

// untrack takes back track. l.mu is held.
func (l *pipelines) untrack(c *Call) {
	if c.timed == 0 {
		return
	}
	last := len(l.timed) - 1
	l.timed[c.timed-1] = l.timed[last]
	l.timed[c.timed-1].timed = c.timed
	l.timed[last] = nil
	l.timed = l.timed[:last]
	c.timed = 0
}

// enter takes an idle pipeline for c, and says how it goes; or queues c and returns -1.
func (l *pipelines) enter(c *Call) (conn int, m mode, err error) {
	now := time.Now()
	if !now.Before(c.deadline) { // its context's timer may be late
		return -1, passed, context.DeadlineExceeded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return -1, passed, driver.ErrClosed
	}
	if !l.open() {
		if hung := l.hung(now); hung > 0 || len(l.queue) >= maxQueue {
			return -1, passed, fmt.Errorf("node is hung or overloaded: %d calls under way, %d waiting, the oldest %v overdue", l.busy, len(l.queue), hung.Round(time.Millisecond))
		}
		l.track(c, now)
		l.calling++
		l.queue = append(l.queue, c)
		return -1, passed, nil
	}
	due := now.Add(l.bound)
	switch {
	case l.busy >= l.proven:
		m = connecting
	case c.then == nil && l.busy == 0 && l.direct.permits(c.deadline.Sub(now), l.usual):
		m, due = onCaller, c.deadline
		c.OnCaller = true
	}
	c.state.Store(callSent)
	if m != onCaller {
		l.track(c, now)
	}
	for !l.conns[conn].due.IsZero() {
		conn++
	}
	at := &l.conns[conn]
	at.due, at.mode, at.calls = due, m, 1
	l.busy++
	l.calling++
	l.on[m]++
	return conn, m, nil
}

// open reports whether a call may go at once. l.mu is held.
func (l *pipelines) open() bool {
	switch {
	case l.busy == len(l.conns), l.proven == 0 && l.busy > 0:
		return false
	case l.usual < longTrip && (l.most >= bigCrowd && l.busy > 0 || l.most >= crowd && l.busy > 1):
		return false
	case l.busy >= l.proven:
		return l.on[onCaller] == 0
	}
	return true
}

// alone carries c on the caller's goroutine. Who came meanwhile goes on another.
func (l *pipelines) alone(conn int, c *Call) error {
	c.self[0] = c
	took := l.send(c.self[:], c.deadline)
	c.done = answered
	at := l.conns[conn].carrier
	if batch := l.next(conn, took, at.batch[:0]); batch != nil {
		at.batch = batch
		l.run(conn)
	}
	return c.Err
}

// Direct says for which calls a client may have the goroutine of their caller, which leaves
// only when the client comes back. The zero Direct is for none.
type Direct struct {
	// Heeds says that the client comes back at the deadline of its context.
	Heeds bool
	// Longest is for how long a client that does not may be gone, by its own timeouts: a call
	// must have that much time left. Zero: nobody knows.
	Longest time.Duration
	// Attempt is after what time such a client gives one attempt up. Zero: Longest.
	Attempt time.Duration
}

// permits reports whether a call may go so that has this time left, where a round trip takes
// the usual time.
func (d Direct) permits(left, usual time.Duration) bool {
	if d.Heeds {
		return left >= max(promptly*usual, minCallTimeout)
	}
	return d.Longest > 0 && left >= d.Longest && promptly*usual <= cmp.Or(d.Attempt, d.Longest)
}

// answered is the done of a call that nobody waited for.
var answered = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// carry carries c, in the background, and then what is queued.
func (l *pipelines) carry(conn int, c *Call) {
	at := l.conns[conn].carrier
	at.batch = append(at.batch[:0], c)
	l.run(conn)
}

// run carries a pipeline's batch, and those that come after it, until nothing is left to send.
func (l *pipelines) run(conn int) {
	at := l.conns[conn].carrier
	l.wg.add()
	if at.run == nil { // one closure for all runs
		at.run = func() {
			defer l.wg.done()
			for batch := at.batch; batch != nil; {
				took := l.send(batch, time.Now().Add(l.patience()))
				if left := l.finish(batch); len(left) > 0 {
					l.stay(conn)
					l.send(left, time.Now().Add(l.patience()))
					l.finishAll(left)
				}
				clear(batch)
				if batch = l.next(conn, took, batch[:0]); batch != nil {
					at.batch = batch // the pipeline is still this one's
				}
			}
		}
	}
	go at.run()
}

// finish ends the calls that have an answer, and returns those that a batch has left to the
// single scripts.
func (l *pipelines) finish(calls []*Call) (left []*Call) {
	for _, c := range calls {
		if c.unanswered {
			c.unanswered = false
			left = append(left, c)
		}
	}
	if left != nil {
		calls = slices.DeleteFunc(slices.Clone(calls), func(c *Call) bool { return slices.Contains(left, c) })
	}
	l.finishAll(calls)
	return left
}

// patience is how long a call may take: one that asks a server that did not answer has a quarter
// of the time, since another server may have taken its place meanwhile; but for every eighth,
// for a server that has become slow.
func (l *pipelines) patience() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missed%8 != 0 {
		return l.bound / 4
	}
	return l.bound
}

// send makes one round trip, and returns how long it took; zero: it brought no answer.
func (l *pipelines) send(calls []*Call, deadline time.Time) time.Duration {
	out := &sendContext{calls[0].ctx, deadline} // hooks of an application's client may keep it
	if len(calls) > 1 {
		out.Context = context.Background() // no caller's values are for all
	}
	sent := time.Now()
	var b *batch
	if l.batches != nil && len(calls) > 1 {
		b, calls = l.batches.gather(calls, l.roundTrip())
	}
	l.exec(out, calls)
	if b != nil {
		l.batches.spread(b)
	}
	if err := calls[0].Err; err != nil && !isReply(err) {
		return 0
	}
	return max(time.Since(sent), 1)
}

// isReply reports whether an error came from a server.
func isReply(err error) bool {
	var reply ServerError
	return errors.As(err, &reply)
}

// roundTrip is how long one usually takes.
func (l *pipelines) roundTrip() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usual
}

// stay has a pipeline carry more.
func (l *pipelines) stay(conn int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn].due = time.Now().Add(l.bound)
}

// hung returns how long every busy pipeline has been overdue: zero while one is in time.
// A client library that heeds deadlines is never late.
func (l *pipelines) hung(now time.Time) time.Duration {
	const allowance = 100 * time.Millisecond
	var longest time.Duration
	for _, conn := range l.conns {
		if conn.due.IsZero() {
			continue
		}
		late := now.Sub(conn.due)
		if late < allowance {
			return 0
		}
		longest = max(longest, late)
	}
	return longest
}

// next learns from the round trip of a pipeline that has come back, and takes what is
// queued for it, without those whose callers left. It returns nil, and gives the pipeline
// up, where nothing is, or where another pipeline finds out whether the server answers.
func (l *pipelines) next(conn int, took time.Duration, batch []*Call) []*Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case took == 0:
		l.proven = 0
		l.missed++
	case l.proven == 0:
		l.proven, l.usual = l.busy, took
	default:
		l.proven, l.usual = max(l.proven, l.busy), l.usual+(took-l.usual)/8
	}
	if took > 0 {
		l.missed = 0
	}
	at := &l.conns[conn]
	l.most = max(l.calling, l.most-(l.most+7)/8)
	l.calling -= at.calls
	for (l.proven > 0 || l.busy == 1) && len(l.queue) > 0 && len(batch) < maxBatch {
		c := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		if c.state.CompareAndSwap(callQueued, callSent) {
			batch = append(batch, c)
		} else {
			l.calling--
		}
	}
	at.calls = len(batch)
	l.on[at.mode]--
	if len(batch) > 0 {
		at.due, at.mode = time.Now().Add(l.bound), passed
		l.on[passed]++
		return batch
	}
	if len(l.queue) == 0 {
		l.queue = nil
	}
	at.due = time.Time{}
	l.busy--
	return nil
}

// close refuses what comes, and what waits; what is under way ends by itself.
func (l *pipelines) close() {
	var over []*Call
	l.mu.Lock()
	l.closed = true
	for _, c := range l.queue {
		if c.state.Load() == callQueued && l.giveUp(c, driver.ErrClosed) {
			over = append(over, c)
		}
	}
	l.calling -= len(l.queue)
	l.queue = nil
	l.mu.Unlock()
	for _, c := range over {
		go l.notify(c)
	}
}

// sendContext is a context that tells the client library the deadline, as a
// socket needs it, and cannot be cancelled: the caller leaves by itself, and a
// library that watches Done would give up a connection that others share.
type sendContext struct {
	context.Context // for its values
	deadline        time.Time
}

func (c *sendContext) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *sendContext) Done() <-chan struct{}       { return nil }
func (c *sendContext) Err() error                  { return nil }

// bounded is a context with a deadline and no timer: most calls go on the caller's
// goroutine, where the library heeds the deadline. Its Done is the parent's: who waits
// for something uses await.
type bounded struct {
	context.Context
	deadline time.Time
}

// within bounds ctx by d from now. What ends before that is left as it is.
func within(ctx context.Context, d time.Duration) context.Context {
	deadline := time.Now().Add(d)
	if t, ok := ctx.Deadline(); ok && t.Before(deadline) {
		return ctx
	}
	return &bounded{ctx, deadline}
}

func (b *bounded) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *bounded) Err() error {
	if err := b.Context.Err(); err != nil {
		return err
	}
	if !time.Now().Before(b.deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// ended reports whether ctx is over, and knows of a deadline before the context's timer does:
// a library that heeds deadlines comes back right then.
func ended(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// await waits for done, until ctx ends at the most.
func await(ctx context.Context, done <-chan struct{}) error {
	var end <-chan time.Time
	if b, ok := ctx.(*bounded); ok {
		t := time.NewTimer(time.Until(b.deadline))
		defer t.Stop()
		end = t.C
	}
	select {
	case <-done:
		return nil
	case <-end:
		return context.DeadlineExceeded
	case <-ctx.Done():
		return ctx.Err()
	}
}
