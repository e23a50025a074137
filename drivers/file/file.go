package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
)

const features = driver.FeatureShared | driver.FeatureFencing | driver.FeatureSession

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

// parse reads file:, file:/folder and file:///folder, and the parameter mode.
func parse(rawURL string) (*Options, error) {
	rest, ok := strings.CutPrefix(rawURL, "file:")
	if !ok {
		return nil, driver.Invalid("URL", "must be file: or file:///folder")
	}
	path, query, _ := strings.Cut(rest, "?")
	p := dsn.Query(query)
	mode, given := p.String("mode", ""), p.Has("mode")
	if err := p.Err(); err != nil {
		return nil, err
	}
	o := &Options{}
	if given {
		bits, err := strconv.ParseUint(mode, 8, 32)
		if err != nil || bits == 0 {
			return nil, driver.Invalid(`parameter "mode"`, "must be octal, 0600, 0660 or 0666 say")
		}
		o.Mode = fs.FileMode(bits)
	}
	if path == "" {
		return o, nil
	}
	fragment := strings.Contains(path, "#")
	path, err := url.PathUnescape(strings.TrimPrefix(path, "//"))
	switch {
	case err != nil || fragment || strings.Contains(path, "\x00"):
		return nil, driver.Invalid("URL", "is not percent-encoded correctly ('#' is %%23, '?' is %%3F, '%%' is %%25)")
	case !strings.HasPrefix(path, "/"):
		return nil, driver.Invalid("URL", "names no absolute folder: it must be file:///folder, with three slashes, or file: alone")
	}
	if runtime.GOOS == "windows" {
		path = strings.TrimPrefix(path, "/") // file:///C:/folder
	}
	o.Folder = filepath.FromSlash(path)
	return o, nil
}

// Options are the settings of New. The zero Options are those of "file:".
type Options struct {
	// Folder is where the lock files are, an absolute path; empty: the user's own
	// state folder.
	Folder string
	// Mode is that of the files that are made: 0600 is for one user, 0660 for the
	// folder's group, 0666 for all. Zero follows the folder: who may write in it may
	// share its locks. Only a Folder of your own can be shared.
	Mode fs.FileMode
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
	checker *time.Timer // looks whether the leases still stand; nil: there were none yet
	watcher watcher
}

var (
	_ driver.Backend   = (*Backend)(nil)
	_ driver.Inspector = (*Backend)(nil)
)

// New returns a backend of o's folder; nil stands for the zero Options. The folder is
// made at the first use, if it is not there. ErrInvalid names an option that cannot be
// honoured.
func New(o *Options) (*Backend, error) {
	if o == nil {
		o = &Options{}
	}
	f := folder{path: o.Folder, mode: o.Mode}
	switch {
	case o.Mode != 0 && !validMode(o.Mode):
		return nil, driver.Invalid("mode", "%#o is not one of 0600, 0660, 0606 and 0666: all users of a lock read and write its files", uint32(o.Mode))
	case o.Folder == "" && o.Mode&0o077 != 0:
		return nil, driver.Invalid("mode", "%#o needs a folder of its own, file:///folder: the default one is private to its user", uint32(o.Mode))
	case o.Folder == "":
		f.path, f.fallback = defaultFolder(runtime.GOOS, os.Getenv, os.Geteuid())
		f.private = true
	}
	if !filepath.IsAbs(f.path) {
		return nil, driver.Invalid("folder", "is not an absolute path")
	}
	f.path = filepath.Clean(f.path)
	b := &Backend{
		folder: f, prefix: o.Prefix, boot: bootID(), patience: gatePatience,
		leases: map[*Lease]struct{}{},
	}
	b.cleaner.b = b
	return b, nil
}

