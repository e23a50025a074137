package postgres

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A wait is a row of slices on a connection of its own: statements that wait in the server's
// queue for less than a second each. A statement has a snapshot, for which CREATE INDEX
// CONCURRENTLY waits, and VACUUM keeps dead rows; the lease that such a statement runs under
// would never end if waiters did not let go.
//
// A slice waits for a transaction's lock, in a subtransaction that a timeout undoes, and
// only then tries the session's. So no grant is lost: a timeout that comes together with the
// grant undoes both.
//
// Inside a slice the server's queue holds back readers of other sessions. Between two slices,
// and for readers of a session that has a share already, it does not. So a writer takes a second
// lock, a pair of numbers made of the lock's number, and keeps it from slice to slice; readers
// pass the pair before they ask for the lock.

// A slice stays below the server's deadlock_timeout, 1 s by default, after which every wait is
// examined and may be logged. It is as long as that permits, because the order is that of the
// server's queue within a slice, and only about so from one to the next. It is short where
// more keys are waited for than there are connections.
const (
	longSlice  = 850 * time.Millisecond
	shortSlice = 200 * time.Millisecond
)

// slice is the statement.
func (q queries) slice(n lockNumber, mode driver.Mode, show bool) string {
	wait := func(call string) string {
		return "BEGIN PERFORM " + call + "; EXCEPTION WHEN lock_not_available THEN END;"
	}
	if mode == driver.Exclusive {
		first := ""
		if show {
			first = "SELECT pg_try_advisory_lock(" + pairArgs(n.writers()) + "); "
		}
		return first + "DO $$" + wait("pg_advisory_xact_lock("+n.args()+")") + "$$; " + q.try(n, mode)
	}
	// The writers' pair is given back by the end of a subtransaction, before the wait.
	return "DO $$DECLARE passed bool := false; BEGIN " +
		wait("pg_advisory_xact_lock_shared("+pairArgs(n.writers())+"); passed := true; RAISE lock_not_available") +
		" IF passed THEN " + wait("pg_advisory_xact_lock_shared("+n.args()+")") + " END IF; END$$; " + q.try(n, mode)
}

// wait waits in the server's queue: once for a key, in the order in which its callers
// came to this process.
func (b *Backend) wait(ctx context.Context, c *claim, ttl time.Duration, seen *driver.HeldError) (*lease, error) {
	place := b.table.enter(c)
	defer b.table.quit(c.number, place)
	c.waiting = true
	select {
	case <-place.first:
	case <-ctx.Done():
		return nil, b.waited(ctx, c, seen)
	case <-b.ctx.Done():
		return nil, driver.ErrClosed
	}
	l, err := b.waitFirst(ctx, c, ttl)
	if err != nil && ctx.Err() != nil {
		return nil, b.waited(ctx, c, seen)
	}
	return l, err
}

// waitFirst waits on a connection as long as there is one, and polls meanwhile.
func (b *Backend) waitFirst(ctx context.Context, c *claim, ttl time.Duration) (*lease, error) {
	r := b.want()
	defer func() { b.unwant(r) }()
	for warned := false; ; {
		timer := time.NewTimer(untilPoll())
		select {
		case s := <-r.ready:
			timer.Stop()
			l, err := s.waitFor(ctx, c, ttl)
			if l != nil || err != nil {
				return l, err
			}
			r = b.want() // at the end of the callers that want one
			continue
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, fmt.Errorf("postgres: %w", ctx.Err())
		case <-b.ctx.Done():
			timer.Stop()
			return nil, driver.ErrClosed
		}
		if full := b.offer(); full && !warned {
			warned = true
			b.report(driver.Notice{Kind: driver.NoticeDegraded, Key: c.key, Detail: fmt.Sprintf("more keys are waited for than there are connections for waiting (max_waiters=%d): polling by turns", b.opt.MaxWaiters)})
		}
		if l, err := b.try(ctx, c, ttl); !errors.Is(err, driver.ErrHeld) {
			return l, err
		}
	}
}

// pollEvery is how often callers without a connection for waiting poll: all of a process
// together, so that it is one statement.
const pollEvery = 25 * time.Millisecond

func untilPoll() time.Duration { return pollEvery - time.Duration(time.Now().UnixNano())%pollEvery }

