package file

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Lease is the lease that Acquire returns. It has one descriptor open, for the lock file, which is
// closed on exec.
type Lease struct {
	backend *Backend
	path    string  // of the lock file
	record  *record // what is written in the lock file
	grant   driver.Grant
	lose    func() // closes Lost

	mu    sync.Mutex
	lock  *lock
	over  bool
	timer *time.Timer // of check
}

var _ driver.Lease = (*Lease)(nil)

// checkEvery is the time between two checks that the lock file is still there.
const checkEvery = time.Second

// check ends the lease if its lock file was removed or replaced.
func (l *Lease) check() {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over:
	case l.lock.current(l.path):
		l.timer.Reset(checkEvery)
	default:
		l.lose()
	}
}

// Grant returns the grant. Expires is zero: the lease ends with its process, or with the last
// process that has its descriptor. Lost is closed when the backend is closed, and within a
// second after the lock file was removed or replaced, for example by Break.
func (l *Lease) Grant() driver.Grant { return l.grant }

// Renew checks that the lease is still valid. It extends nothing, because the lease has no end.
// ErrLost: it was released or detached, or the lock file was removed or replaced, so that it
// excludes nobody any more.
func (l *Lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if err := l.backend.Info().CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return driver.Grant{}, driver.ErrLost
	}
	if err := ctx.Err(); err != nil {
		return driver.Grant{}, err
	}
	if !l.lock.current(l.path) {
		return driver.Grant{}, driver.ErrLost
	}
	return l.grant, nil
}

// end ends the lease for its user; l.mu is held.
func (l *Lease) end() {
	l.over = true
	l.timer.Stop()
	l.backend.forget(l)
}

// Release frees the lock, even if other processes have inherited its descriptor: to leave the
// lock to them call Detach instead. ErrLost says that the lock file was removed or replaced
// under the lease. It does not depend on ctx, and takes microseconds.
func (l *Lease) Release(context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil
	}
	l.end()
	if !l.lock.current(l.path) {
		l.lock.free()
		return driver.ErrLost
	}
	if l.record.mode == driver.Exclusive { // readers are not named, and write over one another
		l.record.held = false
		_ = write(l.lock.text(), 0, l.record) // for people
	}
	l.lock.free()
	return nil
}

// File returns the open lock file, to be inherited by a command (in
// exec.Cmd.ExtraFiles): while any process has it open, the key is held. It is valid
// until the lease is released or detached. Do not close it. It is nil after that, and
// on Windows and other systems without flock(2).
func (l *Lease) File() *os.File {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil
	}
	return l.lock.file()
}

// Detach closes the lease's own descriptor and does not unlock: the key is free when the last
// process that inherited File's descriptor has exited, or at once if there is none. The lease
// is over; Release then returns nil. On systems without flock(2) Detach does the same as
// Release.
func (l *Lease) Detach() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil
	}
	l.end()
	if l.lock.file() == nil {
		l.lock.free()
		return nil
	}
	l.lock.close()
	return nil
}
