package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres/internal/claims"
	"github.com/redlock-go/redlock/drivers/postgres/internal/verdict"
)

// A Lease is one advisory lock of a session. The session's mutex guards its fields.
type Lease struct {
	s       *Session
	claim   *claims.Claim
	fence   uint64
	ttl     time.Duration
	start   time.Time // Expires counts from here
	leaving *op       // its unlock; nil: none yet
	expired bool      // it was not renewed, and the driver unlocked it
	told    bool      // the caller knows that it is over
}

var _ driver.Lease = (*Lease)(nil)

// end returns when the driver unlocks the lease unless it is renewed.
func (l *Lease) end() time.Time { return l.start.Add(l.ttl + grace(l.ttl)/2) }

// Grant returns the grant as of the last success. All leases of a session have the same channel
// Lost.
func (l *Lease) Grant() driver.Grant {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	return l.grant()
}

func (l *Lease) grant() driver.Grant {
	return driver.Grant{
		Expires: driver.Expires(l.start, l.ttl), Fence: l.fence,
		Server: l.s.server.ID, Lost: l.s.lost,
	}
}

// Renew extends the lease. One heartbeat renews all leases of a session. So does any other
// answer of the server that is at most a twentieth of the TTL old and has not renewed this
// lease yet.
func (l *Lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	s := l.s
	if err := s.h.Info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, fmt.Errorf("postgres: %w", err)
	}
	class, called := ClassOf(r.TTL), time.Now()
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
func (l *Lease) alive() error {
	switch {
	case l.s.h.closing():
		return driver.ErrClosed
	case l.s.end != nil:
		return fmt.Errorf("%w: %w", driver.ErrLost, l.s.end)
	case l.leaving != nil:
		return driver.ErrLost
	}
	return nil
}

// beat waits for a heartbeat. The session's mutex is held, and released during the wait.
func (l *Lease) beat(ctx context.Context, class time.Duration, until time.Time) error {
	s := l.s
	o := s.heartbeat()
	if class > s.told && class > s.raise {
		s.raise = class
	}
	s.flush()
	s.mu.Unlock()
	defer s.mu.Lock()
	if s.answer(ctx, o, time.Until(until)) {
		return nil // if it failed, alive returns the error
	}
	return verdict.Ended(ctx)
}

// releaseTimeout bounds a release, and overTimeout one of a lease that is over, whose caller
// only learns whether the lock is free.
const (
	releaseTimeout = 5 * time.Second
	overTimeout    = time.Second / 2
)

// Release unlocks. It waits at most five seconds for the server's answer, even if ctx has
// ended, and half a second if the lease is over. The unlock is sent even after that.
func (l *Lease) Release(context.Context) error {
	s := l.s
	s.mu.Lock()
	ctx := context.Background()
	if !time.Now().Before(driver.Expires(l.start, l.ttl)) {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, overTimeout)
		defer cancel()
	}
	if l.told || s.end != nil && l.leaving == nil { // an unlock may have been answered before the end
		s.mu.Unlock()
		return l.afterEnd()
	}
	o := s.unlock(l)
	s.flush()
	s.mu.Unlock()
	if !s.answer(ctx, o, releaseTimeout) {
		return verdict.ErrTimeout
	}
	if o.err != nil && o.err != driver.ErrLost { //nolint:errorlint // set by unlocked, never wrapped
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

// GiveBack releases the lease and does not wait for the answer.
func (l *Lease) GiveBack() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.unlock(l)
	l.s.flush()
}

// afterEnd is Release after the session's end. The server frees the locks when it notices the
// end, or after the session's timeout since the last message that it received. The client does
// not know when that was, so afterEnd asks the server.
func (l *Lease) afterEnd() error {
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

// askAgain is how long the answer that the process is still there may be used.
const askAgain = 50 * time.Millisecond

// lockFreed reports whether the locks of a session that has ended are free for certain.
func (s *Session) lockFreed() bool {
	s.lookup.mu.Lock()
	defer s.lookup.mu.Unlock()
	s.mu.Lock()
	freed := s.processEnded
	s.mu.Unlock()
	if freed || time.Since(s.lookup.asked) < askAgain {
		return freed
	}
	freed = s.h.Gone(s.w.PID())
	s.lookup.asked = time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processEnded = s.processEnded || freed
	return s.processEnded
}