// waited is the error of a wait that ended with its context, for a holder that was
// seen. A caller that waited at once asks now.
func (b *Backend) waited(ctx context.Context, c *claim, seen *driver.HeldError) error {
	if seen == nil && !b.closing() {
		seen = b.holder(ctx, c)
	}
	if seen == nil {
		return fmt.Errorf("postgres: %w", ctx.Err())
	}
	return fmt.Errorf("postgres: %w: %w", ctx.Err(), seen)
}

// holder tries once more, for its verdict alone, and briefly, since the caller is
// about to go.
func (b *Backend) holder(ctx context.Context, c *claim) *driver.HeldError {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 50*time.Millisecond)
	defer cancel()
	l, err := b.try(ctx, c, minTTL)
	var seen *driver.HeldError
	if err == nil {
		l.s.mu.Lock()
		l.s.unlock(l)
		l.s.flush()
		l.s.mu.Unlock()
	}
	errors.As(err, &seen)
	return seen
}

// hot remembers the keys that had to be waited for a moment ago: the next caller that may wait
// for one does so at once, without an attempt.
type hot struct {
	mu   sync.Mutex
	keys map[lockNumber]time.Time
}

const (
	hotFor  = time.Second
	hotKeys = 1024
)

func (h *hot) note(n lockNumber, waited bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !waited {
		delete(h.keys, n)
		return
	}
	if len(h.keys) >= hotKeys {
		clear(h.keys)
	}
	h.keys[n] = time.Now()
}

func (h *hot) is(n lockNumber) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	at, ok := h.keys[n]
	return ok && time.Since(at) < hotFor
}

// waitFor waits on a reserved connection, until the lock is granted, ctx ends or, between
// two slices, somebody else wants the connection: then it returns nil and nil.
func (s *session) waitFor(ctx context.Context, c *claim, ttl time.Duration) (*lease, error) {
	for {
		slice := longSlice
		if s.b.wanted() {
			slice = shortSlice
		}
		o := s.startSlice(c, ttl, slice+rand.N(slice/10))
		if !s.answer(ctx, o, time.Minute) {
			s.quitSlice(o)
			return nil, ended(ctx)
		}
		if o.err != nil || o.lease != nil {
			if o.err == nil {
				s.b.settle(s)
			} else {
				s.free()
			}
			return o.lease, o.err
		}
		if s.b.wanted() {
			s.free()
			return nil, nil
		}
	}
}

// quitSlice leaves a slice whose caller has gone to its end: it costs no connection.
func (s *session) quitSlice(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-o.done:
	default:
		o.gone = true
		return
	}
	if s.end != nil {
		return
	}
	if o.lease != nil {
		s.unlock(o.lease)
	}
	s.leave(false)
	s.flush()
}

// startSlice sends a slice.
func (s *session) startSlice(c *claim, ttl, slice time.Duration) *op {
	o := newOp()
	o.claim, o.ttl, o.sent = c, ttl, true
	s.mu.Lock()
	defer s.mu.Unlock()
	o.late = s.late
	if s.end != nil {
		o.finish(s.end)
		return o
	}
	var out []*statement
	// If nobody confirms the grant in time the server takes it back. It is told so in a
	// message of its own: what one statement sets is undone if the statement is cancelled,
	// and a lock that was granted at that moment stays.
	if s.told != unconfirmed {
		out = append(out, tell(unconfirmed))
	}
	s.send(append(out,
		&statement{sql: fmt.Sprintf("SET lock_timeout = %d", slice.Milliseconds())},
		&statement{
			sql: s.b.sql.slice(c.number, c.mode, !s.shows), ops: []*op{o}, do: (*session).sliceEnded,
			most: 2 * slice, // a reader waits for the writer and for the lock
		})...)
	return o
}

// sliceEnded takes the answer to a slice: a token, or null. When the lock was granted nobody
// knows: the lease counts from the round trip that confirms it, which is as cheap as can
// be, since everybody else waits for it too.
func (s *session) sliceEnded(st *statement) {
	o := st.ops[0]
	if o.claim.mode == driver.Exclusive && len(st.values) == 2 {
		s.shows = st.values[0] == 1
		st.values = st.values[1:]
	}
	switch {
	case st.err != nil: // it may have got the lock nevertheless; it has no other locks
		s.shows = true // perhaps
		if o.gone {
			s.leave(true)
		}
		o.finish(verdict(st.err.Code, st.err, s.server.perTransaction))
	case len(st.values) != 1:
		s.failWith(st.ops, errors.New("postgres: a wait ended without a value"))
	case o.gone:
		s.leave(st.values[0] > 0)
		o.finish(errTimeout)
	case st.values[0] <= 0:
		o.finish(nil)
	default:
		o.asked, o.token = st.sent, st.values[0]
		confirm := tell(classOf(o.ttl))
		confirm.ops, confirm.do = st.ops, (*session).confirmed
		s.send(confirm)
		if s.shows {
			s.shows = false
			s.cleanUp("SELECT pg_advisory_unlock("+pairArgs(o.claim.number.writers())+")", nil, retries, func() {})
		}
	}
}

