package redisnode

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/async"
)

const (
	// most is how many round trips are under way to a server at most: a second one costs many
	// callers on a near server more than it gains, and a far server stands idle without it.
	most     = 2
	longTrip = 2 * time.Millisecond
	// crowd is how many calls must be under way or waiting so that they share one round trip.
	crowd = 32
	// maxBatch bounds the calls that are sent together, because the last one waits for all
	// before it. To a far server up to mostBatch are sent, if that wait, perCall for each call,
	// is no longer than another round trip.
	maxBatch, mostBatch = 128, 1024
	perCall             = 10 * time.Microsecond
	// maxQueue bounds the calls that wait for a round trip.
	maxQueue = 16384
	// probeEvery is how many calls in a row miss their answer before one gets all of the call
	// timeout.
	probeEvery = 16
	// promptly is the least time, in round trips, that a call must have left to run on its
	// caller's goroutine.
	promptly = 16
	// maxUnderWay is the greatest number of calls that are under way to a server.
	maxUnderWay = most * mostBatch
	// minTimeout is the least time for a call, however soon its result is useless.
	minTimeout = 50 * time.Millisecond
	// watchEvery is half of the longest time for which a caller whose goroutine makes its call waits
	// after its context has ended.
	watchEvery = 50 * time.Millisecond
)

// A lane sends calls to one server process. A call that finds few others under way is sent alone, at once.
// Other calls wait, and go together as soon as a round trip ends. So a lone caller waits for nobody,
// and many callers share round trips.
//
// The library gets the call timeout for each call, however soon its caller leaves: at a
// deadline a library closes the connection, and the next calls would have to wait for a new
// one.
//
// If the library respects deadlines, and the server answers so fast that the deadline is far
// away, a lone call runs on its caller's goroutine, because passing it to another costs a third of
// a round trip on loopback. Its own deadline then bounds it, and its connection ends when its
// caller has left, at which the lane looks now and then. A call that may have to connect first does
// not run there, because connecting takes additional time.
//
// While a server does not answer, one call at a time is under way to it. Such a call has a quarter
// of the call timeout, because another server may have taken this one's place meanwhile; every
// sixteenth has all of it, in case the server has only become slow.
type lane struct {
	node    *Node
	gather  bool          // calls are put into batches
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
}

// do runs c and returns its error; ctx has a deadline. The error ErrNotSent says that no byte
// was sent. Any other error that is not a ServerError leaves the outcome unknown; then c.done
// is closed when the client library has given up.
func (l *lane) do(ctx context.Context, c *Call) error {
	if err := ctx.Err(); err != nil {
		return NotSent(err)
	}
	l.node.work.Add()
	defer l.node.work.Done()
	c.ctx = ctx
	c.deadline, _ = ctx.Deadline()
	send, alone, err := l.enter(c)
	switch {
	case err != nil:
		return NotSent(err)
	case alone:
		return l.alone(c)
	case send:
		l.carry(c)
	}
	select {
	case <-c.wake:
	case <-ctx.Done():
		if !l.leave(c, ctx.Err()) {
			<-c.wake // both came at the same moment: the answer counts
		}
	}
	return c.result()
}

// start is do for a call that nobody waits for: then gets its error exactly once, never from within
// start, and no later than the end of its term, or until. It returns false if do would fail at once.
func (l *lane) start(c *Call, term async.Term, until time.Time, then interface{ finished(error) }) bool {
	c.ctx, c.term, c.deadline, c.then = term, term, until, then
	l.node.work.Add()
	send, _, err := l.enter(c)
	if err != nil {
		l.node.work.Done()
		return false
	}
	if send {
		l.carry(c)
	}
	return true
}

