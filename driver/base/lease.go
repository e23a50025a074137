package base

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Lease is a driver.Lease around a driver's requests.
type Lease struct {
	calls   *Calls
	info    driver.Info
	renew   func(*Call, *driver.Renewal) (driver.Grant, error)
	release func(*Call) error

	// Only the call that has entered uses these.
	over    bool // it is released or lost, or a release was tried
	lost    bool // and Release has not said so yet
	certain bool // the lock is certainly gone
	undoing bool // release is repeated in the background

	mu    sync.Mutex
	busy  bool          // a call has entered
	free  chan struct{} // closed when it leaves; nil: no other call waits for that
	grant driver.Grant
	timer *time.Timer // of FreeAtEnd; nil: the server frees the lock
}

var _ driver.Lease = (*Lease)(nil)

// NewLease returns the lease of a grant. It checks renewals by info, and lets one renewal or release
// go on at a time; each is bounded by Calls.Bound of the TTL.
//
// renew asks the server for more time, and returns the new grant or driver.ErrLost. After ErrLost,
// and after a release, it is not called again.
//
// release frees exactly this acquisition's lock. Nil and driver.ErrLost say that the lease
// certainly no longer has the lock; release is then not called again. After any other error Release
// returns that error, and release is called again in the background, until it is certain or ten
// seconds after the lease's end. It is not called after renew has returned ErrLost; Release then
// returns ErrLost too.
func NewLease(calls *Calls, info driver.Info, grant driver.Grant, renew func(*Call, *driver.Renewal) (driver.Grant, error), release func(*Call) error) *Lease {
	return &Lease{calls: calls, info: info, grant: grant, renew: renew, release: release}
}

// FreeAtEnd lets the lease call release at its end, too, and then until it is certain. It is for
// servers on which a lock lives with a session, which goes on for other leases. Call it once, before
// the lease is used; it returns the lease.
func (l *Lease) FreeAtEnd() *Lease {
	l.mu.Lock() // undo uses the timer
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(time.Until(l.grant.Expires), func() { l.undo(time.Time{}) })
	return l
}

// Grant returns the grant as of the last success.
func (l *Lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grant
}

// begin begins a call that changes the lease.
func (l *Lease) begin(ctx context.Context, most time.Duration) (*Call, error) {
	call, err := l.calls.Begin(ctx, most)
	if err != nil {
		return nil, err
	}
	if err := l.enter(call); err != nil {
		call.End()
		return nil, err
	}
	return call, nil
}

// enter waits until other calls have left the lease; leave lets the next one go on.
func (l *Lease) enter(call *Call) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.busy {
		if l.free == nil {
			l.free = make(chan struct{})
		}
		free := l.free
		l.mu.Unlock()
		err := call.Await(free)
		l.mu.Lock()
		if err != nil {
			return err
		}
	}
	l.busy = true
	return nil
}

func (l *Lease) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = false
	if l.free != nil {
		close(l.free)
		l.free = nil
	}
}

// Renew extends the lease.
func (l *Lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	call, err := l.begin(ctx, l.calls.Bound(r.TTL))
	if err != nil {
		return driver.Grant{}, err
	}
	defer call.End()
	defer l.leave()
	if l.over {
		return driver.Grant{}, driver.ErrLost
	}
	grant, err := l.renew(call, r)
	if err != nil {
		l.lost = errors.Is(err, driver.ErrLost)
		l.over, l.certain = l.lost, l.lost
		return driver.Grant{}, call.Failed(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.grant = grant; l.timer != nil {
		l.timer.Reset(time.Until(grant.Expires))
	}
	return grant, nil
}

// Release frees the lock.
func (l *Lease) Release(ctx context.Context) error {
	if ctx.Done() != nil {
		ctx = context.WithoutCancel(ctx)
	}
	call, err := l.begin(ctx, l.calls.timeout())
	if err != nil {
		return err
	}
	defer call.End()
	defer l.leave()
	l.over = true
	if l.lost {
		l.lost = false
		return driver.ErrLost
	}
	err = l.freeOnce(call)
	end := l.Grant().Expires.Add(10 * time.Second)
	switch {
	case l.timer != nil:
		l.timer.Stop()
		end = time.Time{}
	case l.Grant().Expires.IsZero():
		end = time.Now().Add(time.Minute)
	}
	if !l.certain && !l.undoing {
		l.undoing = true
		l.undo(end)
	}
	return call.Failed(err)
}

// freeOnce frees the lock unless it is certainly gone. The caller has entered.
func (l *Lease) freeOnce(call *Call) error {
	if l.certain {
		return nil
	}
	err := l.release(call)
	l.certain = err == nil || errors.Is(err, driver.ErrLost)
	return err
}

// undo frees the lock in the background, unless a renewal has extended the lease meanwhile.
func (l *Lease) undo(until time.Time) {
	l.calls.Undo(until, func(call *Call) error {
		if err := l.enter(call); err != nil {
			return err
		}
		defer l.leave()
		if left := time.Until(l.Grant().Expires); left > 0 && !l.over {
			l.timer.Reset(left)
			return nil
		}
		l.over = true
		if err := l.freeOnce(call); !l.certain {
			return err
		}
		return nil
	})
}
