package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
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
	w      *wireConn     // set before opened is closed; nil if it failed to open
	server server        // set with w
	lost   chan struct{} // closed when it ends
	freed  atomic.Bool   // the server process has ended: its locks are free
	asking base.Joint    // the question whether it has

	mu       sync.Mutex
	end      error   // why it ended; nil while it lives
	waiting  bool    // reserved for a wait
	reading  bool    // a goroutine reads the answers
	reader   *op     // whose caller it is; nil: it is one of the connection
	values   []int64 // the rows of the answer that is read; only the goroutine that reads uses it
	queue    queue
	round    []*statement      // sent and unanswered, in order
	out      []byte            // the last round's bytes, whose memory serves the next
	firsts   map[number]*op    // the first request of each lock in the round
	held     map[number]*lease // the leases; shared ones of one lock are a list
	leases   int
	class    time.Duration // that the leases and requests need
	told     time.Duration // the class that the server was told last
	known    time.Duration // the class that the server has confirmed
	answered time.Time     // the sending time of the last statement that was answered
	used     time.Time     // when a caller last made a request
	timer    *time.Timer
	due      time.Time // when the timer fires
	shows    bool      // holds the second lock of a waiting writer
}

// A queue has the requests that were not sent yet.
type queue struct{ unlocks, beats, locks []*op }

// An op is one request of a caller.
type op struct {
	l        *lease // to lock, to unlock or to renew
	class    time.Duration
	by       time.Time // its caller waits until then
	gone     bool      // its caller has given up
	also     []*op     // requests for the same lock in the same mode, which a refusal answers too
	err      error
	answered atomic.Bool // err is the answer
}

// A statement is one message of the simple protocol, and its answer.
type statement struct {
	sql    string
	class  time.Duration // the class that it sets; zero: none
	ops    []*op
	beats  []*op         // renewals that its answer confirms
	most   time.Duration // how long it may take on the server
	sent   time.Time
	rows   int     // how many it has if it succeeds
	values []int64 // a row each; -1: null
	err    *pgconn.PgError
	fails  bool                    // an error is an answer, which do handles; else it ends the connection
	do     func(*conn, *statement) // handles the answer, under the mutex
}

var (
	errEnded = errors.New("the session has ended") // it takes no more requests
	errLate  = errors.New("the server did not answer in time")
)

func newConn(b *Backend, class time.Duration) *conn {
	c := &conn{
		b: b, opened: make(chan struct{}), lost: make(chan struct{}),
		firsts: map[number]*op{}, held: map[number]*lease{},
		class: class, told: idleClass, known: idleClass, used: time.Now(),
	}
	c.mu.Lock() // tick uses the timer
	defer c.mu.Unlock()
	c.timer = time.AfterFunc(idleRead, c.tick)
	return c
}

// start begins to serve requests over w, after the setup.
func (c *conn) start(w *wireConn, srv server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.w, c.server = w, srv
	close(c.opened)
	if c.end != nil { // the backend closes
		w.close()
		return
	}
	c.used = time.Now()
	c.schedule(c.used)
	c.flush()
	c.readOn()
}

// finish answers o, and those that wait with it; the connection's mutex is held.
func (o *op) finish(err error) {
	if !o.answered.Load() {
		o.err = err
		o.answered.Store(true)
		o.l.signal()
	}
	for _, also := range o.also {
		also.finish(err)
	}
}

// lock asks for a lock and waits for the answer. errEnded says that the connection takes no
// requests.
func (c *conn) lock(call *base.Call, l *lease) error {
	c.mu.Lock()
	if c.end != nil || c.waiting || c.silence() > suspectAfter {
		c.mu.Unlock()
		return errEnded
	}
	if held := c.refusal(&l.want); held != nil {
		c.mu.Unlock()
		return held
	}
	l.c, l.taking = c, op{l: l, class: classOf(l.ttl)}
	c.class = max(c.class, l.taking.class)
	c.queue.locks = append(c.queue.locks, &l.taking)
	c.flush()
	return c.await(call, &l.taking)
}

// unlock puts the unlock of l into the queue; the mutex is held.
func (c *conn) unlock(l *lease) {
	if !l.leaving {
		l.leaving, l.freeing = true, op{l: l}
		c.queue.unlocks = append(c.queue.unlocks, &l.freeing)
	}
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
		msg = appendQuery(msg, st.sql)
	}
	c.out = msg
	now := time.Now() // before the first byte: Expires counts from here
	c.used = now
	for _, st := range out {
		st.sent = now
		if st.class != 0 {
			c.told = st.class
		}
	}
	c.schedule(now)
	if err := c.w.write(now, msg); err != nil {
		c.fail(fmt.Errorf("write: %w", err))
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
	switch st.values = c.values; {
	case st.err != nil && !st.fails: // what it has done is unknown: the end of the session makes it certain
		c.fail(fmt.Errorf("%.40s: %w", st.sql, st.err), append(st.beats, st.ops...)...)
		return
	case st.err == nil && len(st.values) != st.rows:
		c.fail(fmt.Errorf("%.40s: %d rows, not %d", st.sql, len(st.values), st.rows), append(st.beats, st.ops...)...)
		return
	case st.class != 0:
		c.known = st.class
	}
	if st.do != nil {
		st.do(c, st)
	}
	for _, o := range st.beats {
		o.finish(nil)
	}
	c.flush()
}