// enter reports whether c must be sent now, by its caller's goroutine or another; otherwise it waits
// in the queue.
func (l *lane) enter(c *Call) (send, alone bool, err error) {
	now := time.Now()
	left := c.deadline.Sub(now)
	if left <= 0 { // the timer of its context may be late
		return false, false, context.DeadlineExceeded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, false, driver.ErrClosed
	}
	if !l.open() {
		if len(l.queue) >= maxQueue {
			return false, false, errors.New("too many calls wait for the node")
		}
		l.track(c, now)
		l.queue = append(l.queue, c)
		return false, false, nil
	}
	l.busy++
	l.calling++
	c.state = callSent
	abandon := l.node.cfg.Abandon
	if c.then == nil && l.busy == 1 && l.usual > 0 && l.missed == 0 && abandon != nil && left >= max(promptly*l.usual, minTimeout) {
		c.since = now
		alone = true
	}
	l.track(c, now)
	return true, alone, nil
}

// open reports whether a call may be sent at once. The caller holds l.mu.
func (l *lane) open() bool {
	return l.busy == 0 || l.busy < l.connections() && l.missed == 0 && (l.usual >= longTrip || l.crowded < crowd)
}

func (l *lane) connections() int {
	if n := l.node.cfg.Connections; n > 0 {
		return min(n, most)
	}
	return most
}

// alone sends c on the caller's goroutine. Another goroutine sends the calls that came meanwhile.
func (l *lane) alone(c *Call) error {
	c.self[0] = c
	took := l.send(c.self[:], c.deadline)
	l.mu.Lock()
	l.untrack(c)
	l.mu.Unlock()
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
func (l *lane) carry(calls ...*Call) {
	r, _ := l.carriers.Get().(*carrier)
	if r == nil {
		r = &carrier{of: l}
	}
	r.batch = append(r.batch[:0], calls...)
	l.node.wg.Add()
	l.workers.Start(r)
}

// A carrier sends batches until nothing is left to send.
type carrier struct {
	of    *lane
	batch []*Call
}

// Run is the carrier's goroutine.
func (r *carrier) Run() {
	l := r.of
	defer l.node.wg.Done()
	for len(r.batch) > 0 {
		took := l.send(r.batch, time.Now().Add(l.patience()))
		if left := l.finish(r.batch); len(left) > 0 {
			l.send(left, time.Now().Add(l.patience()))
			l.finish(left)
		}
		clear(r.batch)
		r.batch = l.next(len(r.batch), took, r.batch[:0])
	}
	l.carriers.Put(r)
}

// finish tells the callers of calls that Reply and Err are set: after that a call may be reused. It
// returns the calls that a batch has left to the single scripts.
func (l *lane) finish(calls []*Call) (left []*Call) {
	over := calls[:0]
	l.mu.Lock()
	for _, c := range calls {
		switch {
		case c.unanswered:
			c.unanswered = false
			left = append(left, c)
		case c.state == callSent:
			l.untrack(c)
			c.done = answered
			over = append(over, c)
		default: // its caller has left
			close(c.done)
		}
	}
	l.mu.Unlock()
	for _, c := range over {
		l.notify(c)
	}
	return left
}

// notify tells the caller of c that the call has ended.
func (l *lane) notify(c *Call) {
	if c.then == nil {
		c.wake <- struct{}{} // has room, because it is told once
		return
	}
	defer l.node.work.Done()
	c.then.finished(c.result())
}

// patience is how long a call may take.
func (l *lane) patience() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.missed%probeEvery > 0 {
		return l.node.cfg.CallTimeout / 4
	}
	return l.node.cfg.CallTimeout
}

