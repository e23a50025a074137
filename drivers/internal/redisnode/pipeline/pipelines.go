// Package pipeline sends calls to one server process: calls that come while others are under way
// share a round trip. It knows no locks, and neither the names of keys nor the texts of scripts.
package pipeline

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

const (
	// most is how many round trips are under way to a server at most: a second one costs many
	// callers on a near server more than it gains, and a far server stands idle without it.
	most = 2
	// MaxBatch bounds the calls that are sent together, because the last one waits for all
	// before it. On a slow link up to mostBatch are sent, if that wait, perCall for each call,
	// is no longer than another round trip.
	MaxBatch, mostBatch = 128, 1024
	perCall             = 10 * time.Microsecond
	longTrip            = 2 * time.Millisecond
	// crowd is how many calls must be under way or waiting so that they share one round trip.
	crowd = 32
	// maxQueue bounds the calls that wait for a round trip.
	maxQueue = 16384
	// probeEvery is how many calls in a row miss their answer before one gets all of the call
	// timeout.
	probeEvery = 16
	// promptly is the least time, in round trips, that a call must have left to run on its
	// caller's goroutine.
	promptly = 16
)

// MaxUnderWay is the greatest number of calls that are under way to a server.
const MaxUnderWay = most * mostBatch

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

// Pipelines send calls to one server process. A call that finds few others under way is sent alone,
// at once. Other calls wait, and go together as soon as a round trip ends. So a lone caller waits
// for nobody, and many callers share round trips.
//
// The library gets the call timeout for each call, however soon its caller leaves: at a
// deadline a library closes the connection, and the next calls would have to wait for a new
// one.
//
// If the library respects deadlines, and the server answers so fast that the deadline is far
// away, a lone call runs on its caller's goroutine, because passing it to another costs a third of
// a round trip on loopback. Its own deadline then bounds it, and its connection ends when its
// caller has left: see Config.Abandon. A call that may have to connect first does not run there,
// because connecting takes additional time.
//
// While a server does not answer, one call at a time is under way to it. Such a call has a quarter
// of the call timeout, because another server may have taken this one's place meanwhile; every
// sixteenth has all of it, in case the server has only become slow.
type Pipelines struct {
	cfg     Config
	workers async.Workers // their stacks have grown to what libraries need

	carriers sync.Pool // idle ones

	mu      sync.Mutex
	queue   []*Call
	timed   []*Call     // calls that end at their deadline if no answer comes before
	timer   *time.Timer // fires at the first of these deadlines, or before
	alarm   time.Time   // when the timer fires; zero: not set
	closed  bool
	busy    int           // round trips under way
	calling int           // calls under way
	crowded int           // the most calls lately
	missed  int           // calls in a row without an answer
	usual   time.Duration // a round trip; zero: there was none
	watcher watcher
}

// Config is the configuration of Pipelines.
type Config struct {
	// Exec runs calls in one round trip, and sets the Reply and Err of each. It returns at ctx's
	// deadline if the client library can; ctx is never cancelled.
	Exec func(ctx context.Context, calls []*Call)
	// Abandon ends the connection on which a call waits that was sent since then; nil: the library
	// ignores deadlines, or its connections are not the driver's. Then no call runs on its
	// caller's goroutine.
	Abandon     func(since time.Time)
	Connections int // zero, or more than there are pipelines: all
	CallTimeout time.Duration
	Gatherer    Gatherer // nil: every call goes by itself

	Calls, Goroutines *async.Tracker // calls whose callers wait; goroutines
}

