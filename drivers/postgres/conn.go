package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
	"github.com/redlock-go/redlock/drivers/postgres/internal/wire"
)

// A conn is one connection and the leases on it. It serves requests of one class, or waits for
// one lock, or is idle.
//
// Requests that come while a round of statements is under way go together as the next round.
// The caller whose request is sent reads the answer (read.go). No caller's context ends the
// connection: a grant that its caller no longer wants is given back.
type conn struct {
	b      *Backend
	opened chan struct{} // closed when it is open, or has failed to open
	w      *wire.Conn    // set before opened is closed; nil if it failed to open
	server server        // set with w
	lost   chan struct{} // closed when it ends
	closed chan struct{} // closed a moment later, when the connection is closed

	mu       sync.Mutex
	end      error // why it ended; nil while it lives
	freed    bool  // the server process has ended: its locks are free
	fatal    bool  // the server announced that the process ends
	suspect  bool  // the server was silent for too long: no new requests
	waiting  bool  // reserved for a wait
	reading  bool  // a goroutine reads the answers
	queue    queue
	round    []*statement               // sent and unanswered, in order
	out      []byte                     // the last round's bytes, whose memory serves the next
	asked    map[advisory.Number]*op    // locks of this round
	held     map[advisory.Number]*Lease // the leases; shared ones of one lock are a list
	leases   int
	class    time.Duration // that the leases and requests need
	told     time.Duration // the class that the server was told last
	known    time.Duration // the class that the server has confirmed
	answered time.Time     // the sending time of the last statement that was answered
	used     time.Time     // when a caller last made a request
	nextEnd  time.Time     // when the first lease may end
	timer    *time.Timer
	due      time.Time // when the timer fires

	timeout time.Duration // lock_timeout
	shows   bool          // holds the second lock of a waiting writer

	lookup endLookup
}

// A queue has the requests that were not sent yet.
type queue struct{ unlocks, beats, locks []*op }

func (q *queue) len() int { return len(q.unlocks) + len(q.beats) + len(q.locks) }

// An op is one request of a caller.
type op struct {
	lease *Lease // to lock, to unlock or to renew
	class time.Duration
	since time.Time
	limit time.Duration // of waiting for the answer
	gone  bool          // its caller has given up
	tries int           // of an unlock, after the first
	also  []*op         // requests for the same lock in the same mode, which a refusal answers too
	err   error
	done  chan struct{} // closed when it is answered
}

func (o *op) finish(err error) {
	if !o.gone {
		o.err = err
		close(o.done)
	}
}

// A statement is one message of the simple protocol, and its answer.
type statement struct {
	sql    string
	class  time.Duration // the class that it sets; zero: none
	ops    []*op
	beats  []*op         // renewals that its answer confirms
	most   time.Duration // how long it may take on the server
	sent   time.Time
	values []int64 // a row each; -1: null
	err    *pgconn.PgError
	do     func(*conn, *statement) // handles the answer, under the mutex
}

// errEnded says that a connection takes no more requests.
var errEnded = errors.New("postgres: the session has ended")

func newConn(b *Backend, class time.Duration) *conn {
	return &conn{
		b: b, opened: make(chan struct{}), lost: make(chan struct{}), closed: make(chan struct{}),
		asked: map[advisory.Number]*op{}, held: map[advisory.Number]*Lease{},
		class: class, told: idleClass, known: idleClass, timeout: longSlice, used: time.Now(),
	}
}

// start begins to serve requests over w, after the setup.
func (c *conn) start(w *wire.Conn, srv server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w, c.server = w, srv
	close(c.opened)
	if c.end != nil { // the backend closes
		w.Close()
		return
	}
	now := time.Now()
	for _, o := range c.queue.locks {
		o.since = now
	}
	c.used = now
	c.timer = time.AfterFunc(time.Hour, c.tick)
	c.schedule(now)
	c.flush()
	c.readOn()
}

// newOp makes a request of l; the mutex is held.
func (c *conn) newOp(l *Lease, limit time.Duration) *op {
	now := time.Now()
	c.used = now
	return &op{lease: l, class: classOf(l.ttl), since: now, limit: limit, done: make(chan struct{})}
}

// lock asks for a lock and waits for the answer. errEnded says that the connection takes no
// requests.
func (c *conn) lock(ctx context.Context, l *Lease) error {
	c.mu.Lock()
	switch {
	case c.b.closing():
		c.mu.Unlock()
		return driver.ErrClosed
	case c.end != nil || c.waiting || c.suspect:
		c.mu.Unlock()
		return errEnded
	}
	if held := c.refusal(l); held != nil {
		c.mu.Unlock()
		return held
	}
	l.c = c
	o := c.newOp(l, patience(l.ttl))
	c.class = max(c.class, o.class)
	c.queue.locks = append(c.queue.locks, o)
	c.flush()
	if !c.await(ctx, o) {
		c.abandon(o)
		return verdict.Ended(ctx)
	}
	return o.err
}