// confirmed takes the answer to the round trip that confirms a grant.
func (s *session) confirmed(st *statement) {
	o := st.ops[0]
	if st.err != nil {
		s.leave(true)
		o.finish(errTimeout)
		return
	}
	s.class = st.class
	now := time.Now()
	s.b.hot.note(o.claim.number, st.sent.Sub(o.asked) > 2*now.Sub(st.sent))
	s.decide(o, o.token, st.sent)
	if o.gone {
		s.waiting = false
	}
}

// leave gives a connection back that holds no lease after a wait; the mutex is held.
func (s *session) leave(locked bool) {
	s.waiting = false
	if locked || s.shows {
		s.shows = false
		s.cleanUp("SELECT pg_advisory_unlock_all()", nil, retries, func() {})
	}
}

// free gives a reserved connection back.
func (s *session) free() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end == nil {
		s.leave(false)
		s.flush()
	}
}

// A connRequest is one caller's wish for a connection for waiting.
type connRequest struct {
	ready chan *session // gets the connection; its capacity is one
}

// want asks for a connection.
func (b *Backend) want() *connRequest {
	r := &connRequest{ready: make(chan *session, 1)}
	b.mu.Lock()
	b.wanting = append(b.wanting, r)
	b.mu.Unlock()
	b.offer()
	return r
}

// unwant takes a request back.
func (b *Backend) unwant(r *connRequest) {
	b.mu.Lock()
	if i := slices.Index(b.wanting, r); i >= 0 {
		b.wanting = slices.Delete(b.wanting, i, i+1)
	}
	b.mu.Unlock()
	select {
	case s := <-r.ready:
		s.free()
	default:
	}
}

// wanted reports whether somebody wants a connection for waiting.
func (b *Backend) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.wanting) > 0
}

// offer gives connections to the callers that want one, in order, and opens more for the others.
// It reports whether there may be no more.
func (b *Backend) offer() (full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for len(b.wanting) > 0 {
		s := b.idleWaiter()
		if s == nil {
			break
		}
		b.wanting[0].ready <- s
		b.wanting = b.wanting[1:]
	}
	for n := len(b.wanting) - b.coming; n > 0 && !b.closing(); n-- {
		if len(b.waiters)+b.coming >= b.opt.MaxWaiters {
			return true
		}
		if time.Now().Before(b.noWaiter) {
			break
		}
		b.coming++
		b.open(&b.waiters, func(err error) {
			b.coming--
			if err != nil { // the server has no room, for example: callers that wait poll meanwhile
				b.noWaiter = time.Now().Add(noWaiterFor)
			}
		})
	}
	return false
}

// noWaiterFor is how long no connection for waiting is opened after one failed.
const noWaiterFor = 5 * time.Second

// idleWaiter reserves a connection that holds nothing; b.mu is held.
func (b *Backend) idleWaiter() *session {
	for _, s := range b.waiters {
		if s.reserve() {
			return s
		}
	}
	if len(b.sessions) < 2 || len(b.waiters)+b.coming >= b.opt.MaxWaiters {
		return nil
	}
	for _, s := range b.sessions { // one that was a waiter before, most likely
		if s.reserve() {
			b.sessions = without(b.sessions, s)
			b.waiters = append(b.waiters, s)
			return s
		}
	}
	return nil
}

// reserve takes a session that holds nothing for a wait.
func (s *session) reserve() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil || s.suspect || !s.idle() || time.Now().Before(s.notBefore) {
		return false
	}
	s.waiting, s.used = true, time.Now()
	return true
}

// settle gives a waiter back that has got its lock, and lets it join the sessions, if they have
// room.
func (b *Backend) settle(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s.free()
	if len(b.sessions)+len(b.opening) >= b.opt.MaxSessions {
		return
	}
	if n := len(b.waiters); n > 0 {
		if b.waiters = without(b.waiters, s); len(b.waiters) < n {
			b.sessions = append(b.sessions, s)
		}
	}
}
