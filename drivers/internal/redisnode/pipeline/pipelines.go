// Package pipeline sends calls to one server process over few connections: calls that come while
// all of these are busy share a round trip. It knows no locks, and neither the names of keys nor
// the texts of scripts.
package pipeline

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

const (
	// maxConnections is the greatest number of pipelines to one server; more callers share them.
	maxConnections = 4
	// MaxBatch bounds the calls that are sent together, because the last one waits for all
	// before it. On a slow link up to mostBatch are sent, if that wait, perCall for each call,
	// is no longer than another round trip.
	MaxBatch, mostBatch = 128, 1024
	perCall             = 10 * time.Microsecond
	// maxQueue bounds the calls that wait for a pipeline.
	maxQueue = 16384
	// With this many calls under way or waiting, fewer pipelines are used, because gathered
	// calls cost the server less. If a round trip is long all are used, because a call that
	// waits for a pipeline waits for a whole round trip.
	crowd, bigCrowd = 6, 32
	longTrip        = 2 * time.Millisecond
	// probeEvery is how many calls in a row miss their answer before a probe.
	probeEvery = 8
	// promptly is the least time, in round trips, that a call must have left to run on its
	// caller's goroutine.
	promptly = 16
)

// MaxUnderWay is the greatest number of calls that are under way to a server.
const MaxUnderWay = maxConnections * mostBatch

// MinTimeout is the least time for a call, however soon its result is useless.
const MinTimeout = 50 * time.Millisecond

// SlowLink is the least time that Gather is given if a round trip is long.
const SlowLink = promptly * longTrip

// A Gatherer replaces calls that are sent together by fewer calls, given the time that a call must
// have left so that its answer surely comes before its deadline. The function spread gives the
// replaced calls their replies.
type Gatherer interface {
	Gather(calls []*Call, prompt time.Duration) (send []*Call, spread func())
}

// A Receiver gets the error of a call exactly once, and never from within Start.
type Receiver interface{ Finished(err error) }

// Pipelines send calls to one server process, several at a time. A call that finds an idle
// pipeline is sent alone, at once. Calls that find all pipelines busy are gathered, and sent
// together by the next pipeline that becomes free; over a slow link, what does not fit goes in idle
// ones. So a lone caller waits for nobody, and many callers share round trips.
//
// The library gets the call timeout for each call, however soon its caller leaves: at a
// deadline a library closes the connection, and the next calls would have to wait for a new
// one.
//
// If the library respects deadlines, and the server answers so fast that the deadline is far
// away, a call that is sent alone runs on its caller's goroutine, because passing it to another
// costs a third of a round trip on loopback. Its own deadline then bounds it, and it notices a
// cancellation only with the answer. A call that may have to connect first does not run there,
// because connecting takes additional time. Beside another call it may have to connect: two
// calls that were answered at the same time may have used one connection, one after the other.
//
// The calls under way to a server that does not answer are bounded: by the pipelines, and after
// a call without an answer to one pipeline, until a call is answered. Such a call has a quarter
// of the call timeout, because another server may have taken this one's place meanwhile; in
// case the server has only become slow, a probe beside it has the whole call timeout.
type Pipelines struct {
	cfg     Config
	workers async.Workers // send batches

	mu      sync.Mutex
	queue   []*Call
	timed   []*Call     // calls that end at their deadline if no answer comes before
	timer   *time.Timer // fires at the first of these deadlines, or before
	alarm   time.Time   // when the timer fires; zero: not set
	closed  bool
	conns   []pipeline
	busy    int
	calling int           // calls under way, and in the queue
	most    int           // how many there were some round trips ago
	on      [3]int        // calls under way in each mode
	proven  int           // the greatest number answered at a time; zero: the last call was not answered
	missed  int           // calls in a row without an answer
	probes  int           // whether a probe is under way
	usual   time.Duration // a round trip
}

// A pipeline is idle if due is zero.
type pipeline struct {
	due   time.Time // when its round trip must have ended
	mode  mode
	calls int
	probe bool
	*carrier
}

// A carrier has the batch that a pipeline sends. The goroutine that has taken the pipeline owns
// it.
type carrier struct {
	of    *Pipelines
	conn  int
	batch []*Call
}

type mode uint8

const (
	passed     mode = iota // to a goroutine of its own
	onCaller               // on the caller's
	connecting             // to another goroutine, because it may have to connect
)

// Config is the configuration of Pipelines.
type Config struct {
	// Exec runs calls in one round trip, and sets the Reply and Err of each. It returns at ctx's
	// deadline if the client library can; ctx is never cancelled.
	Exec        func(ctx context.Context, calls []*Call)
	Connections int // zero, or more than 4: 4
	Direct      Direct
	CallTimeout time.Duration
	Probe       string   // the text of a script that does nothing
	Gatherer    Gatherer // nil: every call goes by itself

	Calls, Goroutines *async.Tracker // calls whose callers wait; goroutines
}