// abandon takes back a request whose caller has given up. A request that is still in the queue is
// dropped; if it was sent and is granted, the grant is given back.
func (c *conn) abandon(o *op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-o.done:
		if o.err == nil {
			c.unlock(o.lease)
			c.flush()
			c.readOn()
		}
		return
	default:
	}
	o.gone = true
	if i := slices.Index(c.queue.locks, o); i >= 0 {
		c.queue.locks = slices.Delete(c.queue.locks, i, i+1)
	}
}

// unlock puts the unlock of l into the queue; the mutex is held.
func (c *conn) unlock(l *Lease) *op {
	if l.leaving == nil {
		l.leaving = c.newOp(l, releaseTimeout)
		c.queue.unlocks = append(c.queue.unlocks, l.leaving)
	}
	return l.leaving
}

// flush sends the queue as a round, if no round is under way; the mutex is held. A round may need
// no statement: then the rest of the queue is the next one.
func (c *conn) flush() {
	for c.end == nil && c.w != nil && len(c.round) == 0 && !c.waiting && c.queue.len() > 0 {
		c.write(c.plan()...)
	}
}

// write sends statements; the mutex is held.
func (c *conn) write(out ...*statement) {
	if len(out) == 0 {
		return
	}
	c.round = append(c.round, out...)
	msg := c.out[:0]
	for _, st := range out {
		msg = wire.AppendQuery(msg, st.sql)
	}
	c.out = msg
	now := time.Now() // before the first byte: Expires counts from here
	for _, st := range out {
		st.sent = now
		if st.class != 0 {
			c.told = st.class
		}
	}
	c.schedule(now)
	if err := c.w.Write(now, msg); err != nil {
		c.fail(fmt.Errorf("postgres: write: %w", err), false)
	}
}

// ready takes the complete answer to the first statement of the round, and sends the next round
// after the last; the mutex is held.
func (c *conn) ready() {
	if len(c.round) == 0 {
		return
	}
	st := c.round[0]
	c.round = slices.Delete(c.round, 0, 1)
	c.answered = st.sent
	if st.class != 0 {
		switch {
		case st.err == nil:
			c.known = st.class
		case st.err.Code == verdict.CodeCanceled: // decide gives back a grant under the old class
			c.told = c.known
		default:
			c.failWith(st.ops, fmt.Errorf("postgres: idle_session_timeout was not set: %w", st.err))
			return
		}
	}
	if st.do != nil {
		st.do(c, st)
	}
	finish(st.beats, nil)
	if len(c.round) == 0 {
		c.flush()
	}
}

// fail ends the connection: its leases are lost, and its requests fail. The mutex is held.
func (c *conn) fail(err error, freed bool) {
	if c.end != nil {
		return
	}
	c.end, c.freed = err, c.freed || freed
	close(c.lost)
	if c.timer != nil {
		c.timer.Stop()
	}
	ops := slices.Concat(c.queue.unlocks, c.queue.beats, c.queue.locks)
	for _, st := range c.round {
		ops = append(append(ops, st.ops...), st.beats...)
	}
	lost := c.leases
	c.b.locks.Add(-int64(len(c.held)))
	c.queue, c.round, c.held, c.leases = queue{}, nil, nil, 0
	finish(ops, err)
	if c.w == nil { // it failed to open
		close(c.closed)
		return
	}
	c.b.wg.Add(1)
	go c.hangUp(lost)
}

// failWith ends the connection, and also fails ops, which are no longer in its round.
func (c *conn) failWith(ops []*op, err error) {
	c.fail(err, false)
	finish(ops, err)
}

func finish(ops []*op, err error) {
	for _, o := range ops {
		if !o.answered() {
			o.finish(err)
		}
		finish(o.also, err)
	}
}

// hangUp closes the connection and reports it. A server process that ends announces it, frees
// its locks, and only then closes the connection.
func (c *conn) hangUp(lost int) {
	defer c.b.wg.Done()
	c.mu.Lock()
	fatal, err := c.fatal, c.end
	c.mu.Unlock()
	if fatal && c.b.opt.Pooler == "" && c.w.Drain() {
		c.mu.Lock()
		c.freed = true
		c.mu.Unlock()
	}
	c.w.Close()
	close(c.closed)
	c.b.forget(c)
	if lost > 0 && !c.b.closing() {
		c.b.report(driver.Notice{Kind: driver.NoticeDisconnected, Err: err, Detail: fmt.Sprintf("a session ended, and %d leases with it", lost)})
	}
}

