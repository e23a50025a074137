package file

import (
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// The lock files of keys that are free and have not been used for a while are removed, so that a
// folder does not grow for ever if a program always uses new keys. The remover has the key's gate
// and its lock, exclusively: the key has no holder, and requests wait for the gate, as they do
// during a Lookup. Tokens go on, because their counter is in the gate.
const (
	// unused is the time without use after which a key's file is removed. A request that waits
	// for a key is signalled or polls within about a second.
	unused = 10 * time.Second
	// someKeys is how many keys are examined after each new key, so that a folder in which keys are
	// used once has about as many files as keys were made within the time unused.
	someKeys = 8
)

// cleaner has the names of the keys that are examined next.
type cleaner struct {
	mu    sync.Mutex
	names []string
}

// cleanSome is called after the grant of a new key. It examines keys in random order, and reads the
// folder only when all were examined, so that a large folder costs no more.
func (b *Backend) cleanSome(p *place) {
	if !removable {
		return
	}
	c := &b.cleaner
	c.mu.Lock()
	if len(c.names) == 0 {
		c.names = keysOf(p.path)
		rand.Shuffle(len(c.names), func(i, j int) { c.names[i], c.names[j] = c.names[j], c.names[i] })
	}
	n := min(someKeys, len(c.names))
	next := c.names[:n]
	c.names = c.names[n:]
	c.mu.Unlock()
	for _, name := range next {
		b.removeUnused(p, name, time.Now())
	}
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
		if name, ok := strings.CutSuffix(f, lockSuffix); ok && !strings.HasPrefix(name, ".") {
			keys = append(keys, name)
		}
	}
	return keys
}

// removeUnused removes the lock file of a key, if it is free and was not used for a while, and
// reports whether it did. It never waits. After an error, such as for another user's file in a
// shared folder, the file stays.
func (b *Backend) removeUnused(p *place, name string, now time.Time) bool {
	n := pathsOf(p, name)
	if fi, err := os.Lstat(n.lock); err != nil || now.Sub(fi.ModTime()) < unused {
		return false
	}
	gate, err := p.openGate(n.gate)
	if err != nil {
		return false
	}
	defer gate.free()
	if ok, err := gate.try(driver.Exclusive); !ok || err != nil || !gate.current(n.gate) {
		return false
	}
	l, _, held, err := probe(p, n.lock)
	if l == nil || err != nil {
		return false
	}
	defer l.free()
	if held || !l.current(n.lock) {
		return false
	}
	return os.Remove(n.lock) == nil
}
