package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// A session is a connection and the leases that live on it. Callers put their requests
// into a queue. A caller that finds the connection idle, or the reader after the last
// answer, sends the whole queue as one round: one statement for all locks, one for all
// unlocks. No caller's context reaches the connection: a caller that gives up leaves a
// grant behind, and the reader gives it back.
type session struct {
	b         *Backend
	w         *wire
	server    server
	notBefore time.Time     // restart guard: no grant before this
	lost      chan struct{} // closed when the session ends
	closed    chan struct{} // closed a moment later, with the connection
	lookup    endLookup

	mu           sync.Mutex
	end          error // why it ended; nil while it lives
	processEnded bool  // the server process has ended: its locks are free
	fatal        bool  // the server said that it would
	suspect      bool  // it was silent for too long, and takes no request any more
	queue        []*op
	round        []*statement // sent and unanswered, in order
	out          []byte       // the last round's bytes, whose memory serves the next
	leases       map[*lease]struct{}
	holds        map[lockNumber]int // leases per advisory lock
	class        time.Duration      // the TTL that the leases need
	raise        time.Duration      // the TTL that a renewal asks for
	told         time.Duration      // the TTL that the server was told last
	known        time.Duration      // the TTL that it has confirmed
	answered     time.Time          // the sending time of the last statement that was answered
	used         time.Time          // when a caller last wanted something
	nextEnd      time.Time          // when the first lease may be over
	beat         *op                // a heartbeat in the queue
	beating      *op                // a heartbeat in this round
	late         chan struct{}      // closed, and made anew, when an answer is late: limits may be over
	waiting      bool               // reserved for a wait
	shows        bool               // has the pair of a waiting writer
	timer        *time.Timer
	due          time.Time // when the timer fires
}

// op is one request of a caller to a session.
type op struct {
	claim  *claim // nil: a heartbeat
	lease  *lease // lock: what was granted; unlock: what to give up
	leaves bool   // it is an unlock
	ttl    time.Duration
	gone   bool // the caller has given up
	sent   bool
	tries  int       // of an unlock, after the first
	asked  time.Time // a wait: when it was sent, and
	token  int64     // what it gave
	err    error
	done   chan struct{} // closed when lease or err is set
	late   chan struct{} // the session's when it was queued
}

func newOp() *op { return &op{done: make(chan struct{})} }

func (o *op) finish(err error) {
	o.err = err
	close(o.done)
}

// A statement is one message of the simple protocol, and its answer.
type statement struct {
	sql    string
	class  time.Duration // what it tells the server, if it does
	ops    []*op
	most   time.Duration // how long it may take beside its round trip
	sent   time.Time
	values []int64 // a row each; -1: null
	err    *pgconn.PgError
	do     func(*session, *statement) // takes the answer, under the mutex
}

// maxRound bounds the requests of one round, and so the size of a message and the
// time that the server spends on it.
const maxRound = 256

// errEnded says that a session took no request any more.
var errEnded = errors.New("postgres: the session has ended")

// lock leaves a request in the queue.
func (s *session) lock(c *claim, ttl time.Duration) (o *op, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case s.b.closing():
		return nil, driver.ErrClosed
	case s.end != nil || s.waiting || s.suspect:
		return nil, errEnded
	case now.Before(s.notBefore):
		return nil, s.guarded(now)
	}
	o = newOp()
	o.claim, o.ttl = c, ttl
	s.put(o)
	s.used = now
	s.flush()
	return o, nil
}

// answer waits until o is answered, and reports whether it was before ctx ended and
// within limit, or a tick after that. It sets no timer: setting or stopping one may
// wake a thread, which costs a lone caller as much as the rest of our work.
func (s *session) answer(ctx context.Context, o *op, limit time.Duration) bool {
	end, late := time.Now().Add(limit), o.late
	for {
		select {
		case <-o.done:
			return true
		case <-ctx.Done():
			return false
		case <-late:
			s.mu.Lock()
			late = s.late
			over := s.suspect || !time.Now().Before(end)
			s.mu.Unlock()
			if over {
				return false
			}
		}
	}
}

// put leaves a request in the queue; the mutex is held.
func (s *session) put(o *op) {
	o.late = s.late
	s.queue = append(s.queue, o)
}

func (s *session) guarded(now time.Time) error {
	return &driver.RefusedError{RetryAfter: s.notBefore.Sub(now), Reason: "postgres: the server was started less than the restart guard ago, and may have forgotten locks"}
}

