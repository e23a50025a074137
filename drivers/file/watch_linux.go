package file

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/redlock-go/redlock/driver"
)

var _ driver.Watcher = (*Backend)(nil)

// watcher notices releases by any process through inotify(7). Only a holder has the key's lock file
// open for writing. So when the file is closed, by a release or by the kernel after the process
// died, the lock may be free; and when it is removed, which Break does, too. Then the watch moves
// to the next file of this name. There is one inotify instance and one goroutine from the first
// watch until Close.
type watcher struct {
	mu     sync.Mutex
	events *os.File           // nil: there is no watch
	fd     int                // its descriptor: File.Fd would take it out of Go's poller
	files  map[int32]*watched // by the watch descriptor
	closed bool
}

// watched is a lock file and the watchers of its key.
type watched struct {
	place    *place
	path     string
	channels map[chan struct{}]struct{}
	echo     *time.Timer
}

// echoAfter is the pause before a signal is repeated: the kernel tells of a killed process's
// closed file just before it frees the lock.
const echoAfter = 5 * time.Millisecond

// Watch signals when a holder of key releases it or dies, in this process or another. (It does
// not signal the exit of a command that inherited the lock: poll as well.)
//
// It fails if the user's inotify instances are used up; then poll.
func (b *Backend) Watch(ctx context.Context, key string) (<-chan struct{}, error) {
	if key == "" {
		return nil, driver.Invalid("key", "is empty")
	}
	if err := b.usable(ctx); err != nil {
		return nil, err
	}
	p, err := b.folder.enter()
	if err != nil {
		return nil, err
	}
	return b.watcher.add(ctx, p, names(p, b.prefix+key).lock)
}

func (w *watcher) add(ctx context.Context, p *place, path string) (<-chan struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, driver.ErrClosed
	}
	if err := w.start(); err != nil {
		return nil, err
	}
	k, err := w.watch(p, path)
	if err != nil {
		return nil, refused(err, path)
	}
	ch := make(chan struct{}, 1)
	k.channels[ch] = struct{}{}
	context.AfterFunc(ctx, func() { w.remove(ch) })
	return ch, nil
}

// watch returns the file that has the path now, and makes it if there is none; the instance is open,
// and w.mu is held.
func (w *watcher) watch(p *place, path string) (*watched, error) {
	const events = syscall.IN_CLOSE_WRITE | syscall.IN_ATTRIB | syscall.IN_MOVE_SELF | syscall.IN_DONT_FOLLOW
	wd, err := syscall.InotifyAddWatch(w.fd, path, events)
	if errors.Is(err, fs.ErrNotExist) {
		var f *os.File
		if f, err = p.open(path, os.O_RDWR); err == nil {
			_ = f.Close() // it was not written to
			wd, err = syscall.InotifyAddWatch(w.fd, path, events)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", path, err)
	}
	k := w.files[int32(wd)]
	if k == nil {
		k = &watched{place: p, path: path, channels: map[chan struct{}]struct{}{}}
		w.files[int32(wd)] = k
	}
	return k, nil
}

// start opens the instance, unless it is open.
func (w *watcher) start() error {
	if w.events != nil {
		return nil
	}
	fd, err := syscall.InotifyInit1(syscall.IN_CLOEXEC | syscall.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("file: this user's inotify instances or this process's files are used up (fs.inotify.max_user_instances, ulimit -n): %w", err)
	}
	w.fd, w.events, w.files = fd, os.NewFile(uintptr(fd), "inotify"), map[int32]*watched{}
	go w.listen()
	return nil
}

func (w *watcher) remove(ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for wd, k := range w.files {
		delete(k.channels, ch)
		w.unwatch(wd, k)
	}
}

// unwatch ends the watch of a file that nobody waits for.
func (w *watcher) unwatch(wd int32, k *watched) {
	if len(k.channels) == 0 {
		delete(w.files, wd)
		_, _ = syscall.InotifyRmWatch(w.fd, uint32(wd)) // it may have been removed with its file
	}
}

// close ends the instance and wakes all watchers once more.
func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, k := range w.files {
		k.wake()
	}
	clear(w.files)
	if w.events != nil {
		_ = w.events.Close() // ends listen
	}
}

// listen passes events on until the instance is closed.
func (w *watcher) listen() {
	buf := make([]byte, 4096)
	for {
		n, err := w.events.Read(buf)
		if err != nil {
			return
		}
		w.mu.Lock()
		for b := buf[:n]; len(b) >= syscall.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			b = b[min(len(b), syscall.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))):]
			if mask&syscall.IN_Q_OVERFLOW != 0 {
				for wd, k := range w.files {
					w.signal(wd, k)
				}
			} else if k := w.files[wd]; k != nil {
				w.signal(wd, k)
			}
		}
		w.mu.Unlock()
	}
}

// signal wakes the watchers of a file, now and once more after echoAfter.
func (w *watcher) signal(wd int32, k *watched) {
	k.wake()
	if k.echo != nil {
		k.echo.Reset(echoAfter)
		return
	}
	k.echo = time.AfterFunc(echoAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.files[wd] == k { // somebody watches still
			w.follow(wd, k).wake()
		}
	})
}

// follow moves the watchers of a file to the one that has its path now, and returns that. If it
// cannot be watched they poll.
func (w *watcher) follow(wd int32, k *watched) *watched {
	next, err := w.watch(k.place, k.path)
	if err != nil || next == k {
		return k
	}
	maps.Copy(next.channels, k.channels)
	clear(k.channels)
	w.unwatch(wd, k)
	return next
}

func (k *watched) wake() {
	for ch := range k.channels {
		select {
		case ch <- struct{}{}:
		default: // there is a value already
		}
	}
}