// unanswered returns the requests that are not answered; the mutex is held.
func (c *conn) unanswered() []*op {
	ops := slices.Concat(c.queue.unlocks, c.queue.beats, c.queue.locks)
	for _, st := range c.round {
		ops = append(append(ops, st.ops...), st.beats...)
	}
	for _, o := range ops {
		ops = append(ops, o.also...)
	}
	return ops
}

// fail ends the connection: its leases are lost, and its requests fail, and so do more. The mutex is
// held.
func (c *conn) fail(err error, more ...*op) {
	if c.end != nil {
		return
	}
	c.end = err
	close(c.lost)
	c.timer.Stop()
	ops, lost := append(more, c.unanswered()...), c.leases
	c.queue, c.round, c.held, c.leases = queue{}, nil, nil, 0
	for _, o := range ops {
		o.finish(err)
	}
	if c.w != nil { // it has been opened
		c.b.calls.Go(func(context.Context) { c.hangUp(err, lost) })
	}
}

// hangUp closes the connection and reports it.
func (c *conn) hangUp(err error, lost int) {
	c.w.close()
	c.b.forget(c)
	if lost > 0 && !c.b.calls.Closed() {
		c.b.report(driver.Notice{Kind: driver.NoticeDisconnected, Err: err, Detail: fmt.Sprintf("a session ended, and %d leases with it", lost)})
	}
}

// lockFreed reports whether the locks of a connection that has ended are free for certain. It asks the
// server whether its process has ended, once for all the leases of the connection, and again for half a
// second if the process announced its end: it frees its locks a moment later.
func (c *conn) lockFreed(ctx context.Context, announced bool) bool {
	const most = time.Second / 2 // the caller's lease is over already
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for !c.freed.Load() {
		err := c.asking.Do(ctx, &c.b.calls, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, most)
			defer cancel()
			return c.b.inspect(ctx, func(ctx context.Context, other *pgx.Conn) error {
				row, err := query(ctx, other.PgConn(), fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", c.w.pid))
				c.freed.Store(err == nil && len(row) > 0 && value(row[0]) == 0)
				return err
			})
		})
		if !c.freed.Load() && (err != nil || !announced || !base.Pause(ctx, 50*time.Millisecond)) {
			return false
		}
	}
	return true
}

// idleRead is how long nobody reads on a connection that is not used. A round begun in that time is
// read by its sender.
const idleRead = 50 * time.Millisecond

// schedule sets the next tick, unless an earlier one is set; the mutex is held.
func (c *conn) schedule(now time.Time) {
	period := min(max(c.told/10, 10*time.Millisecond), 500*time.Millisecond)
	switch {
	case !c.reading || len(c.round) > 0:
		period = min(period, idleRead)
	case c.leases == 0 && c.told == idleClass:
		period = time.Second
	}
	if next := now.Add(period); !now.Before(c.due) || next.Before(c.due) {
		c.due = next
		c.timer.Reset(period)
	}
}

// tick does the periodic work: it wakes callers whose time is over, ends a connection whose server is
// silent, unlocks leases that are over, lengthens the timeout of a connection without leases, and lets
// a goroutine read on a connection that is not used.
func (c *conn) tick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	limit := writeTimeout
	if c.leases > 0 {
		limit = max(c.class, time.Second)
	}
	for _, o := range c.unanswered() {
		if !now.Before(o.by) {
			c.wake(o)
		}
	}
	switch {
	case c.end != nil:
		return
	case c.silence() > limit:
		c.fail(errSilent)
		return
	case !c.idle():
		c.sweep(now)
	case now.Sub(c.used) > idleKeep:
		c.fail(errEnded)
		return
	case c.told != idleClass && now.Sub(c.answered) > c.told/4:
		c.class = 0
		c.write(tell(idleClass))
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

// silence returns how long an answer is overdue; the mutex is held.
func (c *conn) silence() time.Duration {
	if len(c.round) == 0 {
		return 0
	}
	return time.Since(c.round[0].sent) - c.round[0].most
}

// suspectAfter is the silence of a server after which requests go to another connection: it may be
// dead. Its leases stay, and the server knows which locks are held.
const suspectAfter = 2 * time.Second

// idle reports whether the connection has no leases and no requests.
func (c *conn) idle() bool {
	return c.end == nil && c.w != nil && c.leases == 0 && c.queue.len() == 0 && len(c.round) == 0 && !c.waiting
}

func (q *queue) len() int { return len(q.unlocks) + len(q.beats) + len(q.locks) }

// sweep unlocks leases that were not renewed. The server does not unlock them while other
// leases keep the session alive.
func (c *conn) sweep(now time.Time) {
	for _, l := range c.held {
		for ; l != nil; l = l.next {
			if !l.leaving && now.After(l.start.Add(l.ttl+grace(l.ttl)/2)) {
				l.expired = true
				c.unlock(l)
			}
		}
	}
}