// abandon takes back a request whose caller has given up. A request that is still in the
// queue is dropped; if it was sent and is granted, the grant is given back.
func (s *session) abandon(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-o.done:
		if o.err == nil {
			s.unlock(o.lease)
			s.flush()
		}
		return
	default:
	}
	if o.sent {
		o.gone = true
		return
	}
	for i, x := range s.queue {
		if x == o {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			break
		}
	}
	s.b.table.drop(o.claim)
}

// unlock leaves the end of l in the queue; the mutex is held.
func (s *session) unlock(l *lease) *op {
	if l.leaving == nil {
		l.leaving = newOp()
		l.leaving.lease, l.leaving.claim, l.leaving.leaves = l, l.claim, true
		if s.suspect { // another session may ask the server
			s.b.table.drop(l.claim)
		} else {
			s.b.table.leave(l.claim)
		}
		s.put(l.leaving)
	}
	return l.leaving
}

// heartbeat returns a request for any answer at all, shared by all callers until it
// is sent; the mutex is held.
func (s *session) heartbeat() *op {
	if s.beat == nil {
		s.beat = newOp()
		s.beat.late = s.late
	}
	s.used = time.Now()
	return s.beat
}

// flush sends a round, if none is under way; the mutex is held.
func (s *session) flush() {
	if s.end == nil && len(s.round) == 0 && !s.waiting {
		s.send(s.plan()...)
	}
}

// send writes statements; the mutex is held.
func (s *session) send(out ...*statement) {
	if len(out) == 0 {
		return
	}
	s.round = append(s.round, out...)
	msg := s.out[:0]
	for _, st := range out {
		msg = appendQuery(msg, st.sql)
	}
	s.out = msg
	now := time.Now() // before the first byte: Expires counts from here
	for _, st := range out {
		st.sent = now
		if st.class != 0 {
			s.told = st.class
		}
	}
	if err := s.w.write(now, msg); err != nil {
		s.fail(fmt.Errorf("postgres: write: %w", err), false)
	}
}

// front is the statement that is being answered. Only the reader takes it away, so
// that its answer needs no mutex.
func (s *session) front() *statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.round) == 0 {
		return nil
	}
	return s.round[0]
}

func (s *session) row(v []byte) {
	if st := s.front(); st != nil {
		st.values = append(st.values, number(v))
	}
}

// number reads a value in text: a number, a boolean or nothing.
func number(v []byte) int64 {
	switch {
	case v == nil:
		return -1
	case len(v) == 0 || v[0] == 'f':
		return 0
	case v[0] == 't':
		return 1
	}
	n, err := strconv.ParseInt(string(v), 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// ready takes the complete answer to the first statement of the round, and sends
// the next round after the last.
func (s *session) ready() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return false
	}
	if len(s.round) == 0 {
		return true
	}
	st := s.round[0]
	s.round = slices.Delete(s.round, 0, 1)
	s.answered = st.sent
	if st.class != 0 {
		switch {
		case st.err == nil:
			s.known = st.class
		case st.err.Code == codeCanceled: // what is granted under the old one is given back
			s.told = s.known
		default:
			s.failWith(st.ops, fmt.Errorf("postgres: idle_session_timeout was not set: %w", st.err))
			return false
		}
	}
	if st.do != nil {
		st.do(s, st)
	}
	if len(s.round) == 0 && s.end == nil {
		if s.beating != nil {
			s.beating.finish(nil)
			s.beating = nil
		}
		s.flush()
	}
	return s.end == nil
}

// fail ends the session: its leases are lost, and its requests get no answer. The mutex is
// held.
func (s *session) fail(err error, processEnded bool) {
	if s.end != nil {
		return
	}
	s.end, s.processEnded = err, s.processEnded || processEnded
	close(s.lost)
	s.timer.Stop()
	lost := len(s.leases)
	for l := range s.leases {
		s.b.table.drop(l.claim)
	}
	s.b.locks.Add(-int64(len(s.holds)))
	ops := append(s.queue, s.beat, s.beating)
	for _, st := range s.round {
		ops = append(ops, st.ops...)
	}
	s.queue, s.round, s.leases, s.holds, s.beat, s.beating = nil, nil, nil, nil, nil, nil
	s.finish(ops, err)
	s.b.wg.Add(1)
	go s.hangUp(err, lost, s.fatal)
}

// failWith ends the session, and requests that are in its round no more.
func (s *session) failWith(ops []*op, err error) {
	s.fail(err, false)
	s.finish(ops, err)
}

func (s *session) finish(ops []*op, err error) {
	for _, o := range ops {
		if o == nil {
			continue
		}
		if o.claim != nil {
			s.b.table.drop(o.claim)
		}
		o.finish(err)
	}
}

