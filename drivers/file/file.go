package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/dsn"
)

const features = driver.FeatureShared | driver.FeatureFencing | driver.FeatureSession | driver.FeatureTokens

// Driver opens backends by URL. It has no state.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open returns a backend of the folder that cfg.DSN names: see the package's text.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	o, err := parse(cfg.DSN)
	if err != nil {
		return nil, err
	}
	o.Prefix = cfg.Prefix
	return New(o)
}

// parse reads file:, file:/folder and file:///folder. There are no parameters.
func parse(rawURL string) (*Options, error) {
	rest, ok := strings.CutPrefix(rawURL, "file:")
	if !ok {
		return nil, driver.Invalid("URL", "must be file: or file:///folder")
	}
	path, query, _ := strings.Cut(rest, "?")
	if err := dsn.Query(query).Err(); err != nil {
		return nil, err
	}
	if path == "" {
		return &Options{}, nil
	}
	fragment := strings.Contains(path, "#")
	path, err := url.PathUnescape(strings.TrimPrefix(path, "//"))
	local, absolute := dsn.LocalPath(path)
	switch {
	case err != nil || fragment || strings.Contains(path, "\x00"):
		return nil, driver.Invalid("URL", "is not percent-encoded correctly ('#' is %%23, '?' is %%3F, '%%' is %%25)")
	case !absolute:
		return nil, driver.Invalid("URL", "names no absolute folder: it must be file:///folder, with three slashes (file:///C:/folder on Windows), or file: alone")
	}
	return &Options{Folder: filepath.FromSlash(local)}, nil
}

// Options are the settings of New. The zero Options are those of "file:".
type Options struct {
	// Folder is where the lock files are, an absolute path; empty: the user's own
	// state folder.
	Folder string
	// Prefix goes before every key.
	Prefix string
	_      struct{}
}

// Backend grants leases on the keys of a folder.
type Backend struct {
	folder   folder
	prefix   string
	boot     string
	patience time.Duration // gatePatience

	cleaner cleaner

	mu      sync.Mutex
	closed  bool
	leases  map[*Lease]struct{}
	watcher watcher
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// New returns a backend of o's folder; nil stands for the zero Options. The folder is made at
// the first use if it does not exist. ErrInvalid names an option that cannot be honoured.
func New(o *Options) (*Backend, error) {
	opt := base.Given(o)
	f := folder{path: opt.Folder}
	if opt.Folder == "" {
		f.path, f.private = defaultFolder(runtime.GOOS, os.Getenv, userHome), true
	}
	if !filepath.IsAbs(f.path) {
		return nil, driver.Invalid("folder", "must be an absolute path, and must be named (file:///folder) for a user without a home")
	}
	f.path = filepath.Clean(f.path)
	b := &Backend{
		folder: f, prefix: opt.Prefix, boot: bootID(), patience: gatePatience,
		leases: map[*Lease]struct{}{},
	}
	return b, nil
}

// Info describes the backend. It has no TTL.
func (b *Backend) Info() driver.Info {
	return driver.Info{Name: "file", Features: features}
}

// String returns the backend's URL.
func (b *Backend) String() string {
	path := filepath.ToSlash(b.folder.path)
	if !strings.HasPrefix(path, "/") {
		path = "/" + path
	}
	return (&url.URL{Scheme: "file", Path: path}).String()
}

// Acquire makes one attempt, which takes microseconds, and once in ten seconds a write to the
// disk. It never waits for a holder. The lease is a *Lease.
//
// A *RefusedError says what is wrong with the folder or a file in it, and what to do.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.Info().Check(b.prefix, req); err != nil {
		return nil, err
	}
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	p, err := b.folder.enter()
	if err != nil {
		return nil, err
	}
	l, fresh, err := b.attempt(ctx, p, req)
	if err != nil {
		return nil, err
	}
	if err := b.keep(l); err != nil {
		return nil, err
	}
	if fresh {
		b.cleanSome(p)
	}
	return l, nil
}

func (b *Backend) usable(ctx context.Context) error {
	b.mu.Lock()
	closed := b.closed
	b.mu.Unlock()
	if closed {
		return driver.ErrClosed
	}
	return ctx.Err()
}

