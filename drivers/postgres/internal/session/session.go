package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/advisory"
	"github.com/redlock-go/redlock/drivers/postgres/internal/claims"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
	"github.com/redlock-go/redlock/drivers/postgres/internal/wire"
)

// A Session is a connection and the leases on it. Callers put their requests into a queue. A
// caller that finds the connection idle, or the reader after the last answer, sends the whole
// queue as one round: one statement for all locks, one for all unlocks. No caller's context
// reaches the connection. If a caller gives up before a grant arrives, the reader gives the
// lock back.
type Session struct {
	h         *Host
	w         *wire.Conn
	server    Server
	notBefore time.Time     // restart guard: no grant before this
	lost      chan struct{} // closed when the session ends
	closed    chan struct{} // closed when the connection is closed, a moment later
	lookup    endLookup

	mu           sync.Mutex
	end          error // why it ended; nil while it lives
	processEnded bool  // the server process has ended: its locks are free
	fatal        bool  // the server announced that the process ends
	suspect      bool  // the server was silent for too long: no new requests
	queue        []*op
	round        []*statement // sent and unanswered, in order
	out          []byte       // the last round's bytes, whose memory serves the next
	leases       map[*Lease]struct{}
	holds        map[advisory.Number]int // leases per advisory lock
	class        time.Duration           // the class that the leases need
	raise        time.Duration           // the longer class that a renewal asks for
	told         time.Duration           // the class that the server was told last
	known        time.Duration           // the class that the server has confirmed
	answered     time.Time               // the sending time of the last statement that was answered
	used         time.Time               // when a caller last made a request
	nextEnd      time.Time               // when the first lease may end
	beat         *op                     // a heartbeat in the queue
	beating      *op                     // a heartbeat in this round
	late         chan struct{}           // closed and replaced when an answer is late, so that callers check their limits
	waiting      bool                    // reserved for a wait
	shows        bool                    // holds the second lock of a waiting writer
	timer        *time.Timer
	due          time.Time // when the timer fires
}

// op is one request of a caller to a session.
type op struct {
	claim  *claims.Claim // nil: a heartbeat
	lease  *Lease        // lock: the granted lease; unlock: the lease to end
	leaves bool          // true: an unlock
	ttl    time.Duration
	gone   bool // the caller has given up
	sent   bool
	tries  int       // of an unlock, after the first
	asked  time.Time // of a wait: when it was sent
	token  int64     // of a wait: the token that it got
	err    error
	done   chan struct{} // closed when lease or err is set
	late   chan struct{} // session.late when it was queued
}

func newOp() *op { return &op{done: make(chan struct{})} }

func (o *op) finish(err error) {
	o.err = err
	close(o.done)
}

// A statement is one message of the simple protocol, and its answer.
type statement struct {
	sql    string
	class  time.Duration // the class that it sets; zero: none
	ops    []*op
	most   time.Duration // how long it may take on the server
	sent   time.Time
	values []int64 // a row each; -1: null
	err    *pgconn.PgError
	do     func(*Session, *statement) // handles the answer, under the mutex
}

// maxRound bounds the requests of one round, and so the size of a message and the
// time that the server spends on it.
const maxRound = 256

// ErrEnded says that a session takes no more requests.
var ErrEnded = errors.New("postgres: the session has ended")

// lock puts a request for a lock into the queue, and sends it if the connection is idle.
func (s *Session) lock(c *claims.Claim, ttl time.Duration) (o *op, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	switch {
	case s.h.closing():
		return nil, driver.ErrClosed
	case s.end != nil || s.waiting || s.suspect:
		return nil, ErrEnded
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

// Lock asks for a lock and waits for the answer. ErrEnded says that the session takes no
// requests; only then is the claim still in the table.
func (s *Session) Lock(ctx context.Context, c *claims.Claim, ttl time.Duration) (*Lease, error) {
	o, err := s.lock(c, ttl)
	if err != nil {
		if !errors.Is(err, ErrEnded) {
			s.h.Table.Drop(c)
		}
		return nil, err
	}
	if s.answer(ctx, o, attempt(ttl)) {
		return o.lease, o.err
	}
	s.abandon(o)
	return nil, verdict.Ended(ctx)
}

// answer waits until o is answered, and reports whether that was before ctx ended and within
// limit (plus at most one tick). It sets no timer: setting or stopping a timer may wake a
// thread, which costs a lone caller as much as the rest of the driver's work.
func (s *Session) answer(ctx context.Context, o *op, limit time.Duration) bool {
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
			if !over {
				continue
			}
			select {
			case <-o.done: // as late
				return true
			default:
				return false
			}
		}
	}
}

