package file

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
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
	events *os.File            // nil: there is no watch
	fd     int                 // its descriptor: File.Fd would take it out of Go's poller
	keys   map[string]*watched // by path
	files  map[int32]*watched  // the same ones by wd
	closed bool
}

// watched is a key's lock file and its watchers.
type watched struct {
	path     string
	wd       int32
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
	wd, err := w.watch(path)
	if errors.Is(err, fs.ErrNotExist) {
		var f *os.File
		if f, err = p.open(path, os.O_RDWR); err == nil {
			_ = f.Close() // it was not written to
			wd, err = w.watch(path)
		}
	}
	if err != nil {
		return nil, refused(err, path)
	}
	k := w.keys[path]
	if k == nil {
		k = &watched{path: path, wd: wd, channels: map[chan struct{}]struct{}{}}
		w.keys[path], w.files[wd] = k, k
	} else if k.wd != wd { // the file is a new one, and the old one's last event was not read yet
		w.signal(k)
	}
	ch := make(chan struct{}, 1)
	k.channels[ch] = struct{}{}
	context.AfterFunc(ctx, func() { w.remove(k, ch) })
	return ch, nil
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
	w.fd, w.events = fd, os.NewFile(uintptr(fd), "inotify")
	w.keys, w.files = map[string]*watched{}, map[int32]*watched{}
	go w.listen()
	return nil
}

func (w *watcher) remove(k *watched, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(k.channels, ch)
	if len(k.channels) > 0 || w.keys[k.path] != k {
		return
	}
	delete(w.keys, k.path)
	w.unwatch(k)
}

// close ends the instance and wakes all watchers once more.
func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, k := range w.keys {
		k.wake()
	}
	clear(w.keys)
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
				for _, k := range w.keys {
					w.signal(k)
				}
			} else if k := w.files[wd]; k != nil {
				w.signal(k)
			}
		}
		w.mu.Unlock()
	}
}

// signal wakes the watchers of k, now and once more after echoAfter.
func (w *watcher) signal(k *watched) {
	w.follow(k)
	k.wake()
	if k.echo != nil {
		k.echo.Reset(echoAfter)
		return
	}
	k.echo = time.AfterFunc(echoAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.follow(k)
		k.wake()
	})
}

// follow watches the file that has the path now, if it is another one. If there is none, the next
// attempt makes it.
func (w *watcher) follow(k *watched) {
	if w.keys[k.path] != k { // nobody watches any more
		return
	}
	wd, err := w.watch(k.path)
	if err != nil || wd == k.wd {
		return
	}
	w.unwatch(k)
	k.wd = wd
	w.files[wd] = k
}

func (k *watched) wake() {
	for ch := range k.channels {
		select {
		case ch <- struct{}{}:
		default: // there is a value already
		}
	}
}

// watch watches a file; the instance is open, and w.mu is held.
func (w *watcher) watch(path string) (int32, error) {
	wd, err := syscall.InotifyAddWatch(w.fd, path, syscall.IN_CLOSE_WRITE|syscall.IN_ATTRIB|syscall.IN_MOVE_SELF|syscall.IN_DONT_FOLLOW)
	if err != nil {
		return 0, fmt.Errorf("watch %s: %w", path, err)
	}
	return int32(wd), nil
}

// unwatch ends the watch of a key's file, as watch.
func (w *watcher) unwatch(k *watched) {
	delete(w.files, k.wd)
	_, _ = syscall.InotifyRmWatch(w.fd, uint32(k.wd)) // it may have been removed with its file
}
