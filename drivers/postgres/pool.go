package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/session"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
)

// The backend has two kinds of connections: at most MaxSessions sessions, which serve all
// requests, and at most MaxWaiters waiters. A waiter waits for one lock and then holds it until
// its release, or joins the sessions if they have room. A connection without leases is reused,
// and closed after a minute.

// An opening is a connection that is being made, for all callers that need one.
type opening struct {
	done chan struct{}
	s    *session.Session
	err  error
}

// session returns the session that serves a request of this class best, and opens one if none
// fits and there may be one more. It waits for at most connectTimeout, also for ended sessions
// to be forgotten.
func (b *Backend) session(ctx context.Context, class time.Duration) (*session.Session, error) {
	for end := time.Now().Add(connectTimeout); ; {
		s, err := b.sessionNow(ctx, class)
		if !errors.Is(err, errFull) {
			return s, err
		}
		if time.Now().After(end) {
			return nil, verdict.ErrTimeout
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, verdict.Ended(ctx)
		}
	}
}

// errFull says that no session takes requests, and that the limit of sessions is reached.
var errFull = errors.New("no session takes requests")

// sessionNow is session, but returns errFull at once.
func (b *Backend) sessionNow(ctx context.Context, class time.Duration) (*session.Session, error) {
	b.mu.Lock()
	if b.closing() {
		b.mu.Unlock()
		return nil, driver.ErrClosed
	}
	best, cost := b.best(class)
	full := len(b.sessions)-b.suspects()+len(b.opening) >= b.opt.MaxSessions
	if best != nil && (cost < session.CostNone || full) {
		b.mu.Unlock()
		return best, nil
	}
	o := b.opening[class]
	if o == nil && full && len(b.opening) > 0 {
		for _, o = range b.opening { // all allowed sessions are being opened: take any
			break
		}
	}
	if o == nil && full { // for a moment only: a session has ended, or a waiter has joined the sessions
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

// suspects counts the silent sessions, up to MaxSessions: as many more may be opened in their
// place. b.mu is held.
func (b *Backend) suspects() (n int) {
	for _, s := range b.sessions {
		if s.Suspect() {
			n++
		}
	}
	return min(n, b.opt.MaxSessions)
}

// best returns the session of the least cost; b.mu is held.
func (b *Backend) best(class time.Duration) (best *session.Session, least int64) {
	for _, s := range b.sessions {
		if cost, ok := s.Cost(class); ok && (best == nil || cost < least) {
			best, least = s, cost
		}
	}
	return best, least
}

// open opens a connection in the background, because its caller may give up before it is
// there, and adds it to list. b.mu is held, also when arrived is called.
func (b *Backend) open(list *[]*session.Session, arrived func(error)) *opening {
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
			o.s.Close()
			o.s, o.err = nil, driver.ErrClosed
		case o.err == nil:
			*list = append(*list, o.s)
		}
		close(o.done)
	}()
	return o
}

// connectTimeout bounds the making of a connection, including its setup.
const connectTimeout = 10 * time.Second

func (b *Backend) connect(ctx context.Context) (*session.Session, error) {
	if b.warning != "" {
		b.warned.Do(func() { b.report(driver.Notice{Kind: noticeInClear, Detail: b.warning}) })
	}
	c, err := b.factory(ctx)
	if err != nil {
		return nil, verdict.Connect(err)
	}
	w, srv, err := b.setUp(ctx, c)
	if err != nil {
		closeConn(c)
		return nil, err
	}
	return session.New(b.host, w, session.Server{
		ID: srv.id, PerTransaction: srv.perTransaction, NotBefore: srv.notBefore(b.opt.RestartGuard),
	}), nil
}

func closeConn(c *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_ = c.Close(ctx)
}

// forget removes an ended session.
func (b *Backend) forget(s *session.Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sessions = without(b.sessions, s)
	b.waiters = without(b.waiters, s)
}

func without(list []*session.Session, s *session.Session) []*session.Session {
	for i, x := range list {
		if x == s {
			return append(list[:i:i], list[i+1:]...)
		}
	}
	return list
}

// all returns the backend's connections.
func (b *Backend) all() []*session.Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append(slices.Clone(b.sessions), b.waiters...)
}
