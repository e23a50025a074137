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

// An opening is a connection that is being made, for everybody who needs it.
type opening struct {
	done chan struct{}
	s    *session
	err  error
}

// stuck is when a session is so slow that new requests are better off elsewhere.
const stuck = 250 * time.Millisecond

// load says how well a session serves a request of a class; smaller is better, and
// under zero is not at all.
type load struct {
	fit   int // 0: it has this class, or nothing; 1: a longer one; 2: it must be raised
	stuck bool
	queue int
	class time.Duration
}

func (s *session) load(class time.Duration) (load, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end != nil || s.waiting || s.suspect {
		return load{}, false
	}
	l := load{queue: len(s.queue), class: s.class}
	switch {
	case len(s.leases) == 0 && len(s.queue) == 0 && len(s.round) == 0, s.class == class:
	case s.class > class:
		l.fit = 1
	default:
		l.fit = 2
	}
	l.stuck = len(s.round) > 0 && time.Since(s.round[0].sent) > stuck
	return l, true
}

func (l load) better(than load) bool {
	switch {
	case l.stuck != than.stuck:
		return than.stuck
	case l.fit != than.fit:
		return l.fit < than.fit
	case l.class != than.class && l.fit == 1:
		return l.class < than.class
	}
	return l.queue < than.queue
}

// session returns the session that serves a request of this class best, and opens one
// if none fits and there may be one more. It waits for connectTimeout at the most.
func (b *Backend) session(ctx context.Context, class time.Duration) (*session, error) {
	b.mu.Lock()
	if b.closing() {
		b.mu.Unlock()
		return nil, driver.ErrClosed
	}
	best, bestLoad := b.best(class)
	full := len(b.sessions)-b.suspects()+len(b.opening) >= b.opt.MaxSessions
	if best != nil && (bestLoad.fit == 0 && !bestLoad.stuck || full) {
		b.mu.Unlock()
		return best, nil
	}
	o := b.opening[class]
	if o == nil && full && len(b.opening) > 0 {
		for _, o = range b.opening { // all that there may be are being opened: take any
			break
		}
	}
	if o == nil && full { // for a moment: a waiter has joined the sessions, say
		b.mu.Unlock()
		return nil, errTimeout
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

// best returns the best session there is; b.mu is held.
func (b *Backend) best(class time.Duration) (best *session, bestLoad load) {
	for _, s := range b.sessions {
		if l, ok := s.load(class); ok && (best == nil || l.better(bestLoad)) {
			best, bestLoad = s, l
		}
	}
	return best, bestLoad
}

// open opens a connection in the background, since who asked for it may go before it is
// there, and enters it in list. b.mu is held, also when arrived is called.
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
