//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package file

import (
	"errors"
	"io/fs"
	"os"

	"github.com/gofrs/flock"

	"github.com/redlock-go/redlock/driver"
)

// safely is zero here: the folder's ACL makes it private to its user.
const safely = 0

var errReadOnly = errors.New("read-only")

// removable is false: an open file cannot be removed here, or cannot be told from its successor.
const removable = false

// lock is a file locked by other means than flock(2), LockFileEx on Windows. Such a
// lock cannot be inherited.
type lock struct{ f *flock.Flock }

func (p *place) openLock(path string, _ int) (*lock, error) {
	return &lock{flock.New(path, flock.SetPermissions(p.mode))}, nil
}

// gate returns a separate file: locks are mandatory here, so a locked state could not be read.
func (p *place) gate(n paths, _ *os.File) (*lock, error) { return p.openLock(n.gate, os.O_RDWR) }

// try takes the lock if it is free.
func (l *lock) try(mode driver.Mode) (bool, error) {
	if mode == driver.Shared {
		return l.f.TryRLock()
	}
	return l.f.TryLock()
}

func (l *lock) unlock()        { _ = l.f.Unlock() } // it closes the file in any case
func (l *lock) close()         { _ = l.f.Close() }  // it was unlocked, or never locked
func (l *lock) file() *os.File { return nil }

func newLock(f *os.File) *lock { return &lock{flock.New(f.Name())} }

// current is always true: an open file cannot be removed here.
func (l *lock) current(string) bool { return true }

// identity is unknown here.
type identity struct {
	uid, gid int
	links    uint64
	known    bool
}

func identify(fs.FileInfo) identity  { return identity{} }
func (identity) mine() bool          { return true }
func (p *place) hand(*os.File) error { return nil }
func syncFolder(string) error        { return nil }
