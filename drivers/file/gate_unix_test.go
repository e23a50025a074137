//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// looker stops where Lookup does its work: it has the gate of key k, and its lock.
func looker(t *testing.T, b *Backend) (leave func()) {
	t.Helper()
	p, err := b.folder.enter()
	if err != nil {
		t.Fatal(err)
	}
	n := names(p, "k")
	gate, err := b.enter(t.Context(), p, n)
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.openLock(n.lock, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := l.try(driver.Exclusive); !ok || err != nil {
		t.Fatalf("lock: %t, %v", ok, err)
	}
	return func() {
		l.free()
		gate.free()
	}
}

func TestWhoIsLookedAtIsNotRefused(t *testing.T) {
	b := open(t, t.TempDir())
	b.patience = time.Minute // the look may be long on a busy machine
	release(t, acquire(t, b, request("k")))
	for _, mode := range []driver.Mode{driver.Exclusive, driver.Shared} {
		leave := looker(t, b)
		time.AfterFunc(5*time.Millisecond, leave)
		r := request("k")
		r.Mode = mode
		release(t, acquire(t, b, r))
	}
}

// A process may be stopped while it has a gate. Others get an error that names it, and List goes on
// with the keys of other gates.
func TestAStuckGateIsNamedAndHidesNoOtherKey(t *testing.T) {
	b := open(t, t.TempDir())
	l := acquire(t, b, request("k"))
	want := 0
	for i := range 32 {
		if other := acquire(t, b, request(fmt.Sprint(i))); other.paths.gate != l.paths.gate {
			want++
		}
	}
	b.patience = 50 * time.Millisecond
	gate, err := os.Open(l.paths.gate)
	if err != nil {
		t.Fatal(err)
	}
	defer gate.Close() //nolint:errcheck // it was only read
	stuck := &lock{gate}
	if ok, err := stuck.try(driver.Shared); !ok || err != nil { // flock -s
		t.Fatalf("gate: %t, %v", ok, err)
	}
	if _, err := b.Acquire(t.Context(), request("k")); err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), l.paths.gate) {
		t.Errorf("Acquire without the gate: %v", err)
	}
	listed, start := 0, time.Now()
	err = b.List(t.Context(), "", func(*driver.State) bool { listed++; return true })
	if listed != want || err == nil || !strings.Contains(err.Error(), l.paths.gate) {
		t.Errorf("List: %d of %d keys in %v, %v", listed, want, time.Since(start), err)
	}
	release(t, l) // needs no gate
	stuck.unlock()
	release(t, acquire(t, b, request("k")))
}
