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

// A process may be stopped while it has a gate. Others get an error that names it, List goes on with
// the keys of other gates, and no lock file is removed: so a lock never has two holders.
func TestAStuckGateIsNamedAndHidesNoOtherKey(t *testing.T) {
	b := open(t, t.TempDir())
	l := acquire(t, b, request("k"))
	own, want := b.files("k"), 0
	for i := range 32 {
		acquire(t, b, request(fmt.Sprint(i)))
		if b.files(fmt.Sprint(i)).gate != own.gate {
			want++
		}
	}
	b.patience = 50 * time.Millisecond
	gate, err := os.Open(own.gate)
	must(t, err)
	defer gate.Close() //nolint:errcheck // it was only read
	stuck := &lock{gate}
	if ok, err := stuck.try(driver.Shared); !ok || err != nil { // flock -s
		t.Fatalf("gate: %t, %v", ok, err)
	}
	if _, err := b.Acquire(t.Context(), request("k")); err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), own.gate) {
		t.Errorf("Acquire without the gate: %v", err)
	}
	listed, start := 0, time.Now()
	err = b.List(t.Context(), "", func(*driver.State) bool { listed++; return true })
	if listed != want || err == nil || !strings.Contains(err.Error(), own.gate) {
		t.Errorf("List: %d of %d keys in %v, %v", listed, want, time.Since(start), err)
	}
	if err := b.Break(t.Context(), "k", driver.Holder{Fence: l.grant.Fence}); err == nil || errors.Is(err, driver.ErrLost) || !strings.Contains(err.Error(), own.gate) {
		t.Errorf("Break without the gate: %v", err)
	}
	release(t, l) // needs no gate, and the lock file is still there
	b.clean(time.Now().Add(time.Minute))
	if _, err := os.Stat(own.lock); err != nil {
		t.Errorf("it was removed without the gate, by which another process may be taking the lock: %v", err)
	}
	stuck.unlock()
	release(t, acquire(t, b, request("k")))
}
