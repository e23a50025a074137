//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"cmp"
	"context"
	"os"

	"github.com/redlock-go/redlock/driver"
)

var _ driver.Admin = (*Backend)(nil)

// Break takes key away from the exclusive holder with token fence. No process can take a
// flock(2) lock from another, so Break removes the lock file: the next holder locks a new file,
// and the old holder notices within a second that its file is gone. A process that inherited
// the descriptor does not learn of it. Break refuses a key that is held in shared mode, because
// none of its holders is known.
//
// Break has the key's gate, so nobody else takes the lock meanwhile. The holder may release it: then
// Break removes the file of a free key.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	if key == "" {
		return driver.Invalid("key", "is empty")
	}
	p, err := b.visit(ctx)
	if p == nil {
		return cmp.Or(err, driver.ErrLost)
	}
	n := names(p, b.prefix+key)
	gate, err := b.enter(ctx, p, n)
	if err != nil {
		return err
	}
	defer gate.free()
	l, mode, held, err := probe(p, n.lock)
	if l == nil {
		return cmp.Or(err, driver.ErrLost)
	}
	defer l.free()
	r := holder(l.text())
	switch {
	case held && mode == driver.Shared:
		return refuse("%q is held in shared mode, and its holders cannot be told apart: end the processes that have %s open", key, n.lock)
	case !held || r == nil || !r.held || r.fence != h.Fence:
		return driver.ErrLost
	}
	if err := os.Remove(n.lock); err != nil { // it wakes the waiters
		return refused(err, n.lock)
	}
	return nil
}