// hangUp closes the connection, and says so. A server process that ends says so, frees its
// locks, and only then closes the connection. One that waits for a lock notices at the end of
// its slice.
func (s *session) hangUp(err error, lost int, fatal bool) {
	defer s.b.wg.Done()
	if fatal && s.b.opt.Pooler == "" && s.w.drain() {
		s.mu.Lock()
		s.processEnded = true
		s.mu.Unlock()
	}
	s.w.close()
	close(s.closed)
	if lost > 0 && !s.b.closing() {
		s.b.report(driver.Notice{Kind: driver.NoticeDisconnected, Err: err, Detail: fmt.Sprintf("a session ended, and %d leases with it", lost)})
	}
}

// newSession starts the session of a connection that was set up.
func (b *Backend) newSession(w *wire, srv server) *session {
	s := &session{
		b: b, w: w, server: srv, lost: make(chan struct{}), closed: make(chan struct{}),
		leases: map[*lease]struct{}{}, holds: map[lockNumber]int{}, late: make(chan struct{}),
		told: idleClass, known: idleClass, used: time.Now(),
	}
	if b.opt.RestartGuard > 0 {
		s.notBefore = srv.asked.Add(b.opt.RestartGuard - srv.uptime)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(time.Hour, s.tick)
	s.schedule(time.Now())
	b.wg.Add(1)
	go s.run()
	return s
}

// period is the time between two ticks.
func (s *session) period() time.Duration {
	if len(s.leases) == 0 && s.told == idleClass {
		return time.Second
	}
	return min(max(s.told/10, 10*time.Millisecond), 500*time.Millisecond)
}

// schedule sets the next tick, unless an earlier one is set; the mutex is held.
func (s *session) schedule(now time.Time) {
	next := now.Add(s.period())
	if now.Before(s.due) && s.due.Before(next) {
		return
	}
	s.due = next
	s.timer.Reset(next.Sub(now))
}

// tick does the periodic work: it unlocks leases that are over, ends a session
// whose server is silent, and lets one rest that has no leases.
func (s *session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return
	}
	now := time.Now()
	if silence := s.silence(now); silence > time.Second {
		if silence > suspectAfter && !s.suspect {
			s.doubt()
		}
		close(s.late)
		s.late = make(chan struct{})
		limit := writeTimeout
		if len(s.leases) > 0 {
			limit = max(s.class, time.Second)
		}
		if silence > limit {
			s.fail(fmt.Errorf("postgres: %w", errSilent), false)
			return
		}
	}
	s.sweep(now)
	if s.idle() {
		s.rest(now)
	}
	s.flush()
	if s.end == nil {
		s.schedule(now)
	}
}

// silence is for how long an answer is overdue.
func (s *session) silence(now time.Time) time.Duration {
	if len(s.round) == 0 {
		return 0
	}
	return now.Sub(s.round[0].sent) - s.round[0].most
}

// suspectAfter is how long a session may be silent before its keys are asked for on
// another.
const suspectAfter = 2 * time.Second

// doubt takes a silent session out of use for new requests, while its leases last: the
// connection may be dead. Another session may then ask the server for the same locks; the
// server knows which are held.
func (s *session) doubt() {
	s.suspect = true
	for _, st := range s.round {
		for _, o := range st.ops {
			if o.lease == nil || o.leaves {
				s.b.table.drop(o.claim)
			}
		}
	}
	for _, o := range s.queue {
		s.b.table.drop(o.claim)
	}
}

// sweep unlocks leases that nobody renewed. Other leases keep the session alive,
// so that the server does not.
func (s *session) sweep(now time.Time) {
	if now.Before(s.nextEnd) || len(s.leases) == 0 {
		return
	}
	s.nextEnd = now.Add(maxTTL)
	for l := range s.leases {
		if l.leaving != nil {
			continue
		}
		end := l.end()
		if !now.Before(end) {
			l.expired = true
			s.unlock(l)
			continue
		}
		if end.Before(s.nextEnd) {
			s.nextEnd = end
		}
	}
}

// idle reports whether nothing lives on the session and nothing is asked of it.
func (s *session) idle() bool {
	return len(s.leases) == 0 && len(s.queue) == 0 && len(s.round) == 0 && s.beat == nil && !s.waiting
}

// rest tells the server to be patient with a session that holds nothing, and ends it
// after a while.
func (s *session) rest(now time.Time) {
	switch {
	case now.Sub(s.used) > idleKeep, s.suspect:
		s.fail(errEnded, true)
	case s.told != idleClass && now.Sub(s.answered) > s.told/4:
		s.class = 0
		s.send(tell(idleClass))
	}
}
