package redisnode

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

const (
	// most is how many round trips are under way to a server at most. A second one costs the callers
	// of a near server more than it gains; a server that is longTrip away stands idle without it.
	most     = 2
	longTrip = 2 * time.Millisecond
	// A round trip to a near server, or to one that does not answer, has at most maxBatch calls,
	// because the last one waits for all before it; one to a far server has up to mostBatch.
	maxBatch, mostBatch = 128, 1024
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

// A lane sends calls to one server process. A call that finds none under way is sent alone, at once.
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
// While a server does not answer, one round trip at a time is under way to it. It has a quarter of the
// call timeout, because another server may have taken this one's place meanwhile; every sixteenth has
// all of it, in case the server has only become slow.
type lane struct {
	node *Node

	mu    sync.Mutex
	queue []*Call
	trips [most][]*Call // the calls of each round trip that is under way
	timer *time.Timer   // fires at the first deadline of a call, or before
	alarm time.Time     // when the timer fires; zero: not set

	carry chan int // to goroutines that wait for a trip, whose stacks have grown to what libraries need
	idle  int      // how many wait

	closed  bool          // nothing is sent any more
	retired bool          // no goroutine waits any more
	missed  int           // round trips in a row without an answer
	usual   time.Duration // a round trip; zero: there was none
}

func newLane(n *Node) *lane { return &lane{node: n, carry: make(chan int, most)} }

// do runs c and returns its error; ctx has a deadline. The error ErrNotSent says that no byte
// was sent. Any other error that is not a ServerError leaves the outcome unknown; then c.done
// is closed when the client library has given up.
func (l *lane) do(ctx context.Context, c *Call) error {
	if err := ctx.Err(); err != nil {
		return NotSent(err)
	}
	c.ctx = ctx
	c.deadline, _ = ctx.Deadline()
	alone, err := l.enter(c)
	if err != nil {
		return NotSent(err)
	}
	defer l.node.work.Done()
	if alone {
		return l.alone(c)
	}
	select {
	case <-c.wake:
	case <-ctx.Done():
		l.mu.Lock()
		left := l.giveUp(c, ctx.Err())
		l.mu.Unlock()
		if !left {
			<-c.wake // both came at the same moment: the answer counts
		}
	}
	return c.result()
}

// enter lets c be sent, now or later, unless it returns an error; alone says that its caller must
// send it. The operation of a started call hears of its end exactly once: never from within enter, and
// no later than at its deadline.
func (l *lane) enter(c *Call) (alone bool, err error) {
	now := c.sent
	if now.IsZero() {
		now = time.Now()
	}
	left := c.deadline.Sub(now)
	if left <= 0 { // the timer of its context may be late
		return false, context.DeadlineExceeded
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false, driver.ErrClosed
	}
	l.node.work.Add()
	i, lone := l.free(), l.trips[0] == nil && l.trips[1] == nil
	if i >= 0 {
		c.state, c.self[0] = callSent, c
		l.trips[i] = c.self[:]
	} else {
		l.queue = append(l.queue, c)
	}
	if c.due = c.deadline; lone && !c.started && l.usual > 0 && l.missed == 0 && l.node.cfg.Abandon != nil && left >= max(promptly*l.usual, minTimeout) {
		if c.since = now; c.ctx.Done() != nil {
			c.due = now.Add(watchEvery)
			l.expect(c.due, now)
		}
		return true, nil
	}
	if !c.started && c.wake == nil {
		c.wake = make(chan struct{}, 1)
	}
	l.expect(c.due, now)
	if i >= 0 {
		l.begin(i)
	}
	return false, nil
}

// free returns the number of a round trip that may begin now, 0 for the only one, or -1. The caller
// holds l.mu.
func (l *lane) free() int {
	switch {
	case l.trips[0] == nil && l.trips[1] == nil:
		return 0
	case l.missed > 0 || l.usual < longTrip || l.trips[0] != nil && l.trips[1] != nil:
		return -1
	case l.trips[0] == nil:
		return 0
	}
	return 1
}

// alone sends c on the caller's goroutine. Another goroutine sends the calls that came meanwhile.
func (l *lane) alone(c *Call) error {
	took := l.send(c.self[:], time.Until(c.deadline))
	l.mu.Lock()
	c.state, c.done = callEnded, answered
	if l.next(0, took) {
		l.begin(0)
	}
	l.mu.Unlock()
	if took == 0 && !errors.Is(c.Err, ErrNotSent) && c.ctx.Err() != nil {
		return c.ctx.Err()
	}
	return c.Err
}

// begin lets a goroutine make round trip i. The caller holds l.mu.
func (l *lane) begin(i int) {
	l.node.wg.Add()
	if l.idle == 0 {
		go l.carrier(i)
		return
	}
	l.idle--
	l.carry <- i // has room
}

// carrier makes round trip i, with what is queued behind it, and then waits for another one.
func (l *lane) carrier(i int) {
	for stay := true; stay; i, stay = <-l.carry {
		for more := true; more; {
			took := l.send(l.trips[i], 0)
			for left := l.finish(i); left; left = l.finish(i) {
				l.send(l.trips[i], 0)
			}
			l.mu.Lock()
			more = l.next(i, took)
			l.mu.Unlock()
		}
		l.mu.Lock()
		l.node.wg.Done()
		over := l.retired
		if !over {
			l.idle++
		}
		l.mu.Unlock()
		if over {
			return
		}
	}
}

// finish tells the callers of a trip that Reply and Err are set: after that a call may be reused. It
// returns true if a batch has left calls to the single scripts, and then they are the trip's.
func (l *lane) finish(i int) bool {
	var left []*Call
	l.mu.Lock()
	over := l.trips[i][:0]
	for _, c := range l.trips[i] {
		switch {
		case c.unanswered:
			c.unanswered = false
			left = append(left, c)
		case c.state == callSent:
			c.state, c.done = callEnded, answered
			over = append(over, c)
		default: // its caller has left
			close(c.done)
		}
	}
	l.trips[i] = left
	if left == nil {
		l.trips[i] = noCalls // it is still under way
	}
	l.mu.Unlock()
	for _, c := range over {
		l.notify(c)
	}
	return left != nil
}

var noCalls = []*Call{}

// notify tells the caller of c that the call has ended.
func (l *lane) notify(c *Call) {
	if !c.started {
		c.wake <- struct{}{} // has room, because it is told once
		return
	}
	defer l.node.work.Done()
	c.of.finished(c.result())
}

// send makes one round trip, and returns how long it took; zero: without an answer. The library gets most for
// it, or if that is zero the call timeout, and no other end: a caller leaves by itself, and a library that
// watches Done would close a connection that others share.
func (l *lane) send(calls []*Call, most time.Duration) time.Duration {
	l.mu.Lock()
	usual, missed := l.usual, l.missed
	l.mu.Unlock()
	if most == 0 {
		if most = l.node.cfg.CallTimeout; missed%probeEvery > 0 {
			most /= 4
		}
	}
	sent, batches := time.Now(), []*batch(nil)
	ctx := &calls[0].sending
	if len(calls) > 1 {
		ctx = &sendContext{Context: context.Background()} // it must not have one caller's values
		calls, batches = gather(calls, usual)
	} else if ctx.Context = calls[0].ctx; l.node.cfg.Abandon == nil {
		ctx = &sendContext{Context: ctx.Context} // what an application's client calls may keep it for longer than the call
	}
	ctx.deadline = sent.Add(most)
	if err := l.exec(ctx, calls); err != nil {
		for _, c := range calls {
			c.Reply, c.Err = nil, err
		}
	}
	for _, b := range batches {
		l.node.router.spread(b)
	}
	if err := calls[0].Err; err != nil && !isReply(err) {
		return 0
	}
	return max(time.Since(sent), 1)
}

// sendContext gives a library a deadline, which a socket needs, and yet does not end: after a call without an answer
// valkey-go asks for a Cluster's shards, and finds the next primary of one that hangs, only if the call's context has
// not ended.
type sendContext struct {
	context.Context // for its values
	deadline        time.Time
}

func (c *sendContext) Deadline() (time.Time, bool) { return c.deadline, true }
func (c *sendContext) Done() <-chan struct{}       { return nil }
func (c *sendContext) Err() error                  { return nil }

func (l *lane) exec(ctx context.Context, calls []*Call) (err error) {
	defer base.Contain(&err)
	l.node.cfg.Client.Exec(ctx, calls)
	return nil
}

// next notes how long round trip i took, and takes the queued calls for the next one. It returns false,
// and the trip is over, if none is queued, or if another one finds out whether the server answers. The
// caller holds l.mu.
func (l *lane) next(i int, took time.Duration) bool {
	switch {
	case took == 0:
		l.missed++
	case l.usual == 0:
		l.missed, l.usual = 0, took
	default:
		l.missed, l.usual = 0, l.usual+(took-l.usual)/8
	}
	l.trips[i] = nil
	if l.missed == 0 || l.trips[1-i] == nil {
		l.trips[i] = l.dequeue()
	}
	for other := l.free(); l.trips[i] != nil && other >= 0; other = l.free() { // what does not fit need not wait for a far server
		if l.trips[other] = l.dequeue(); l.trips[other] == nil {
			break
		}
		l.begin(other)
	}
	return l.trips[i] != nil
}

// dequeue takes queued calls, without those whose callers left; nil: there are none. A far server gets
// more at a time, but not while it does not answer, because every call that was sent is then in doubt.
// The caller holds l.mu.
func (l *lane) dequeue() (batch []*Call) {
	room := maxBatch
	if l.missed == 0 && l.usual >= longTrip {
		room = mostBatch
	}
	if len(l.queue) > 0 {
		batch = make([]*Call, 0, min(len(l.queue), room))
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
	if len(batch) == 0 {
		return nil
	}
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
func (l *lane) retire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.retired {
		l.retired, l.idle = true, 0
		close(l.carry)
	}
}

// giveUp ends a call without an answer, and reports whether it did. The call is then in doubt,
// or was not sent. The caller holds l.mu.
func (l *lane) giveUp(c *Call, why error) bool {
	if c.state > callSent {
		return false
	}
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
	for _, calls := range [...][]*Call{l.trips[0], l.trips[1], l.queue} {
		for _, c := range calls {
			switch {
			case c.state > callSent:
				continue
			case !c.since.IsZero():
				l.watch(c, now)
			case !now.Before(c.due): // another call takes its place
				l.giveUp(c, context.DeadlineExceeded)
				over = append(over, c)
				continue
			}
			l.expect(c.due, now)
		}
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
