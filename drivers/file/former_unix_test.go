//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// formerFile writes a counter as the former release did.
func formerFile(t *testing.T, path string, r record) {
	t.Helper()
	var file []byte
	for range 2 {
		line := r.encode()
		line = bytes.Replace(line[:len(line)-len(" crc=00000000\n")], []byte(layout), []byte(former), 1)
		line = fmt.Appendf(line, " crc=%08x\n", crc32.ChecksumIEEE(line))
		file = append(file, append(line, make([]byte, blockSize-len(line))...)...)
		r.seq++
	}
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
}

// formerRefuses checks that the former release, which reads this file, refuses it.
func formerRefuses(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it was only read
	if _, err := read(f, former).counter(""); !errors.Is(err, errLayout) {
		t.Errorf("%s: %v", path, err)
	}
}

// Two releases exclude each other: their locks are on the same file. Tokens rise over the change.
// The former release refuses keys that this one has used, and new keys.
func TestTheFormerLayoutIsTakenOver(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	n := names(&place{path: folder}, "k")
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	formerFile(t, n.state, record{fence: ahead, limit: ahead + reserve, confirmed: true, boot: "b", held: true, since: 7, pid: 8, owner: "web-1/a", key: "k"})
	mark := ahead + uint64(time.Hour/time.Microsecond)
	formerFile(t, filepath.Join(folder, headName), record{fence: mark, limit: mark, confirmed: true})
	p, err := b.folder.enter()
	if err != nil {
		t.Fatal(err)
	}
	l, err := p.openLock(n.lock, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := l.try(driver.Exclusive); !ok || err != nil {
		t.Fatalf("lock: %t, %v", ok, err)
	}
	if h := wantHeld(t, b, request("k")); h.Holder != "web-1/a" {
		t.Errorf("held by %q", h.Holder)
	}
	if s, err := b.Lookup(t.Context(), "k"); err != nil || len(s.Holders) != 1 || s.Holders[0].Fence != ahead {
		t.Errorf("Lookup: %+v, %v", s, err)
	}
	wantErr(t, "Break of a former holder", b.Break(t.Context(), "k", driver.Holder{Fence: ahead}), driver.ErrLost)
	formerRefuses(t, filepath.Join(folder, headName)) // so it makes no new key
	state, err := os.Open(n.state)                    // as a process of the former release may have it
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close() //nolint:errcheck // it was only read
	l.free()

	lease := acquire(t, b, request("k"))
	if f := lease.Grant().Fence; f <= ahead+reserve || f <= mark {
		t.Errorf("token %d after %d and %d", f, ahead+reserve, mark)
	}
	if _, err := read(state, former).counter(""); !errors.Is(err, errLayout) {
		t.Errorf("the former state: %v", err)
	}
	if _, err := os.Lstat(n.state); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the former state is still there: %v", err)
	}
	release(t, lease)

	// A counter that could not be taken over is left alone, and so is its lock.
	formerFile(t, n.state, record{fence: driver.MaxFence, limit: driver.MaxFence, confirmed: true, boot: "b", key: "k"})
	for range 2 {
		_, err := b.Acquire(t.Context(), request("k"))
		wantRefused(t, "the end of the former counter", err, n.state, "largest token")
	}

	// A clean-up takes over, too.
	formerFile(t, n.state, record{fence: 2 * ahead, limit: 2*ahead + reserve, confirmed: true, boot: "b", key: "k"})
	age(t, folder, time.Now().Add(-time.Minute))
	if _, removed := b.clean(time.Now()); removed != 1 || len(files(t, folder)) != 0 {
		t.Errorf("%d keys were removed, and there are %v", removed, files(t, folder))
	}
	lease = acquire(t, b, request("k"))
	if f := lease.Grant().Fence; f <= 2*ahead+reserve {
		t.Errorf("token %d after %d", f, 2*ahead+reserve)
	}
	release(t, lease)
}
