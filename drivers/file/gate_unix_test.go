//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"os"
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
	state, err := p.open(n.state, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	gate, err := enterGate(t.Context(), p, n, state, time.Minute)
	if gate == nil || err != nil {
		t.Fatalf("gate: %v, %v", gate, err)
	}
	l, err := p.openLock(n.lock, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := l.try(driver.Exclusive); !ok || err != nil {
		t.Fatalf("lock: %t, %v", ok, err)
	}
	return func() {
		l.close()
		gate.unlock()
		_ = state.Close() // it was only read
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

// A remover that does not run for a while between the removals of the two files refuses nobody.
func TestASlowRemovalRefusesNobody(t *testing.T) {
	b := open(t, t.TempDir())
	b.patience = time.Minute
	l := acquire(t, b, request("k"))
	n := l.paths
	release(t, l)
	own, err := l.place.openLock(n.lock, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := own.try(driver.Exclusive); !ok || err != nil {
		t.Fatalf("lock: %t, %v", ok, err)
	}
	if err := os.Remove(n.state); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(500*time.Millisecond, func() {
		if err := os.Remove(n.lock); err != nil {
			t.Error(err)
		}
		own.close()
	})
	release(t, acquire(t, b, request("k")))
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

// A process may be stopped while it has the gate. Others still get an answer.
func TestAStuckGateDelaysAVerdictAndNoMore(t *testing.T) {
	b := open(t, t.TempDir())
	b.patience = 50 * time.Millisecond
	release(t, acquire(t, b, request("k")))
	l := acquire(t, b, request("k"))
	state, err := os.Open(l.paths.state)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close() //nolint:errcheck // it was only read
	gate := &lock{state}
	if ok, err := gate.try(driver.Exclusive); !ok || err != nil {
		t.Fatalf("gate: %t, %v", ok, err)
	}
	wantHeld(t, b, request("k"))
	release(t, l)
	if _, err := b.Acquire(t.Context(), request("k")); err == nil || errors.Is(err, driver.ErrHeld) {
		t.Errorf("Acquire without the gate: %v", err)
	}
	gate.unlock()
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
