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

// lock is a file locked by other means than flock(2), LockFileEx on Windows. Such a lock cannot be
// inherited. It is on the first byte, which nobody can read meanwhile: the text begins after it.
type lock struct {
	f       *flock.Flock
	content *os.File
}

func (p *place) openLock(path string, flag int) (*lock, error) {
	f, err := p.open(path, flag)
	if err != nil {
		return nil, err
	}
	return &lock{flock.New(path, flock.SetPermissions(p.mode)), f}, nil
}

// text is what the file contains.
func (l *lock) text() storage { return shifted{l.content} }

type shifted struct{ *os.File }

func (s shifted) ReadAt(b []byte, off int64) (int, error)  { return s.File.ReadAt(b, off+1) }
func (s shifted) WriteAt(b []byte, off int64) (int, error) { return s.File.WriteAt(b, off+1) }

// try takes the lock if it is free.
func (l *lock) try(mode driver.Mode) (bool, error) {
	if mode == driver.Shared {
		return l.f.TryRLock()
	}
	return l.f.TryLock()
}

func (l *lock) unlock() { _ = l.f.Unlock() } // it closes the file in any case

// close closes both. What matters was synced.
func (l *lock) close() {
	_ = l.f.Close()
	_ = l.content.Close()
}

func (l *lock) file() *os.File { return nil }

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
