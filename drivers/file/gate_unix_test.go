//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
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

func TestNobodyLooksWithoutTheGate(t *testing.T) {
	b := open(t, t.TempDir())
	release(t, acquire(t, b, request("k")))
	leave := looker(t, b)
	done := make(chan error, 1)
	go func() {
		_, err := b.Lookup(t.Context(), "k")
		done <- err
	}()
	select {
	case err := <-done:
		t.Errorf("a second look did not wait: %v", err)
	case <-time.After(20 * time.Millisecond):
		leave()
		if err := <-done; err != nil {
			t.Error(err)
		}
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

// A process that had the old file open when it was removed must not become a second holder.
func TestARemovedLockFileLetsNobodyInTwice(t *testing.T) {
	t.Parallel()
	b := open(t, t.TempDir())
	var inside atomic.Int32
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for granted := 0; granted < 200; {
				lease, err := b.Acquire(t.Context(), request("k"))
				if errors.Is(err, driver.ErrHeld) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				granted++
				if inside.Add(1) != 1 {
					t.Error("two holders")
				}
				l := lease.(*Lease)
				inside.Add(-1)
				if granted%2 == 0 { // the last step of a holder's clean-up
					if err := os.Remove(l.paths.lock); err != nil {
						t.Error(err)
					}
				}
				if err := l.Release(t.Context()); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
