package file

import (
	"context"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// The files of keys that are free and have not been used for a while are removed, so that a
// folder does not grow for ever if a program always uses new keys. This is safe for these
// reasons:
//
//   - The remover has the key's gate and its lock, exclusively. So the key has no holder, and
//     requests are not refused: they wait for the gate, as they do during a Lookup.
//   - The state file is removed before the lock file. A request that locked a removed file
//     notices it (lock.current) and begins anew.
//   - Before a state file is removed, the folder's high-water mark is on the disk, at or above
//     every token of that state. A new state begins above the mark. So tokens rise even if the
//     clock was set back meanwhile.
const (
	// unused is the time without use after which a key's files are removed. A request that
	// waits for a key is signalled or polls within about a second.
	unused = 10 * time.Second
	// someKeys is how many keys are examined after each new key, for programs that end before
	// cleanAfter.
	someKeys = 8
	// cleanAfter is the time from a new key to the next cleaning of the whole folder.
	// cleanRarely is the longest time between two cleanings that find nothing to remove.
	cleanAfter  = 15 * time.Second
	cleanRarely = 10 * time.Minute
)

// markName is the name of the file of the high-water mark. No key's file has this name.
const markName = ".high-water"

// cleaner removes the files of keys that are not used any more.
type cleaner struct {
	b *Backend

	mu     sync.Mutex
	timer  *time.Timer
	armed  bool
	pause  time.Duration // until the next run
	names  []string      // keys that some will return next
	closed bool
	runs   sync.WaitGroup
}

// made is called after the grant of a new key.
func (t *cleaner) made(p *place) {
	if !removable {
		return
	}
	for _, name := range t.some(p) {
		t.b.removeUnused(p, name, time.Now())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pause = cleanAfter
	t.arm()
}

// some returns the next keys to examine, in random order. It reads the folder only when all
// keys were examined, so that a large folder costs no more.
func (t *cleaner) some(p *place) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.names) == 0 {
		t.names = keysOf(p.path)
		rand.Shuffle(len(t.names), func(i, j int) { t.names[i], t.names[j] = t.names[j], t.names[i] })
	}
	n := min(someKeys, len(t.names))
	next := t.names[:n]
	t.names = t.names[n:]
	return next
}

// arm sets the timer. t.mu is held.
func (t *cleaner) arm() {
	if t.armed || t.closed {
		return
	}
	t.armed = true
	if t.timer == nil {
		t.timer = time.AfterFunc(t.pause, t.run)
	} else {
		t.timer.Reset(t.pause)
	}
}

// run examines the whole folder, and sets the timer again while there are keys.
func (t *cleaner) run() {
	t.mu.Lock()
	t.armed = false
	if t.closed {
		t.mu.Unlock()
		return
	}
	t.runs.Add(1)
	t.mu.Unlock()
	defer t.runs.Done()

	left, removed := t.b.clean(time.Now())
	t.mu.Lock()
	defer t.mu.Unlock()
	if removed == 0 {
		t.pause = min(2*t.pause, cleanRarely)
	} else {
		t.pause = cleanAfter
	}
	if left > 0 {
		t.arm()
	}
}

// close ends the timer, and waits for a run.
func (t *cleaner) close() {
	t.mu.Lock()
	t.closed = true
	if t.timer != nil {
		t.timer.Stop()
	}
	t.mu.Unlock()
	t.runs.Wait()
}

// clean removes every key of the folder that is free and was unused for a while at now.
func (b *Backend) clean(now time.Time) (left, removed int) {
	p, err := b.folder.visit()
	if err != nil {
		return 0, 0
	}
	for _, name := range keysOf(p.path) {
		switch {
		case b.usable(context.Background()) != nil:
			return 0, removed
		case b.removeUnused(p, name, now):
			removed++
		default:
			left++
		}
	}
	return left, removed
}

// keysOf returns the names of a folder's keys.
func keysOf(folder string) []string {
	d, err := os.Open(folder)
	if err != nil {
		return nil
	}
	defer d.Close() //nolint:errcheck // it was only read
	files, _ := d.Readdirnames(-1)
	keys := files[:0]
	for _, f := range files {
		if name, ok := strings.CutSuffix(f, stateSuffix); ok && !strings.HasPrefix(name, ".") {
			keys = append(keys, name)
		}
	}
	return keys
}

// removeUnused removes the files of a key, if it is free and was not used for a while, and
// reports whether it did. It never waits. After an error, such as for another user's file in a
// shared folder, the files stay.
func (b *Backend) removeUnused(p *place, name string, now time.Time) bool {
	n := pathsOf(p, name)
	if fi, err := os.Lstat(n.state); err != nil || now.Sub(fi.ModTime()) < unused {
		return false
	}
	state, err := p.open(n.state, os.O_RDONLY)
	if err != nil {
		return false
	}
	defer state.Close() //nolint:errcheck // it was only read
	gate, err := p.gate(n, state)
	if err != nil {
		return false
	}
	if ok, err := gate.try(driver.Exclusive); !ok || err != nil {
		return false
	}
	defer gate.unlock()
	lock, err := p.openLock(n.lock, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		lock, err = p.openLock(n.lock, os.O_RDWR) // its remover was killed before it finished
	}
	if err != nil {
		return false
	}
	defer lock.close()
	if ok, err := lock.try(driver.Exclusive); !ok || err != nil {
		return false
	}
	defer lock.unlock()
	if !lock.current(n.lock) || !gate.current(n.state) {
		return false
	}
	limit, err := read(state).counter("")
	if err != nil || limit > uint64(max(0, now.UnixMicro())) { // its token is of the last seconds, or of a clock that was ahead
		return false
	}
	if raiseMark(p, limit, now) != nil || os.Remove(n.state) != nil {
		return false
	}
	return os.Remove(n.lock) == nil
}

// mark returns the high-water mark of the folder; zero: nothing was ever removed.
func mark(p *place) (uint64, error) {
	f, err := p.open(filepath.Join(p.path, markName), os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close() //nolint:errcheck // it was only read
	m, err := read(f).counter("")
	if err != nil {
		return 0, refused(err, f.Name())
	}
	return m, nil
}

// raiseMark ensures that the mark is at least to, and on the disk. It raises the mark to now,
// so that one write serves many keys.
func raiseMark(p *place, to uint64, now time.Time) error {
	f, err := p.open(filepath.Join(p.path, markName), os.O_RDWR)
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // it was synced
	own := newLock(f)
	if ok, err := own.try(driver.Exclusive); !ok || err != nil {
		return errors.Join(err, errors.New("another process is raising the mark"))
	}
	defer own.unlock()
	m := read(f)
	at, err := m.counter("")
	if err != nil || at >= to && at > 0 {
		return err
	}
	r := record{fence: max(to, uint64(max(0, now.UnixMicro()))), confirmed: true}
	r.limit = r.fence
	if last := m.latest(); last != nil {
		r.seq = last.seq + 1
	}
	older := 0
	if m.at() == 0 {
		older = 1
	}
	if err := write(f, older, &r); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return syncFolder(p.path)
}

// seed makes a new state begin above the folder's mark. It reports whether the state is new.
func seed(p *place, state *os.File, r *record) (bool, error) {
	if fi, err := state.Stat(); err != nil || fi.Size() > blockSize {
		return false, err
	}
	if read(state).latest() != nil {
		return false, nil
	}
	m, err := mark(p)
	if err != nil || m == 0 {
		return true, err
	}
	return true, write(state, 0, &record{seq: 1, fence: m, limit: m, confirmed: true, owner: r.owner, key: r.key})
}