// New returns Pipelines to one server process. It does no I/O.
func New(cfg *Config) *Pipelines {
	most := maxConnections
	if cfg.Connections > 0 && cfg.Connections < most {
		most = cfg.Connections
	}
	l := &Pipelines{cfg: *cfg, conns: make([]pipeline, most)}
	for i := range l.conns {
		l.conns[i].carrier = &carrier{of: l, conn: i}
	}
	return l
}

// Do runs c and returns its error; ctx has a deadline. The error ErrNotSent says that no byte
// was sent. Any other error that is not a ServerError leaves the outcome unknown; then c.Done
// is closed when the client library has given up.
func (l *Pipelines) Do(ctx context.Context, c *Call) error {
	if err := ctx.Err(); err != nil {
		return &notSent{err}
	}
	l.cfg.Calls.Add()
	defer l.cfg.Calls.Done()
	c.ctx = ctx
	c.Deadline, _ = ctx.Deadline()
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
	case <-c.Wake:
	case <-ctx.Done():
		if !l.leave(c, ctx.Err()) {
			<-c.Wake // both came at the same moment: the answer counts
		}
	}
	if c.left != nil {
		return c.left
	}
	return c.Err
}

// Start is Do for a call that nobody waits for: then gets its error, no later than the end of its
// term, or until. It returns false if Do would fail at once.
func (l *Pipelines) Start(c *Call, term async.Term, until time.Time, then Receiver) bool {
	c.ctx, c.term, c.Deadline, c.then = term, term, until, then
	l.cfg.Calls.Add()
	conn, _, err := l.enter(c)
	if err != nil {
		l.cfg.Calls.Done()
		return false
	}
	if conn >= 0 {
		l.carry(conn, c)
	}
	return true
}

// notify tells the caller of c that the call has ended.
func (l *Pipelines) notify(c *Call) {
	if c.then == nil {
		c.Wake <- struct{}{} // has room, because it is told once
		return
	}
	defer l.cfg.Calls.Done()
	err := c.left
	if err == nil {
		err = c.Err
	}
	c.then.Finished(err)
}

