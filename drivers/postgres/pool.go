package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
)

// The backend's connections are of two kinds: sessions, at most MaxSessions, which
// serve everybody's requests, and waiters, at most MaxWaiters, each of which waits for one
// lock and then carries it until it is released, unless the sessions have room for
// it. What has no leases is used again, and closed after a minute.

// An opening is a connection that is being made, for all callers that need one.
type opening struct {
	done chan struct{}
	s    *session
	err  error
}

// slow is when a session is so slow that new requests are better off elsewhere.
const slow = 250 * time.Millisecond

// What it costs a request to go to a session, in steps that outweigh each other: to one of a
// longer class, whose server process would free the lock later; to one that must be told a longer
// class; to one that is slow. Below them counts the queue.
const (
	costLonger = 1 << (40 + 2*iota)
	costRaise
	costSlow
	costNone = costLonger // below this the session has the class, or nothing
)

// cost says how well a session serves a request of a class; false: it does not.
func (s *session) cost(class time.Duration) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil || s.waiting || s.suspect {
		return 0, false
	}
	cost := int64(min(len(s.queue), 1<<16-1))
	switch {
	case s.class == class, s.idle():
	case s.class > class:
		cost += costLonger + s.class.Milliseconds()<<16
	default:
		cost += costRaise
	}
	if len(s.round) > 0 && time.Since(s.round[0].sent) > slow {
		cost += costSlow
	}
	return cost, true
}

// session returns the session that serves a request of this class best, and opens one
// if none fits and there may be one more. It waits for connectTimeout at the most, also for
// sessions that have ended and are not forgotten yet.
func (b *Backend) session(ctx context.Context, class time.Duration) (*session, error) {
	for end := time.Now().Add(connectTimeout); ; {
		s, err := b.sessionNow(ctx, class)
		if !errors.Is(err, errFull) {
			return s, err
		}
		if time.Now().After(end) {
			return nil, errTimeout
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, ended(ctx)
		}
	}
}

// errFull says that there may be no more sessions, and that none of them serves.
var errFull = errors.New("no session serves")

// sessionNow is session, but returns errFull at once.
func (b *Backend) sessionNow(ctx context.Context, class time.Duration) (*session, error) {
	b.mu.Lock()
	if b.closing() {
		b.mu.Unlock()
		return nil, driver.ErrClosed
	}
	best, cost := b.best(class)
	full := len(b.sessions)-b.suspects()+len(b.opening) >= b.opt.MaxSessions
	if best != nil && (cost < costNone || full) {
		b.mu.Unlock()
		return best, nil
	}
	o := b.opening[class]
	if o == nil && full && len(b.opening) > 0 {
		for _, o = range b.opening { // all that there may be are being opened: take any
			break
		}
	}
	if o == nil && full { // this lasts a moment: a session has ended, or a waiter has joined the sessions
		b.mu.Unlock()
		return nil, errFull
	}
	if o == nil {
		o = b.open(&b.sessions, func(error) { delete(b.opening, class) })
		b.opening[class] = o
	}
	b.mu.Unlock()
	select {
	case <-o.done:
	case <-ctx.Done():
		return nil, fmt.Errorf("postgres: %w", ctx.Err())
	}
	if o.err != nil && best != nil && !errors.Is(o.err, driver.ErrClosed) {
		return best, nil
	}
	return o.s, o.err
}

// suspects counts the sessions that are silent, up to MaxSessions: so many more may be opened
// in their place. b.mu is held.
func (b *Backend) suspects() (n int) {
	for _, s := range b.sessions {
		s.mu.Lock()
		if s.suspect {
			n++
		}
		s.mu.Unlock()
	}
	return min(n, b.opt.MaxSessions)
}

// best returns the session of the least cost; b.mu is held.
func (b *Backend) best(class time.Duration) (best *session, least int64) {
	for _, s := range b.sessions {
		if cost, ok := s.cost(class); ok && (best == nil || cost < least) {
			best, least = s, cost
		}
	}
	return best, least
}

// open opens a connection in the background, because its caller may give up before it is
// there, and adds it to list. b.mu is held, also when arrived is called.
func (b *Backend) open(list *[]*session, arrived func(error)) *opening {
	o := &opening{done: make(chan struct{})}
	b.wg.Add(1)
	go func() {
		defer b.wg.Done()
		ctx, cancel := context.WithTimeout(b.ctx, connectTimeout)
		defer cancel()
		o.s, o.err = b.connect(ctx)
		defer b.offer()
		b.mu.Lock()
		defer b.mu.Unlock()
		arrived(o.err)
		switch {
		case o.err != nil && b.closing():
			o.err = driver.ErrClosed
		case o.err == nil && b.closing():
			o.s.close()
			o.s, o.err = nil, driver.ErrClosed
		case o.err == nil:
			*list = append(*list, o.s)
		}
		close(o.done)
	}()
	return o
}

// connectTimeout bounds a connection's making, with all that is asked at its start.
const connectTimeout = 10 * time.Second

func (b *Backend) connect(ctx context.Context) (*session, error) {
	c, err := b.factory(ctx)
	if err != nil {
		return nil, connectError(err)
	}
	w, srv, err := b.setUp(ctx, c)
	if err != nil {
		closeConn(c)
		return nil, err
	}
	return b.newSession(w, srv), nil
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

// forget takes a session that has ended out of the books.
func (b *Backend) forget(s *session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions = without(b.sessions, s)
	b.waiters = without(b.waiters, s)
}

func without(list []*session, s *session) []*session {
	for i, x := range list {
		if x == s {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}

// close ends a session with the backend.
func (s *session) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail(driver.ErrClosed, false)
}