// idleRead is how long nobody reads on a connection that is not used. A round begun in that time is
// read by its sender.
const idleRead = 50 * time.Millisecond

// period is the time between two ticks; the mutex is held.
func (c *conn) period() time.Duration {
	most := 500 * time.Millisecond
	switch {
	case !c.reading || len(c.round) > 0:
		most = idleRead
	case c.leases == 0 && c.told == idleClass:
		return time.Second
	}
	return min(max(c.told/10, 10*time.Millisecond), most)
}

// schedule sets the next tick, unless an earlier one is set; the mutex is held.
func (c *conn) schedule(now time.Time) {
	next := now.Add(c.period())
	if now.Before(c.due) && c.due.Before(next) {
		return
	}
	c.due = next
	c.timer.Reset(next.Sub(now))
}

// tick does the periodic work: it ends requests that wait for too long, unlocks leases that are
// over, ends a connection whose server is silent, lengthens the timeout of a connection without
// leases, and lets a goroutine read on a connection that is not used.
func (c *conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.end != nil {
		return
	}
	now := time.Now()
	if silence := c.silence(now); silence > time.Second {
		c.suspect = c.suspect || silence > suspectAfter
		c.giveUp(now)
		limit := wire.WriteTimeout
		if c.leases > 0 {
			limit = max(c.class, time.Second)
		}
		if silence > limit {
			c.fail(fmt.Errorf("postgres: %w", verdict.ErrSilent), false)
			return
		}
	}
	c.sweep(now)
	if c.idle() {
		c.rest(now)
	}
	c.flush()
	if c.end != nil {
		return
	}
	if len(c.round) > 0 || now.Sub(c.used) > idleRead {
		c.readOn()
	}
	c.schedule(now)
}

// silence returns how long an answer is overdue.
func (c *conn) silence(now time.Time) time.Duration {
	if len(c.round) == 0 {
		return 0
	}
	return now.Sub(c.round[0].sent) - c.round[0].most
}

// suspectAfter is how long a connection may be silent before requests go to another: it may be
// dead. Its leases stay, and the server knows which locks are held.
const suspectAfter = 2 * time.Second

// giveUp ends the waiting of callers whose time is over. What the server grants them later is
// given back. An unlock stays, and a caller that asks again waits for it again.
func (c *conn) giveUp(now time.Time) {
	over := func(o *op) bool {
		if o.gone || !c.suspect && now.Sub(o.since) < o.limit {
			return o.gone
		}
		o.finish(verdict.ErrTimeout)
		o.gone = true
		return true
	}
	stay := func(unlocks []*op) {
		for i, o := range unlocks {
			if l := o.lease; o == l.leaving && over(o) {
				l.leaving = c.newOp(l, releaseTimeout)
				l.leaving.tries = o.tries
				unlocks[i] = l.leaving
			}
		}
	}
	for _, st := range c.round {
		stay(st.ops)
		for _, o := range slices.Concat(st.ops, st.beats) {
			if o != o.lease.leaving {
				over(o)
			}
			for _, o := range o.also {
				over(o)
			}
		}
	}
	stay(c.queue.unlocks)
	c.queue.beats = slices.DeleteFunc(c.queue.beats, over)
	c.queue.locks = slices.DeleteFunc(c.queue.locks, over)
	c.w.Interrupt()
}

// sweep unlocks leases that were not renewed. The server does not unlock them while other
// leases keep the session alive.
func (c *conn) sweep(now time.Time) {
	if now.Before(c.nextEnd) || c.leases == 0 {
		return
	}
	c.nextEnd = now.Add(maxTTL)
	for _, l := range c.held {
		for ; l != nil; l = l.next {
			switch end := l.end(); {
			case l.leaving != nil:
			case !now.Before(end):
				l.expired = true
				c.unlock(l)
			case end.Before(c.nextEnd):
				c.nextEnd = end
			}
		}
	}
}

// idle reports whether the connection has no leases and no requests.
func (c *conn) idle() bool {
	return c.w != nil && c.leases == 0 && c.queue.len() == 0 && len(c.round) == 0 && !c.waiting
}

// rest sets the long timeout of a connection that holds nothing, and ends the connection after a
// while.
func (c *conn) rest(now time.Time) {
	switch {
	case now.Sub(c.used) > idleKeep, c.suspect:
		c.fail(errEnded, true)
	case c.told != idleClass && now.Sub(c.answered) > c.told/4:
		c.class = 0
		c.write(tell(idleClass))
	}
}