// put puts a request into the queue; the mutex is held.
func (s *Session) put(o *op) {
	o.late = s.late
	s.queue = append(s.queue, o)
}

func (s *Session) guarded(now time.Time) error {
	return &driver.RefusedError{RetryAfter: s.notBefore.Sub(now), Reason: "postgres: the server was started less than the restart guard ago, and may have forgotten locks"}
}

// abandon takes back a request whose caller has given up. A request that is still in the
// queue is dropped; if it was sent and is granted, the grant is given back.
func (s *Session) abandon(o *op) {
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
	s.h.Table.Drop(o.claim)
}

// unlock puts the unlock of l into the queue; the mutex is held.
func (s *Session) unlock(l *Lease) *op {
	if l.leaving == nil {
		l.leaving = newOp()
		l.leaving.lease, l.leaving.claim, l.leaving.leaves = l, l.claim, true
		if s.suspect { // another session may ask the server for the lock
			s.h.Table.Drop(l.claim)
		} else {
			s.h.Table.Leaving(l.claim)
		}
		s.put(l.leaving)
	}
	return l.leaving
}

// heartbeat returns a request that any answer of the server satisfies. All callers share it
// until it is sent. The mutex is held.
func (s *Session) heartbeat() *op {
	if s.beat == nil {
		s.beat = newOp()
		s.beat.late = s.late
	}
	s.used = time.Now()
	return s.beat
}

// flush sends the queue as a round, if no round is under way; the mutex is held. A round may need
// no statement: then the rest of the queue is the next one.
func (s *Session) flush() {
	for s.end == nil && len(s.round) == 0 && !s.waiting && (s.beat != nil || len(s.queue) > 0) {
		s.send(s.plan()...)
	}
}

// send writes statements; the mutex is held.
func (s *Session) send(out ...*statement) {
	if len(out) == 0 {
		return
	}
	s.round = append(s.round, out...)
	msg := s.out[:0]
	for _, st := range out {
		msg = wire.AppendQuery(msg, st.sql)
	}
	s.out = msg
	now := time.Now() // before the first byte: Expires counts from here
	for _, st := range out {
		st.sent = now
		if st.class != 0 {
			s.told = st.class
		}
	}
	if err := s.w.Write(now, msg); err != nil {
		s.fail(fmt.Errorf("postgres: write: %w", err), false)
	}
}

// front returns the statement that is being answered. Only the reader removes it, so its answer
// needs no mutex.
func (s *Session) front() *statement {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.round) == 0 {
		return nil
	}
	return s.round[0]
}

func (s *Session) row(v []byte) {
	if st := s.front(); st != nil {
		st.values = append(st.values, wire.Value(v))
	}
}