func validMode(m fs.FileMode) bool {
	return m == 0o600 || m == 0o660 || m == 0o606 || m == 0o666
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

// Acquire makes one attempt, which takes microseconds and, at times, one write to
// the disk. It never waits for a holder. The lease is a *Lease.
//
// *RefusedError says what is wrong with the folder or a file in it, and what to do.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	if err := b.Info().Check(b.prefix, req); err != nil {
		return nil, err
	}
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	l, err := b.attempt(ctx, req)
	if err != nil {
		return nil, err
	}
	if err := b.keep(l); err != nil {
		return nil, err
	}
	if l.fresh {
		b.cleaner.made(l.place)
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

// keep notes the lease, so that Close finds it, and so that no garbage collection
// closes its descriptor and with it the lock.
func (b *Backend) keep(l *Lease) error {
	b.mu.Lock()
	if !b.closed {
		b.leases[l] = struct{}{}
		if len(b.leases) == 1 {
			b.checkLater()
		}
		b.mu.Unlock()
		return nil
	}
	b.mu.Unlock()
	_ = l.Release(context.Background()) // nothing was promised to anybody yet
	return driver.ErrClosed
}

// checkEvery is how often leases look whether their lock files are still there.
const checkEvery = time.Second

// checkLater sets the timer for the next look. b.mu is held.
func (b *Backend) checkLater() {
	switch {
	case !removable:
	case b.checker == nil:
		b.checker = time.AfterFunc(checkEvery, b.checkLeases)
	default:
		b.checker.Reset(checkEvery)
	}
}

// checkLeases tells the holders whose lock file is not there any more.
func (b *Backend) checkLeases() {
	b.mu.Lock()
	leases := make([]*Lease, 0, len(b.leases))
	for l := range b.leases {
		leases = append(leases, l)
	}
	b.mu.Unlock()
	for _, l := range leases {
		if l.replaced() {
			l.lose()
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.leases) > 0 && !b.closed {
		b.checkLater()
	}
}

func (b *Backend) forget(l *Lease) {
	b.mu.Lock()
	delete(b.leases, l)
	b.mu.Unlock()
}

// attempts bounds how often a file is opened anew because it was replaced, or made
// by somebody else, at that instant.
const attempts = 20

// attempt takes the lock of req's key, or says why not.
func (b *Backend) attempt(ctx context.Context, req *driver.Request) (*Lease, error) {
	p, err := b.folder.enter()
	if err != nil {
		return nil, err
	}
	n := names(p, b.prefix+req.Key)
	for i := range attempts {
		l, err := p.openLock(n.lock, os.O_RDWR)
		if err != nil {
			return nil, err
		}
		ok, err := l.try(req.Mode)
		if err == nil && !ok {
			err = b.tryAgain(ctx, p, n, l, req)
		}
		if errors.Is(err, driver.ErrHeld) && i < attempts-1 && noState(ctx, n) {
			l.close()
			continue
		}
		if err != nil {
			l.close()
			return nil, refused(err, n.lock)
		}
		if !l.current(n.lock) { // somebody removed it meanwhile: it excludes nobody
			l.close()
			continue
		}
		lease, err := b.grant(ctx, p, n, l, req)
		if !errors.Is(err, errReplaced) {
			return lease, err
		}
	}
	return nil, fmt.Errorf("file: %s: keeps being replaced", n.lock)
}

// noState reports whether a key that is held has no state, and waits for a moment if so: its
// first holder is about to make one, or its files are being removed.
func noState(ctx context.Context, n paths) bool {
	if _, err := os.Lstat(n.state); !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	select {
	case <-time.After(time.Millisecond):
		return true
	case <-ctx.Done():
		return false
	}
}

// gatePatience is for how long a gate is waited for that is only needed to tell
// what is going on. On a busy machine whoever is behind it may not run for a while; to
// give up before must say "held" of a lock that somebody looks at.
const gatePatience = 3 * time.Second

// tryAgain reads which owner has the lock, for the verdict, and tries once more behind the
// gate: nobody looks at a lock by taking it there, nor removes it, so that a lock that cannot be
// had is held. No error means that it was granted after all.
func (b *Backend) tryAgain(ctx context.Context, p *place, n paths, l *lock, req *driver.Request) error {
	held := &driver.HeldError{Server: b.boot}
	state, err := p.open(n.state, os.O_RDONLY)
	if err == nil {
		defer state.Close() //nolint:errcheck // it was only read
		gate, err := enterGate(ctx, p, n, state, b.patience)
		if err != nil {
			return err
		}
		if gate != nil {
			defer gate.unlock()
		}
		if r := read(state).latest(); r != nil && r.held {
			held.Holder, held.Since = r.owner, time.UnixMicro(r.since)
		}
	}
	if full(err) {
		return err
	}
	ok, err := l.try(req.Mode)
	if err == nil && !ok {
		held.Clock = time.Now().Round(0)
		return held
	}
	return err
}

// enterGate locks the gate of a key. A process that may not be alone goes through the gate to
// change the state, and so does one that takes the lock only to look at it. nil, nil: it cannot be had in
// time, since a process stopped inside of it, say.
func enterGate(ctx context.Context, p *place, n paths, state *os.File, patience time.Duration) (*lock, error) {
	gate, err := p.gate(n, state)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(patience)
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		ok, err := gate.try(driver.Exclusive)
		if ok || err != nil {
			return gate, err
		}
		if time.Now().After(end) {
			return nil, nil
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// grant gives the holder of l its token, and writes its name for others. It frees l on any
// error.
func (b *Backend) grant(ctx context.Context, p *place, n paths, l *lock, req *driver.Request) (*Lease, error) {
	lease := &Lease{backend: b, place: p, paths: n, lock: l, mode: req.Mode}
	if err := lease.begin(ctx, req); err != nil {
		lease.drop()
		if errors.Is(err, errReplaced) {
			return nil, err
		}
		return nil, refused(err, n.state)
	}
	return lease, nil
}

// Close releases all leases, since their session ends, and stops all watching. A lease
// that was detached is no longer the backend's.
func (b *Backend) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	leases := b.leases
	b.leases = map[*Lease]struct{}{}
	if b.checker != nil {
		b.checker.Stop()
	}
	b.mu.Unlock()

	for l := range leases {
		l.lose()
	}
	b.cleaner.close()
	b.watcher.close()
	var first error
	for l := range leases {
		if err := l.Release(context.Background()); err != nil && first == nil {
			first = err
		}
	}
	return first
}
