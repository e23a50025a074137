//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/redlock-go/redlock/driver"
)

// safely is added to every open: it follows no symbolic link, and a named pipe that another
// user put there cannot block it.
const safely = syscall.O_NOFOLLOW | syscall.O_NONBLOCK

var errReadOnly error = syscall.EROFS

// removable is true: files can be removed while they are open, and can then be told from their
// successors.
const removable = true

// lock is a file with a lock of flock(2). The lock belongs to the open file description: two of
// them exclude each other even in one process, and processes that inherit the descriptor share
// the lock.
type lock struct{ f *os.File }

func (p *place) openLock(path string, flag int) (*lock, error) {
	f, err := p.open(path, flag)
	if err != nil {
		return nil, err
	}
	return &lock{f}, nil
}

// text is what the file contains.
func (l *lock) text() storage { return l.f }

// try takes the lock if it is free.
func (l *lock) try(mode driver.Mode) (bool, error) {
	how := syscall.LOCK_EX
	if mode == driver.Shared {
		how = syscall.LOCK_SH
	}
	err := l.flock(how | syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}

// unlock frees the lock for all processes that share the description: a child between fork and
// exec has a copy of the descriptor for a moment, and must not keep the lock.
func (l *lock) unlock() { _ = l.flock(syscall.LOCK_UN) } // it fails only on a bad descriptor

func (l *lock) flock(how int) error {
	for {
		err := syscall.Flock(int(l.f.Fd()), how)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.EINTR) {
			return &fs.PathError{Op: "flock", Path: l.f.Name(), Err: err}
		}
	}
}

func (l *lock) close()         { _ = l.f.Close() } // what matters was synced
func (l *lock) file() *os.File { return l.f }

// current reports whether path still names this file. If not, other processes lock another
// file.
func (l *lock) current(path string) bool {
	mine, err := l.f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(mine, there)
}

// identity returns a file's owner.
type identity struct {
	uid, gid int
	links    uint64
	known    bool
}

func identify(fi fs.FileInfo) identity {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}
	}
	return identity{uid: int(st.Uid), gid: int(st.Gid), links: uint64(st.Nlink), known: true} //nolint:unconvert // its type differs by system
}

func (id identity) mine() bool { return !id.known || id.uid == os.Geteuid() }

// hand makes a new file accessible to the users that share it, regardless of the umask: to the
// folder's owner, if root made it (with sudo, for example), and to the folder's group.
func (p *place) hand(f *os.File) error {
	if !p.shared && os.Geteuid() == 0 && p.id.uid != 0 {
		if err := f.Chown(p.id.uid, p.id.gid); err != nil {
			return err
		}
	}
	if p.mode&0o060 != 0 {
		_ = f.Chown(-1, p.id.gid) // if this is not allowed, the group stays that of the process
	}
	return f.Chmod(p.mode)
}

// syncFolder writes the names of new files to the disk, so that they outlive a crash.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close() //nolint:errcheck // it was only synced
	return d.Sync()
}