// finishAll tells the callers of calls that Reply and Err are set. After that a call may be reused.
func (l *Pipelines) finishAll(calls []*Call) {
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

// leave ends a call without an answer, and reports whether it did. The call is then in doubt,
// or was not sent.
func (l *Pipelines) leave(c *Call, why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.giveUp(c, why)
}

// giveUp is leave with l.mu held.
func (l *Pipelines) giveUp(c *Call, why error) bool {
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

// expire ends the calls whose deadline has passed.
func (l *Pipelines) expire() {
	var over []*Call
	l.mu.Lock()
	now := time.Now()
	l.alarm = time.Time{}
	for i := 0; i < len(l.timed); {
		c := l.timed[i]
		if now.Before(c.due) || c.prolong() {
			l.expect(c.due, now)
			i++
		} else if l.giveUp(c, context.DeadlineExceeded) { // another call has taken its place
			over = append(over, c)
		}
	}
	l.mu.Unlock()
	for _, c := range over {
		l.notify(c)
	}
}

// track makes a call end at its deadline. The caller holds l.mu.
func (l *Pipelines) track(c *Call, now time.Time) {
	if c.then == nil && c.Wake == nil {
		c.Wake = make(chan struct{}, 1)
	}
	c.prolong()
	l.timed = append(l.timed, c)
	c.timed = len(l.timed)
	l.expect(c.due, now)
}

// expect sets the timer to a deadline, unless it fires earlier. Most calls are answered long
// before, so the timer is not set for each. The caller holds l.mu.
func (l *Pipelines) expect(deadline, now time.Time) {
	if deadline.Before(now) {
		deadline = now // a term that is over may say so by the zero time, at which no alarm is set
	}
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

// untrack undoes track. The caller holds l.mu.
func (l *Pipelines) untrack(c *Call) {
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

// enter takes an idle pipeline for c, and returns how c is sent; or it queues c and returns -1.
func (l *Pipelines) enter(c *Call) (conn int, m mode, err error) {
	now := time.Now()
	if !now.Before(c.Deadline) { // the timer of its context may be late
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
	due := now.Add(l.cfg.CallTimeout)
	switch {
	case l.busy >= l.proven:
		m = connecting
	case c.then == nil && l.busy == 0 && l.cfg.Direct.permits(c.Deadline.Sub(now), l.usual):
		m, due = onCaller, c.Deadline
		c.OnCaller = true
	}
	c.state.Store(callSent)
	if m != onCaller {
		l.track(c, now)
	}
	return l.take(due, m), m, nil
}

// take takes an idle pipeline for one call. The caller holds l.mu.
func (l *Pipelines) take(due time.Time, m mode) (conn int) {
	for !l.conns[conn].due.IsZero() {
		conn++
	}
	at := &l.conns[conn]
	at.due, at.mode, at.calls = due, m, 1
	l.busy++
	l.calling++
	l.on[m]++
	return conn
}

// probe asks a server that has not answered calls whether it is only slow. It runs again for
// every eighth call without an answer.
func (l *Pipelines) probe(missed *Call) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missed%probeEvery != 0 || l.probes > 0 || l.busy == len(l.conns) || l.closed {
		return
	}
	c := &Call{Text: l.cfg.Probe, Keys: slices.Clone(missed.Keys[:min(1, len(missed.Keys))]), ctx: context.Background(), done: make(chan struct{})}
	c.state.Store(callOverdue) // no caller waits
	conn := l.take(time.Now().Add(l.cfg.CallTimeout), passed)
	l.conns[conn].probe = true
	l.probes++
	l.carry(conn, c)
}

// open reports whether a call may be sent at once. The caller holds l.mu.
func (l *Pipelines) open() bool {
	switch {
	case l.busy == len(l.conns), l.proven == 0 && l.busy > l.probes:
		return false
	case l.usual < longTrip && (l.most >= bigCrowd && l.busy > 0 || l.most >= crowd && l.busy > 1):
		return false
	case l.busy >= l.proven:
		return l.on[onCaller] == 0
	}
	return true
}

// alone sends c on the caller's goroutine. Another goroutine sends the calls that came meanwhile.
func (l *Pipelines) alone(conn int, c *Call) error {
	c.self[0] = c
	took := l.send(c.self[:], c.Deadline)
	c.done = answered
	at := l.conns[conn].carrier
	if batch := l.next(conn, took, false, at.batch[:0]); batch != nil {
		at.batch = batch
		l.run(at)
	}
	return c.Err
}

// Direct says which calls may run on their caller's goroutine, which returns only when the
// client does. The zero Direct allows none.
type Direct struct {
	// Heeds says that the client returns at the deadline of its context.
	Heeds bool
	// Longest is, for a client without Heeds, the longest time that a call takes by the
	// client's own timeouts: a call must have that much time left. Zero: unknown.
	Longest time.Duration
	// Attempt is the time after which a client without Heeds gives up one attempt. Zero: Longest.
	Attempt time.Duration
}

// permits reports whether a call with this time left may run on its caller's goroutine, given
// the usual round trip.
func (d Direct) permits(left, usual time.Duration) bool {
	if d.Heeds {
		return left >= max(promptly*usual, MinTimeout)
	}
	return d.Longest > 0 && left >= d.Longest && promptly*usual <= cmp.Or(d.Attempt, d.Longest)
}

// carry sends c, in the background, and then the queued calls.
func (l *Pipelines) carry(conn int, c *Call) {
	at := l.conns[conn].carrier
	at.batch = append(at.batch[:0], c)
	l.run(at)
}

// run lets a worker send a pipeline's batch.
func (l *Pipelines) run(at *carrier) {
	l.cfg.Goroutines.Add()
	l.workers.Start(at)
}

// Run sends the batch, and later batches, until nothing is left to send.
func (at *carrier) Run() {
	l, conn := at.of, at.conn
	defer l.cfg.Goroutines.Done()
	for batch := at.batch; batch != nil; {
		most, brief := l.patience(conn)
		took := l.send(batch, time.Now().Add(most))
		if took == 0 {
			l.probe(batch[0])
		}
		if left := l.finish(batch); len(left) > 0 {
			l.stay(conn)
			most, _ = l.patience(conn)
			l.send(left, time.Now().Add(most))
			l.finishAll(left)
		}
		clear(batch)
		if batch = l.next(conn, took, brief, batch[:0]); batch != nil {
			at.batch = batch // this goroutine still has the pipeline
		}
	}
}

// finish ends the calls with an answer, and returns those that a batch has left to the single
// scripts.
func (l *Pipelines) finish(calls []*Call) (left []*Call) {
	for _, c := range calls {
		if c.Unanswered {
			c.Unanswered = false
			left = append(left, c)
		}
	}
	if left != nil {
		calls = slices.DeleteFunc(slices.Clone(calls), func(c *Call) bool { return slices.Contains(left, c) })
	}
	l.finishAll(calls)
	return left
}

// patience is how long a call may take: a quarter of the call timeout, which is brief, if the
// server did not answer the call before. Without a pipeline for a probe, every eighth call is one.
func (l *Pipelines) patience(conn int) (most time.Duration, brief bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missed > 0 && !l.conns[conn].probe && (len(l.conns) > 1 || l.missed%probeEvery != 0) {
		return l.cfg.CallTimeout / 4, true
	}
	return l.cfg.CallTimeout, false
}

// send makes one round trip, and returns how long it took; zero: without an answer.
func (l *Pipelines) send(calls []*Call, deadline time.Time) time.Duration {
	out := &sendContext{calls[0].ctx, deadline} // hooks of an application's client may keep ctx
	if len(calls) > 1 {
		out.Context = context.Background() // the batch must not have one caller's values
	}
	sent := time.Now()
	spread := func() {}
	if l.cfg.Gatherer != nil && len(calls) > 1 {
		calls, spread = l.cfg.Gatherer.Gather(calls, promptly*l.roundTrip())
	}
	if err := l.exec(out, calls); err != nil {
		for _, c := range calls {
			c.Reply, c.Err = nil, err
		}
	}
	spread()
	if err := calls[0].Err; err != nil && !isReply(err) {
		return 0
	}
	return max(time.Since(sent), 1)
}

func (l *Pipelines) exec(ctx context.Context, calls []*Call) (err error) {
	defer Contain(&err)
	l.cfg.Exec(ctx, calls)
	return nil
}

// roundTrip returns the usual round trip.
func (l *Pipelines) roundTrip() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usual
}

// stay lets a pipeline send another batch.
func (l *Pipelines) stay(conn int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn].due = time.Now().Add(l.cfg.CallTimeout)
}

// hung returns how long every busy pipeline has been overdue: zero while one is in time. A
// client library that respects deadlines is never overdue.
func (l *Pipelines) hung(now time.Time) time.Duration {
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

// next notes the round trip that a pipeline has finished, and takes the queued calls for it,
// without those whose callers left. It returns nil, and gives the pipeline up, if none is
// queued, or if another pipeline finds out whether the server answers.
func (l *Pipelines) next(conn int, took time.Duration, brief bool, batch []*Call) []*Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := &l.conns[conn]
	probe := at.probe
	if probe {
		at.probe = false
		l.probes--
	}
	switch {
	case took == 0 && (probe || brief && l.proven > 0): // the server is slow, or known not to answer
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
	l.most = max(l.calling, l.most-(l.most+7)/8)
	l.calling -= at.calls
	if l.proven > 0 || l.busy == 1+l.probes {
		batch = l.dequeue(batch)
	}
	at.calls = len(batch)
	l.on[at.mode]--
	if len(batch) > 0 {
		at.due, at.mode = time.Now().Add(l.cfg.CallTimeout), passed
		l.on[passed]++
		l.share()
		return batch
	}
	if len(l.queue) == 0 {
		l.queue = nil
	}
	at.due = time.Time{}
	l.busy--
	return nil
}

// dequeue appends queued calls to a batch, without those whose callers left. The caller holds l.mu.
func (l *Pipelines) dequeue(batch []*Call) []*Call {
	for room := l.room(); len(l.queue) > 0 && len(batch) < room; {
		c := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		if c.state.CompareAndSwap(callQueued, callSent) {
			batch = append(batch, c)
		} else {
			l.calling--
		}
	}
	return batch
}

// share lets idle pipelines send what one batch did not take, if a round trip is long. They
// connect meanwhile, if they must. The caller holds l.mu.
func (l *Pipelines) share() {
	for l.usual >= longTrip && len(l.queue) > 0 && l.open() {
		batch := l.dequeue(nil)
		if len(batch) == 0 {
			return
		}
		m := passed
		if l.busy >= l.proven {
			m = connecting
		}
		at := &l.conns[l.take(time.Now().Add(l.cfg.CallTimeout), m)]
		l.calling-- // take counted one that is new
		at.calls = len(batch)
		at.batch = batch
		l.run(at.carrier)
	}
}

// room returns how many calls may be sent together. While a server does not answer, every call
// that was sent is in doubt: so a far server then gets no more calls than a near one. The
// caller holds l.mu.
func (l *Pipelines) room() int {
	if l.proven == 0 || l.usual < longTrip {
		return MaxBatch
	}
	return min(max(MaxBatch, int(l.usual/perCall)), mostBatch)
}

// Close refuses new and queued calls; calls under way end by themselves.
func (l *Pipelines) Close() {
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
	l.workers.Close()
	for _, c := range over {
		go l.notify(c)
	}
}

// Retire ends the idle goroutines, and the others after their calls, which go on.
func (l *Pipelines) Retire() { l.workers.Close() }

// Kept returns how many goroutines are kept, busy ones and idle ones.
func (l *Pipelines) Kept() int { return l.workers.Len() }

// sendContext is a context that gives the client library a deadline, which a socket needs, but
// cannot be cancelled: the caller leaves by itself, and a library that watches Done would close
// a connection that others share.
type sendContext struct {
	context.Context // for its values
	deadline        time.Time
}

func (c *sendContext) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *sendContext) Done() <-chan struct{}       { return nil }
func (c *sendContext) Err() error                  { return nil }