// send makes one round trip, and returns how long it took; zero: without an answer.
func (l *lane) send(calls []*Call, deadline time.Time) time.Duration {
	out := &sendContext{calls[0].ctx, deadline} // hooks of an application's client may keep ctx
	if len(calls) > 1 {
		out.Context = context.Background() // the batch must not have one caller's values
	}
	sent := time.Now()
	spread := func() {}
	if l.gather && len(calls) > 1 {
		l.mu.Lock()
		usual := l.usual
		l.mu.Unlock()
		calls, spread = l.node.router.gather(calls, usual)
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

func (l *lane) exec(ctx context.Context, calls []*Call) (err error) {
	defer Contain(&err)
	l.node.cfg.Client.Exec(ctx, calls)
	return nil
}

// next notes a round trip with this many calls, and takes the queued calls for the next one, without
// those whose callers left. It returns none, and gives the round trip up, if none is queued, or if another
// one finds out whether the server answers.
func (l *lane) next(calls int, took time.Duration, batch []*Call) []*Call {
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
		if more := l.dequeue(nil); len(more) > 0 {
			l.busy++
			l.carry(more...)
		}
	}
	return batch
}

// dequeue appends queued calls to a batch, without those whose callers left. A far server gets more
// at a time, but not while it does not answer, because every call that was sent is then in doubt.
// The caller holds l.mu.
func (l *lane) dequeue(batch []*Call) []*Call {
	room := maxBatch
	if l.missed == 0 {
		room = min(max(maxBatch, int(l.usual/perCall)), mostBatch)
	}
	for len(l.queue) > 0 && len(batch) < room {
		c := l.queue[0]
		l.queue[0] = nil
		l.queue = l.queue[1:]
		if c.state == callQueued {
			c.state = callSent
			batch = append(batch, c)
		}
	}
	if len(l.queue) == 0 {
		l.queue = nil
	}
	l.calling += len(batch)
	return batch
}

// close refuses new and queued calls; calls under way end by themselves.
func (l *lane) close() {
	var over []*Call
	l.mu.Lock()
	l.closed = true
	for _, c := range l.queue {
		if l.giveUp(c, driver.ErrClosed) {
			over = append(over, c)
		}
	}
	l.queue = nil
	l.mu.Unlock()
	l.retire()
	for _, c := range over {
		go l.notify(c)
	}
}

// retire ends the idle goroutines, and the others after their calls, which go on.
func (l *lane) retire() { l.workers.Close() }

// leave ends a call without an answer, and reports whether it did. The call is then in doubt,
// or was not sent.
func (l *lane) leave(c *Call, why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.giveUp(c, why)
}

// giveUp is leave with l.mu held.
func (l *lane) giveUp(c *Call, why error) bool {
	if c.timed == 0 {
		return false
	}
	l.untrack(c)
	if c.left = why; c.state == callQueued {
		c.left = NotSent(why)
	}
	c.state, c.done = callLeft, make(chan struct{})
	return true
}

// expire ends the calls whose deadline has passed, and ends the connection of a lone one whose caller
// left.
func (l *lane) expire() {
	var over []*Call
	l.mu.Lock()
	now := time.Now()
	l.alarm = time.Time{}
	for i := 0; i < len(l.timed); {
		c := l.timed[i]
		switch {
		case !c.since.IsZero():
			l.watch(c, now)
		case !now.Before(c.due):
			l.giveUp(c, context.DeadlineExceeded) // another call has taken its place
			over = append(over, c)
			continue
		}
		l.expect(c.due, now)
		i++
	}
	l.mu.Unlock()
	for _, c := range over {
		l.notify(c)
	}
}

// watch looks whether the caller of a lone call has left. The caller holds l.mu.
func (l *lane) watch(c *Call, now time.Time) {
	if now.Before(c.due) {
		return
	}
	if c.ended {
		l.node.cfg.Abandon(c.since)
	}
	c.ended = c.ctx.Err() != nil // the answer may come meanwhile
	c.due = now.Add(watchEvery)
}

// track makes a call end at its deadline; a lone one is watched. The caller holds l.mu.
func (l *lane) track(c *Call, now time.Time) {
	switch {
	case !c.since.IsZero():
		if c.due = now.Add(watchEvery); c.ctx.Done() == nil {
			return
		}
	case c.then == nil && c.wake == nil:
		c.wake = make(chan struct{}, 1)
		fallthrough
	default:
		c.due = c.deadline
	}
	l.timed = append(l.timed, c)
	c.timed = len(l.timed)
	l.expect(c.due, now)
}

// expect sets the timer to a deadline, unless it fires earlier. Most calls are answered long
// before, so the timer is not set for each. The caller holds l.mu.
func (l *lane) expect(deadline, now time.Time) {
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
func (l *lane) untrack(c *Call) {
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