// New returns Pipelines to one server process. It does no I/O.
func New(cfg *Config) *Pipelines {
	l := &Pipelines{cfg: *cfg}
	if cfg.Connections <= 0 || cfg.Connections > most {
		l.cfg.Connections = most
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
	send, alone, err := l.enter(c)
	switch {
	case err != nil:
		return &notSent{err}
	case alone:
		return l.alone(c)
	case send:
		l.carry(c)
	}
	select {
	case <-c.Wake:
	case <-ctx.Done():
		if !l.leave(c, ctx.Err()) {
			<-c.Wake // both came at the same moment: the answer counts
		}
	}
	return c.result()
}

// Start is Do for a call that nobody waits for: then gets its error, no later than the end of its
// term, or until. It returns false if Do would fail at once.
func (l *Pipelines) Start(c *Call, term async.Term, until time.Time, then Receiver) bool {
	c.ctx, c.term, c.Deadline, c.then = term, term, until, then
	l.cfg.Calls.Add()
	send, _, err := l.enter(c)
	if err != nil {
		l.cfg.Calls.Done()
		return false
	}
	if send {
		l.carry(c)
	}
	return true
}

// enter reports whether c is to be sent now, by its caller's goroutine or another; otherwise it waits
// in the queue.
func (l *Pipelines) enter(c *Call) (send, alone bool, err error) {
	now := time.Now()
	left := c.Deadline.Sub(now)
	if left <= 0 { // the timer of its context may be late
		return false, false, context.DeadlineExceeded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return false, false, driver.ErrClosed
	case !l.open():
		if len(l.queue) >= maxQueue {
			l.queue = slices.DeleteFunc(l.queue, func(c *Call) bool { return c.state.Load() != callQueued })
			if len(l.queue) >= maxQueue {
				return false, false, errors.New("too many calls wait for the node")
			}
		}
		l.track(c, now)
		l.queue = append(l.queue, c)
		return false, false, nil
	}
	alone = c.then == nil && l.busy == 0 && l.usual > 0 && l.missed == 0 && l.cfg.Abandon != nil && left >= max(promptly*l.usual, MinTimeout)
	c.state.Store(callSent)
	if !alone {
		l.track(c, now)
	}
	l.busy++
	l.calling++
	return true, alone, nil
}

// open reports whether a call may be sent at once. The caller holds l.mu.
func (l *Pipelines) open() bool {
	switch {
	case l.busy == 0:
		return true
	case l.busy == l.cfg.Connections, l.missed > 0:
		return false
	}
	return l.usual >= longTrip || l.crowded < crowd
}

// alone sends c on the caller's goroutine. Another goroutine sends the calls that came meanwhile.
func (l *Pipelines) alone(c *Call) error {
	c.self[0] = c
	cancellable := c.ctx.Done() != nil
	if cancellable {
		l.watcher.begin(c.ctx, l.cfg.Abandon)
	}
	took := l.send(c.self[:], c.Deadline)
	if cancellable {
		l.watcher.end()
	}
	c.done = answered
	if batch := l.next(1, took, nil); len(batch) > 0 {
		l.carry(batch...)
	}
	if took == 0 && !errors.Is(c.Err, ErrNotSent) && c.ctx.Err() != nil {
		return c.ctx.Err()
	}
	return c.Err
}

// carry sends calls, in the background, and then the queued calls.
func (l *Pipelines) carry(calls ...*Call) {
	r, _ := l.carriers.Get().(*carrier)
	if r == nil {
		r = &carrier{of: l}
	}
	r.batch = append(r.batch[:0], calls...)
	l.cfg.Goroutines.Add()
	l.workers.Start(r)
}

// A carrier sends batches until nothing is left to send.
type carrier struct {
	of    *Pipelines
	batch []*Call
}

// Run is the carrier's goroutine.
func (r *carrier) Run() {
	l := r.of
	defer l.cfg.Goroutines.Done()
	for len(r.batch) > 0 {
		took := l.send(r.batch, time.Now().Add(l.patience()))
		if left := l.finish(r.batch); left != nil {
			l.send(left, time.Now().Add(l.patience()))
			l.finishAll(left)
		}
		calls := len(r.batch)
		clear(r.batch)
		r.batch = l.next(calls, took, r.batch[:0])
	}
	l.carriers.Put(r)
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

// patience is how long a call may take.
func (l *Pipelines) patience() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missed%probeEvery > 0 {
		return l.cfg.CallTimeout / 4
	}
	return l.cfg.CallTimeout
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
		l.mu.Lock()
		usual := l.usual
		l.mu.Unlock()
		calls, spread = l.cfg.Gatherer.Gather(calls, promptly*usual)
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

// next notes a round trip with this many calls, and takes the queued calls for the next one, without
// those whose callers left. It returns none, and gives the round trip up, if none is queued, or if
// another one finds out whether the server answers.
func (l *Pipelines) next(calls int, took time.Duration, batch []*Call) []*Call {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.crowded = max(l.calling+len(l.queue), l.crowded-(l.crowded+7)/8)
	l.calling -= calls
	switch {
	case took == 0:
		l.missed++
	case l.usual == 0:
		l.missed, l.usual = 0, took
	default:
		l.missed, l.usual = 0, l.usual+(took-l.usual)/8
	}
	if l.missed == 0 || l.busy == 1 {
		batch = l.dequeue(batch)
	}
	if len(batch) == 0 {
		l.busy--
		return batch
	}
	for l.usual >= longTrip && len(l.queue) > 0 && l.open() { // what does not fit need not wait for a far server
		more := l.dequeue(nil)
		if len(more) > 0 {
			l.busy++
			l.carry(more...)
		}
	}
	return batch
}

// dequeue appends queued calls to a batch, without those whose callers left. A far server gets more
// at a time, but not while it does not answer, because every call that was sent is then in doubt.
// The caller holds l.mu.
func (l *Pipelines) dequeue(batch []*Call) []*Call {
	room := MaxBatch
	if l.missed == 0 && l.usual >= longTrip {
		room = min(max(MaxBatch, int(l.usual/perCall)), mostBatch)
	}
	for len(l.queue) > 0 && len(batch) < room {
		c := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		if c.state.CompareAndSwap(callQueued, callSent) {
			batch = append(batch, c)
		}
	}
	if len(l.queue) == 0 {
		l.queue = nil
	}
	l.calling += len(batch)
	return batch
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
