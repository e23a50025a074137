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

// watcher hears of releases by any process through inotify(7): a holder has the
// key's state open for writing, and nobody else has, so that its closing, by a release
// or by the kernel when the process died, tells that the lock may be free. There is one
// inotify instance and one goroutine while anybody watches, and none else.
type watcher struct {
	mu     sync.Mutex
	events *os.File // nil: nobody watches
	keys   map[int32]*watched
	closed bool
}

// watched is a key's state file.
type watched struct {
	path     string
	channels map[chan struct{}]struct{}
	echo     *time.Timer
}

// echoAfter is when a signal is repeated: a killed process's state may be closed just
// before its lock.
const echoAfter = 5 * time.Millisecond

// Watch tells when a holder of key has gone, in this process or another. (Not when it
// has left its lock to a command that inherited it, and that exits: poll, too.)
//
// It fails where the user's inotify instances are used up; then poll.
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
	path := names(p, b.prefix+key).state
	f, err := p.open(path, os.O_RDONLY) // O_RDWR would be a signal to others, when it is closed
	if errors.Is(err, fs.ErrNotExist) {
		f, err = p.open(path, os.O_RDWR)
	}
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	return b.watcher.add(ctx, path)
}

func (w *watcher) add(ctx context.Context, path string) (<-chan struct{}, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, driver.ErrClosed
	}
	if err := w.start(); err != nil {
		return nil, err
	}
	wd, err := watchFile(w.events, path)
	if err != nil {
		w.stopIfIdle()
		return nil, fmt.Errorf("file: watch %s: %w", path, err)
	}
	k := w.keys[wd]
	if k == nil {
		k = &watched{path: path, channels: map[chan struct{}]struct{}{}}
		w.keys[wd] = k
	}
	ch := make(chan struct{}, 1)
	k.channels[ch] = struct{}{}
	context.AfterFunc(ctx, func() { w.remove(wd, k, ch) })
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
	w.events = os.NewFile(uintptr(fd), "inotify")
	w.keys = map[int32]*watched{}
	go w.listen(w.events, w.keys)
	return nil
}

func (w *watcher) remove(wd int32, k *watched, ch chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(k.channels, ch)
	if len(k.channels) > 0 || w.keys[wd] != k {
		return
	}
	delete(w.keys, wd)
	if k.echo != nil {
		k.echo.Stop()
	}
	unwatchFile(w.events, wd)
	w.stopIfIdle()
}

func (w *watcher) stopIfIdle() {
	if w.events != nil && len(w.keys) == 0 {
		_ = w.events.Close() // ends listen
		w.events, w.keys = nil, nil
	}
}

// close ends the instance and wakes everybody once more.
func (w *watcher) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for wd, k := range w.keys {
		k.wake()
		if k.echo != nil {
			k.echo.Stop()
		}
		delete(w.keys, wd)
	}
	w.stopIfIdle()
}

// listen passes events on until the instance is closed.
func (w *watcher) listen(events *os.File, keys map[int32]*watched) {
	buf := make([]byte, 4096)
	for {
		n, err := events.Read(buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				w.fail(events)
			}
			return
		}
		w.mu.Lock()
		for b := buf[:n]; len(b) >= syscall.SizeofInotifyEvent; {
			wd := int32(binary.NativeEndian.Uint32(b))
			mask := binary.NativeEndian.Uint32(b[4:])
			b = b[min(len(b), syscall.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))):]
			if mask&syscall.IN_Q_OVERFLOW != 0 {
				for _, k := range keys {
					w.signal(k)
				}
			} else if k := keys[wd]; k != nil {
				w.signal(k)
			}
		}
		w.mu.Unlock()
	}
}

// fail wakes everybody where events cannot be read any more, and starts anew with the
// next watch.
func (w *watcher) fail(events *os.File) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.events != events {
		return
	}
	for wd, k := range w.keys {
		k.wake()
		delete(w.keys, wd)
	}
	w.stopIfIdle()
}

// signal wakes the watchers of k, now and once more.
func (w *watcher) signal(k *watched) {
	k.wake()
	if k.echo != nil {
		k.echo.Reset(echoAfter)
		return
	}
	k.echo = time.AfterFunc(echoAfter, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		k.wake()
	})
}

func (k *watched) wake() {
	for ch := range k.channels {
		select {
		case ch <- struct{}{}:
		default: // there is one already
		}
	}
}

// watchFile and unwatchFile leave the instance in the poller's care, as File.Fd would
// not.
func watchFile(events *os.File, path string) (int32, error) {
	conn, err := events.SyscallConn()
	if err != nil {
		return 0, err
	}
	wd := 0
	if cerr := conn.Control(func(fd uintptr) {
		wd, err = syscall.InotifyAddWatch(int(fd), path, syscall.IN_CLOSE_WRITE|syscall.IN_DELETE_SELF|syscall.IN_MOVE_SELF|syscall.IN_DONT_FOLLOW)
	}); cerr != nil {
		return 0, cerr
	}
	return int32(wd), err
}

func unwatchFile(events *os.File, wd int32) {
	if conn, err := events.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) {
			_, _ = syscall.InotifyRmWatch(int(fd), uint32(wd)) // it may have gone with its file
		})
	}
}
