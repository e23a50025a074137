//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/redlock-go/redlock/driver"
)

var _ driver.Admin = (*Backend)(nil)

// Break takes key away from the exclusive holder with token fence. No process can take a
// flock(2) lock from another, so Break removes the lock file: the next holder locks a new file,
// and the old holder notices within a second that its file is gone. A process that inherited
// the descriptor does not learn of it. Break refuses a key that is held in shared mode, because
// only one of its holders is known.
//
// Break has the key's gate, so no token is taken meanwhile: a process that locks the file before
// its removal finds, when it has the gate, that the file is gone, and begins anew.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	if key == "" {
		return driver.Invalid("key", "is empty")
	}
	if err := b.usable(ctx); err != nil {
		return err
	}
	p, err := b.folder.visit()
	if errors.Is(err, fs.ErrNotExist) {
		return driver.ErrLost
	}
	if err != nil {
		return err
	}
	n := names(p, b.prefix+key)
	if _, err := os.Lstat(n.state); errors.Is(err, fs.ErrNotExist) {
		return driver.ErrLost // the key was never locked
	}
	state, err := p.open(n.state, os.O_RDWR) // closing it wakes the waiters
	if err != nil {
		return err
	}
	defer state.Close() //nolint:errcheck // nothing is buffered
	gate, err := enterGate(ctx, p, n, state, b.patience)
	if err != nil {
		return err
	}
	if gate == nil {
		return fmt.Errorf("file: %s: another process is stopped while it uses it", n.state)
	}
	defer gate.unlock()
	mode, held, err := probe(p, n.lock)
	if err != nil {
		return err
	}
	r := read(state).latest()
	switch {
	case !held || r == nil || !r.held || r.fence != h.Fence:
		return driver.ErrLost
	case mode == driver.Shared:
		return refuse("%q is held in shared mode, and its holders cannot be told apart: end their processes", key)
	}
	if err := os.Remove(n.lock); err != nil {
		return refused(err, n.lock)
	}
	clearHolder(state, h.Fence)
	return nil
}