// ready takes the complete answer to the first statement of the round, and sends
// the next round after the last.
func (s *Session) ready() bool {
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
		case st.err.Code == verdict.CodeCanceled: // decide gives back a grant under the old class
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

// fail ends the session: its leases are lost, and its requests fail. The mutex is held.
func (s *Session) fail(err error, processEnded bool) {
	if s.end != nil {
		return
	}
	s.end, s.processEnded = err, s.processEnded || processEnded
	close(s.lost)
	s.timer.Stop()
	lost := len(s.leases)
	for l := range s.leases {
		s.h.Table.Drop(l.claim)
	}
	s.h.Locks.Add(-int64(len(s.holds)))
	ops := append(s.queue, s.beat, s.beating)
	for _, st := range s.round {
		ops = append(ops, st.ops...)
	}
	s.queue, s.round, s.leases, s.holds, s.beat, s.beating = nil, nil, nil, nil, nil, nil
	s.finish(ops, err)
	s.h.Running.Add(1)
	go s.hangUp(err, lost, s.fatal)
}

// failWith ends the session, and also fails ops, which are no longer in its round.
func (s *Session) failWith(ops []*op, err error) {
	s.fail(err, false)
	s.finish(ops, err)
}

func (s *Session) finish(ops []*op, err error) {
	for _, o := range ops {
		if o == nil {
			continue
		}
		if o.claim != nil {
			s.h.Table.Drop(o.claim)
		}
		o.finish(err)
	}
}

// hangUp closes the connection and reports it. A server process that ends announces it, frees
// its locks, and only then closes the connection. A process that waits for a lock notices the
// end of its client when its slice ends.
func (s *Session) hangUp(err error, lost int, fatal bool) {
	defer s.h.Running.Done()
	if fatal && !s.h.Pooled && s.w.Drain() {
		s.mu.Lock()
		s.processEnded = true
		s.mu.Unlock()
	}
	s.w.Close()
	close(s.closed)
	if lost > 0 && !s.h.closing() {
		s.h.Report(driver.Notice{Kind: driver.NoticeDisconnected, Err: err, Detail: fmt.Sprintf("a session ended, and %d leases with it", lost)})
	}
}

// A Server is the server of a session.
type Server struct {
	ID             string    // identifies the server process
	PerTransaction int       // max_locks_per_transaction
	NotBefore      time.Time // the restart guard: no grant before this; zero: none
}

// A Host is the part of the backend that its sessions need.
type Host struct {
	Context  context.Context // ends when the backend closes
	Running  *sync.WaitGroup // counts the goroutines of sessions
	Info     *driver.Info
	SQL      advisory.Queries
	Fencing  bool  // leases have tokens
	NoToken  error // refuses a request whose token is over the largest token
	Pooled   bool  // there is a pooler of sessions before the server
	Table    *claims.Table
	Hot      *claims.Hot
	Locks    *atomic.Int64             // how many locks the sessions hold on the server
	SawToken func(token uint64)        // is called with every token
	Report   func(driver.Notice)       // is called with notices
	Ended    func(*Session)            // is called when a session has ended
	Gone     func(process uint32) bool // reports whether a server process has certainly ended
}

func (h *Host) closing() bool { return h.Context.Err() != nil }

// New starts a session on a connection after its setup.
func New(h *Host, w *wire.Conn, srv Server) *Session {
	s := &Session{
		h: h, w: w, server: srv, notBefore: srv.NotBefore, lost: make(chan struct{}), closed: make(chan struct{}),
		leases: map[*Lease]struct{}{}, holds: map[advisory.Number]int{}, late: make(chan struct{}),
		told: idleClass, known: idleClass, used: time.Now(),
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.timer = time.AfterFunc(time.Hour, s.tick)
	s.schedule(time.Now())
	h.Running.Add(1)
	go s.run()
	return s
}

// period is the time between two ticks.
func (s *Session) period() time.Duration {
	if len(s.leases) == 0 && s.told == idleClass {
		return time.Second
	}
	return min(max(s.told/10, 10*time.Millisecond), 500*time.Millisecond)
}

// schedule sets the next tick, unless an earlier one is set; the mutex is held.
func (s *Session) schedule(now time.Time) {
	next := now.Add(s.period())
	if now.Before(s.due) && s.due.Before(next) {
		return
	}
	s.due = next
	s.timer.Reset(next.Sub(now))
}

// tick does the periodic work: it unlocks leases that are over, ends a session whose server is
// silent, and lengthens the timeout of a session without leases.
func (s *Session) tick() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil {
		return
	}
	now := time.Now()
	if silence := s.silence(now); silence > time.Second {
		if silence > suspectAfter && !s.suspect {
			s.distrust()
		}
		close(s.late)
		s.late = make(chan struct{})
		limit := wire.WriteTimeout
		if len(s.leases) > 0 {
			limit = max(s.class, time.Second)
		}
		if silence > limit {
			s.fail(fmt.Errorf("postgres: %w", verdict.ErrSilent), false)
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

// silence returns how long an answer is overdue.
func (s *Session) silence(now time.Time) time.Duration {
	if len(s.round) == 0 {
		return 0
	}
	return now.Sub(s.round[0].sent) - s.round[0].most
}

// suspectAfter is how long a session may be silent before requests for its keys go to another
// session.
const suspectAfter = 2 * time.Second

// distrust takes a silent session out of use for new requests, because its connection may be dead.
// Its leases stay. Another session may then ask the server for the same locks; the server knows
// which are held.
func (s *Session) distrust() {
	s.suspect = true
	for _, st := range s.round {
		for _, o := range st.ops {
			if o.lease == nil || o.leaves {
				s.h.Table.Drop(o.claim)
			}
		}
	}
	for _, o := range s.queue {
		s.h.Table.Drop(o.claim)
	}
}

// sweep unlocks leases that were not renewed. The server does not unlock them while other
// leases keep the session alive.
func (s *Session) sweep(now time.Time) {
	if now.Before(s.nextEnd) || len(s.leases) == 0 {
		return
	}
	s.nextEnd = now.Add(MaxTTL)
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

// idle reports whether the session has no leases and no requests.
func (s *Session) idle() bool {
	return len(s.leases) == 0 && len(s.queue) == 0 && len(s.round) == 0 && s.beat == nil && !s.waiting
}

// rest sets the long timeout of a session that holds nothing, and ends the session after a
// while.
func (s *Session) rest(now time.Time) {
	switch {
	case now.Sub(s.used) > idleKeep, s.suspect:
		s.fail(ErrEnded, true)
	case s.told != idleClass && now.Sub(s.answered) > s.told/4:
		s.class = 0
		s.send(tell(idleClass))
	}
}

// Close ends the session because the backend closes.
func (s *Session) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(driver.ErrClosed, false)
}