// keep stores the lease for Close, and so that the garbage collector does not close its
// descriptor, which would free the lock.
func (b *Backend) keep(l *Lease) error {
	b.mu.Lock()
	closed := b.closed
	if !closed {
		b.leases[l] = struct{}{}
	}
	b.mu.Unlock()
	if closed {
		_ = l.Release(context.Background()) // the lease was not returned yet
		return driver.ErrClosed
	}
	return nil
}

func (b *Backend) forget(l *Lease) {
	b.mu.Lock()
	delete(b.leases, l)
	b.mu.Unlock()
}

// attempts bounds how often a file is opened anew because another process replaced or made it
// at the same time.
const attempts = 20

// attempt takes the lock of req's key, or returns why it cannot. A key that had no file is fresh.
func (b *Backend) attempt(ctx context.Context, p *place, req *driver.Request) (lease *Lease, fresh bool, err error) {
	n := names(p, b.prefix+req.Key)
	gate, err := b.enter(ctx, p, n)
	if err != nil {
		return nil, false, err
	}
	defer gate.free()
	for range attempts {
		l, fresh, err := b.take(p, n, req.Mode)
		if err != nil {
			return nil, false, err
		}
		if l.current(n.lock) { // else somebody removed it meanwhile: it excludes nobody
			if lease, err = b.grant(n.lock, gate, l, req); err == nil {
				return lease, fresh, nil
			}
		}
		l.free()
		if err != nil {
			return nil, false, refused(err, n.gate)
		}
	}
	return nil, false, fmt.Errorf("file: %s: keeps being replaced", n.lock)
}

// take takes the lock, or returns a *driver.HeldError. The gate is locked. Only a holder has the
// file open for writing, because closing it wakes the waiters; so take tries the lock before.
func (b *Backend) take(p *place, n paths, mode driver.Mode) (l *lock, fresh bool, err error) {
	for _, flag := range []int{os.O_RDONLY, os.O_RDWR} {
		if l != nil {
			l.free()
		}
		if l, err = p.openLock(n.lock, flag); errors.Is(err, fs.ErrNotExist) && flag == os.O_RDONLY {
			fresh = true
			continue
		}
		if err != nil {
			return nil, false, refused(err, n.lock)
		}
		ok, err := l.try(mode)
		if err == nil && !ok {
			held := &driver.HeldError{Server: b.boot, Clock: time.Now().Round(0)}
			if r := holder(l.text()); r != nil && r.held && r.mode == driver.Exclusive {
				held.Holder, held.Since = r.owner, time.UnixMicro(r.since)
			}
			err = held
		}
		if err != nil {
			l.close()
			return nil, false, refused(err, n.lock)
		}
	}
	return l, fresh, nil
}

// free unlocks, and then closes, which wakes the waiters if the file was open for writing.
func (l *lock) free() {
	l.unlock()
	l.close()
}

// grant gives the holder of l its token, and writes its name into the lock file.
func (b *Backend) grant(path string, gate, l *lock, req *driver.Request) (*Lease, error) {
	now := time.Now()
	fence, err := issue(gate.text(), b.boot, req.FenceFloor, uint64(max(req.Tokens, 1)), now)
	if err != nil {
		return nil, err
	}
	r := &record{
		seq: uint64(req.Tokens), fence: fence, limit: fence, held: true, mode: req.Mode, since: now.UnixMicro(), pid: os.Getpid(),
		boot: b.boot, owner: req.Owner, key: b.prefix + req.Key,
	}
	if err := write(l.text(), 0, r); err != nil {
		return nil, err
	}
	lost := make(chan struct{})
	lease := &Lease{
		backend: b, path: path, lock: l, record: r, lose: sync.OnceFunc(func() { close(lost) }),
		grant: driver.Grant{Fence: fence, Tokens: req.Tokens, Clock: now.Round(0), Server: b.boot, Lost: lost},
	}
	lease.mu.Lock() // check uses the timer
	defer lease.mu.Unlock()
	lease.timer = time.AfterFunc(checkEvery, lease.check)
	return lease, nil
}

// Close releases all leases, because their session ends, and stops all watching. Detached
// leases are not affected.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	leases := slices.Collect(maps.Keys(b.leases))
	b.mu.Unlock()

	for _, l := range leases {
		l.lose()
	}
	b.watcher.close()
	var first error
	for _, l := range leases {
		first = cmp.Or(first, l.Release(context.Background()))
	}
	return first
}
