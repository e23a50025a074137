package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/redlock-go/redlock/driver"
)

// lease is one advisory lock of a session. Its fields are guarded by the session.
type lease struct {
	s       *session
	claim   *claim
	fence   uint64
	ttl     time.Duration
	start   time.Time // Expires counts from here
	leaving *op       // the unlock, once it is wanted
	expired bool      // it was not renewed, and unlocked by the driver
	told    bool      // the caller knows that it is over
}

var _ driver.Lease = (*lease)(nil)

// end is when the driver unlocks the lease, unless it is renewed.
func (l *lease) end() time.Time { return l.start.Add(l.ttl + grace(l.ttl)/2) }

// Grant returns the grant as of the last success. The channel Lost is the session's.
func (l *lease) Grant() driver.Grant {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.grant()
}

func (l *lease) grant() driver.Grant {
	return driver.Grant{
		Expires: driver.Expires(l.start, l.ttl), Fence: l.fence,
		Server: l.s.server.id, Lost: l.s.lost,
	}
}

// Renew extends the lease. One heartbeat serves all leases of a session, and so does
// any other answer of the server that is not older than a twentieth of the TTL and
// that the lease has not had yet.
func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	s := l.s
	if err := s.b.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, fmt.Errorf("postgres: %w", err)
	}
	class, called := classOf(r.TTL), time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for newest := called.Add(-fresh(r.TTL)); ; newest = called {
		if err := l.alive(); err != nil {
			return driver.Grant{}, err
		}
		if s.known >= class && s.answered.After(l.start) && !s.answered.Before(newest) {
			l.start, l.ttl = s.answered, r.TTL
			if end := l.end(); end.Before(s.nextEnd) {
				s.nextEnd = end
			}
			return l.grant(), nil
		}
		if err := l.beat(ctx, class, called.Add(attempt(r.TTL))); err != nil {
			return driver.Grant{}, err
		}
	}
}

// alive returns why the lease is over, and nil while it is not.
func (l *lease) alive() error {
	switch {
	case l.s.b.closing():
		return driver.ErrClosed
	case l.s.end != nil:
		return fmt.Errorf("%w: %w", driver.ErrLost, l.s.end)
	case l.leaving != nil:
		return driver.ErrLost
	}
	return nil
}

// beat waits for a heartbeat; the session's mutex is held, and let go meanwhile.
func (l *lease) beat(ctx context.Context, class time.Duration, until time.Time) error {
	s := l.s
	o := s.heartbeat()
	if class > s.told && class > s.raise {
		s.raise = class
	}
	s.flush()
	s.mu.Unlock()
	defer s.mu.Lock()
	if s.answer(ctx, o, time.Until(until)) {
		return nil // alive tells, if it failed
	}
	return ended(ctx)
}

// releaseTimeout bounds a release.
const releaseTimeout = 5 * time.Second

// Release unlocks. It waits for the server's answer, five seconds at the most,
// whatever becomes of ctx; it is sent even if nobody waits for it any more.
func (l *lease) Release(context.Context) error {
	s := l.s
	s.mu.Lock()
	if l.told || s.end != nil {
		s.mu.Unlock()
		return l.afterEnd()
	}
	o := s.unlock(l)
	s.flush()
	s.mu.Unlock()
	if !s.answer(context.Background(), o, releaseTimeout) {
		return errTimeout
	}
	if o.err != nil && o.err != driver.ErrLost { //nolint:errorlint // our own, never wrapped
		return l.afterEnd()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.told {
		return nil
	}
	l.told = true
	if l.expired {
		return driver.ErrLost
	}
	return o.err
}

// afterEnd is Release when the session has ended. The server frees the locks when it
// notices, or by the session's timeout, which counts from what the server heard last:
// nobody here knows when that was, and so the server is asked.
func (l *lease) afterEnd() error {
	s := l.s
	s.mu.Lock()
	told, fatal := l.told, s.fatal
	s.mu.Unlock()
	if told {
		return nil
	}
	if fatal { // the end comes within a second
		<-s.closed
	}
	if !s.lockFreed() {
		return fmt.Errorf("postgres: the lock stays until the server notices that its session has ended: %w", s.end)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if l.told {
		return nil
	}
	l.told = true
	return driver.ErrLost
}

// endLookup finds out whether a session's server process has ended. One caller asks for
// all the leases of the session.
type endLookup struct {
	mu    sync.Mutex
	asked time.Time
}

// askAgain is how old the answer may be that the process is still there.
const askAgain = 50 * time.Millisecond

// lockFreed reports whether the locks of a session that has ended are free for certain.
func (s *session) lockFreed() bool {
	s.lookup.mu.Lock()
	defer s.lookup.mu.Unlock()
	s.mu.Lock()
	freed := s.processEnded
	s.mu.Unlock()
	if freed || time.Since(s.lookup.asked) < askAgain {
		return freed
	}
	freed = s.processGone()
	s.lookup.asked = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processEnded = s.processEnded || freed
	return s.processEnded
}

// processGone asks whether the session's server process has ended, as far as anybody
// can be asked.
func (s *session) processGone() bool {
	gone := false
	ctx, cancel := context.WithTimeout(context.Background(), releaseTimeout)
	defer cancel()
	err := s.b.inspect(ctx, func(ctx context.Context, pc *pgconn.PgConn) error {
		row, err := query(ctx, pc, fmt.Sprintf("SELECT count(*) FROM pg_stat_activity WHERE pid = %d", s.w.pid))
		if err == nil && row != nil {
			gone = number(row[0]) == 0
		}
		return err
	})
	return err == nil && gone
}
