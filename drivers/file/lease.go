package file

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Lease is the lease that Acquire returns. It has two descriptors open, for the lock file and
// the key's state, both closed on exec.
type Lease struct {
	backend *Backend
	place   *place
	paths   paths
	mode    driver.Mode
	fresh   bool // the key was new
	grant   driver.Grant

	mu    sync.Mutex
	lock  *lock
	state *os.File
	over  bool
	lost  chan struct{} // closed when the lease is found to be lost, and by Backend.Close
}

var _ driver.Lease = (*Lease)(nil)

// begin gives the holder of l.lock its token, and writes the holder's name into the state.
func (l *Lease) begin(ctx context.Context, req *driver.Request) error {
	var err error
	if l.state, err = l.place.open(l.paths.state, os.O_RDWR); err != nil {
		return err
	}
	// With the gate, no other shared holder takes its token, and Break removes no lock file.
	gate, err := enterGate(ctx, l.place, l.paths, l.state, l.backend.patience)
	if err != nil {
		return err
	}
	if gate == nil {
		return errors.New("file: " + l.paths.state + ": another process is stopped while it takes a token")
	}
	defer gate.unlock()
	if !l.lock.current(l.paths.lock) {
		return errReplaced
	}
	now := time.Now()
	r := &record{
		held: true, mode: l.mode, since: now.UnixMicro(), pid: os.Getpid(),
		boot: l.backend.boot, owner: req.Owner, key: l.backend.prefix + req.Key,
	}
	if l.fresh, err = seed(l.place, l.state, r); err != nil {
		return err
	}
	fence, _, err := issue(l.state, r, req.FenceFloor, now)
	if err == nil && l.fresh {
		err = syncFolder(l.place.path) // the file must still be there after a crash
	}
	if err != nil {
		return err
	}
	l.lost = make(chan struct{})
	l.grant = driver.Grant{Fence: fence, Clock: now.Round(0), Server: l.backend.boot, Lost: l.lost}
	return nil
}

// errReplaced says that the lock file was removed while it was being taken.
var errReplaced = errors.New("file: the lock file was replaced")

// replaced reports whether the lock file is no longer the one that the lease locked.
func (l *Lease) replaced() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.over && !l.lock.current(l.paths.lock)
}

// lose closes Lost.
func (l *Lease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.lost:
	default:
		close(l.lost)
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
	if !l.lock.current(l.paths.lock) {
		return driver.Grant{}, driver.ErrLost
	}
	return l.grant, nil
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
	l.over = true
	l.backend.forget(l)
	if !l.lock.current(l.paths.lock) {
		l.drop()
		return driver.ErrLost
	}
	l.sign()
	l.drop()
	return nil
}

// sign writes into the state that this holder has released the lock. The entry is information
// for people: an error here changes nothing.
func (l *Lease) sign() {
	if l.mode == driver.Shared {
		gate, err := enterGate(context.Background(), l.place, l.paths, l.state, l.backend.patience)
		if gate == nil || err != nil {
			return
		}
		defer gate.unlock()
	}
	clearHolder(l.state, l.grant.Fence)
}

// drop unlocks and closes. The state is closed last: closing it wakes the waiters.
func (l *Lease) drop() {
	l.lock.unlock()
	l.lock.close()
	if l.state != nil {
		_ = l.state.Close() // nothing is buffered
	}
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

// Detach closes the lease's own descriptors and does not unlock: the key is free when the last
// process that inherited File's descriptor has exited, or at once if there is none. The lease
// is over; Release then returns nil. On systems without flock(2) Detach does the same as
// Release.
func (l *Lease) Detach() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over {
		return nil
	}
	l.over = true
	l.backend.forget(l)
	if l.lock.file() == nil {
		l.drop()
		return nil
	}
	l.lock.close()
	return l.state.Close()
}
