package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/printable"
)

// Lookup returns the state of key. It takes the lock for an instant while it has the gate, so
// that no request is refused because of it. It names no shared holder: only the kernel knows who
// they are.
func (b *Backend) Lookup(ctx context.Context, key string) (*driver.State, error) {
	p, err := b.visit(ctx)
	if p == nil {
		return &driver.State{Key: key}, err
	}
	_, s, err := b.look(ctx, p, names(p, b.prefix+key))
	if s != nil {
		s.Key = key
	}
	return s, err
}

// visit examines the folder for an operator's request; nil, nil: there is none, because only a lock
// makes it.
func (b *Backend) visit(ctx context.Context) (*place, error) {
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	p, err := b.folder.visit()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return p, err
}

// List looks at every key of the folder. A key that cannot be looked at does not keep List from the
// others; its error comes after them.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	p, err := b.visit(ctx)
	if p == nil {
		return err
	}
	var first error
	stuck := map[string]bool{} // gates
	for _, name := range keysOf(p.path) {
		if err := b.usable(ctx); err != nil {
			return err
		}
		n := pathsOf(p, name)
		if stuck[n.gate] || !strings.HasPrefix(name, beginning(b.prefix+prefix)) {
			continue
		}
		full, s, err := b.look(ctx, p, n)
		if err != nil {
			first = cmp.Or(first, err)
			stuck[n.gate] = !errors.Is(err, driver.ErrRefused)
			continue
		}
		key, ok := strings.CutPrefix(full, b.prefix)
		if !ok || !strings.HasPrefix(key, prefix) || len(s.Holders) == 0 {
			continue
		}
		if s.Key = key; !yield(s) {
			return nil
		}
	}
	return first
}

// look returns the full key that is written in the lock file, and the state.
func (b *Backend) look(ctx context.Context, p *place, n paths) (string, *driver.State, error) {
	s := &driver.State{}
	if _, err := os.Lstat(n.lock); errors.Is(err, fs.ErrNotExist) {
		return "", s, nil // nobody has it
	}
	gate, err := b.enter(ctx, p, n)
	if err != nil {
		return "", nil, err
	}
	defer gate.free()
	l, mode, held, err := probe(p, n.lock)
	if l == nil {
		return "", s, err
	}
	defer l.free()
	r := holder(l.text())
	if r == nil {
		r = &record{}
	}
	s.Fence = r.fence
	if held {
		s.Mode = mode
		h := driver.Holder{}
		if mode == driver.Exclusive && r.held && r.mode == mode {
			h = driver.Holder{Owner: r.owner, Fence: r.fence, Tokens: uint32(r.seq), Since: time.UnixMicro(r.since), Address: "pid " + strconv.Itoa(r.pid)}
		}
		s.Holders = []driver.Holder{h}
	}
	return r.key, s, nil
}

// probe opens the lock file, and tries to take the lock, to see whether it is held. The gate is
// locked. nil, nil: there is no file. Free the lock.
func probe(p *place, path string) (l *lock, mode driver.Mode, held bool, err error) {
	if l, err = p.openLock(path, os.O_RDONLY); errors.Is(err, fs.ErrNotExist) {
		return nil, 0, false, nil
	}
	if err != nil {
		return nil, 0, false, err
	}
	free, err := l.try(driver.Exclusive)
	if err == nil && !free {
		var shared bool
		if shared, err = l.try(driver.Shared); shared {
			mode = driver.Shared
		}
	}
	if err != nil {
		l.close()
		return nil, 0, false, refused(err, path)
	}
	return l, mode, !free, nil
}

// Check examines the folder: whether its locks exclude at all, and which other users can
// interfere.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	var found base.Findings
	add := found.Add
	p, err := b.folder.visit()
	var no *driver.RefusedError
	switch {
	case errors.Is(err, fs.ErrNotExist):
		add("no-folder", driver.SeverityNote, "check again after that", "%s does not exist: the first lock makes it", b.folder.path)
		return found.Result(nil)
	case errors.As(err, &no):
		add("folder", driver.SeverityUnsafe, "name a folder on a local disk that this user can write (file:///folder)", "%v", no)
		return found.Result(nil)
	case err != nil:
		return nil, err
	}
	fi, err := os.Stat(p.path)
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	if kind := networkKind(p.path); kind != "" {
		add("network-file-system", driver.SeverityUnsafe, "name a folder on a local disk, or use a driver with a server", "%s is on a network file system (%s): a lock may be lost without notice, or hold on one machine only", p.path, kind)
	}
	if err := tryOut(context.WithoutCancel(ctx), p.path); err != nil {
		add("no-locks", driver.SeverityUnsafe, "name a folder that this user can write, on a local disk", "%v", err)
	}
	if p.shared && fi.Mode()&fs.ModeSticky == 0 {
		d := add("folder-not-sticky", driver.SeverityWarning, printable.CommandLine("chmod", "+t", p.path), "others may write in %s (mode %#o) and remove lock files: the holder would not notice, and the next one would run beside it", p.path, uint32(fi.Mode().Perm()))
		d.Measured, d.Command = fmt.Sprintf("mode %#o", uint32(fi.Mode().Perm())), d.Remedy
	}
	if p.id.known && !p.id.mine() && p.id.uid != 0 {
		add("folder-owner", driver.SeverityWarning, "use a folder of root's, or of this user's", "%s belongs to another user, %d, who can remove lock files", p.path, p.id.uid)
	}
	return found.Result(nil)
}

// tryOut takes a lock in a new folder below path, and checks that it excludes another.
func tryOut(ctx context.Context, path string) error {
	folder, err := os.MkdirTemp(path, ".check-*")
	if err != nil {
		return fmt.Errorf("no file can be made: %w", err)
	}
	defer os.RemoveAll(folder) //nolint:errcheck // only the clean-up fails
	b, err := New(&Options{Folder: folder})
	if err != nil {
		return err
	}
	defer b.Close() //nolint:errcheck // it was for this
	for _, want := range []error{nil, driver.ErrHeld} {
		_, err := b.Acquire(ctx, &driver.Request{Key: "k", Owner: "check"})
		switch {
		case err == nil && want != nil:
			return errors.New("two locks on one file do not exclude each other")
		case !errors.Is(err, want):
			return fmt.Errorf("no lock can be taken: %w", err)
		}
	}
	return nil
}
