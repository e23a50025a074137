//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// files returns what is in a folder, without the gates and the mark.
func files(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	must(t, err)
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	return names
}

// clean examines every key of the folder, as if that time had come.
func (b *Backend) clean(now time.Time) (left, removed int) {
	p, err := b.folder.visit()
	if err != nil {
		return 0, 0
	}
	for _, name := range keysOf(p.path) {
		if b.removeUnused(p, name, now) {
			removed++
		} else {
			left++
		}
	}
	return left, removed
}

// age makes every lock file of a folder look unused since then.
func age(t *testing.T, folder string, since time.Time) {
	t.Helper()
	locks, _ := filepath.Glob(filepath.Join(folder, "*"+lockSuffix))
	for _, path := range locks {
		must(t, os.Chtimes(path, since, since))
	}
}

// Also a program that takes one lock and ends removes some files of unused keys.
func TestAFolderDoesNotGrowForEver(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	b := open(t, folder)
	held := acquire(t, b, request("held"))
	for i := range 100 {
		release(t, acquire(t, b, request(fmt.Sprint("old/", i))))
	}
	now := time.Now()
	age(t, folder, now.Add(-time.Minute))
	for i := range 20 { // each removes some
		release(t, acquire(t, open(t, folder), request(fmt.Sprint("new/", i))))
	}
	if got := len(files(t, folder)); got > 30 {
		t.Errorf("%d files are left of 121 keys, and 21 of them are young", got)
	}
	b.clean(now)
	if got := len(files(t, folder)); got != 21 {
		t.Errorf("%d files are left, want those of the key that is held and of 20 new ones", got)
	}
	if _, err := held.Renew(t.Context(), &driver.Renewal{}); err != nil {
		t.Errorf("the key that is held: %v", err)
	}
	wantHeld(t, b, request("held"))
	release(t, held)
	must(t, os.RemoveAll(folder))
	b.clean(time.Now())
	if _, err := os.Stat(folder); err == nil {
		t.Error("a folder that was removed is back")
	}
}

// A look or a removal takes the lock for an instant, which must never cause a refusal, and no holder
// loses its file.
func TestLookingAndRemovingRefuseNobody(t *testing.T) {
	t.Parallel()
	b := open(t, t.TempDir())
	b.patience = time.Minute // on a busy machine a look may take long
	var wg sync.WaitGroup
	var over atomic.Bool
	var removed atomic.Int64
	defer func() { over.Store(true); wg.Wait() }()
	for range 2 {
		wg.Go(func() {
			for !over.Load() {
				if _, err := b.Lookup(context.Background(), "k"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		for !over.Load() {
			_, n := b.clean(time.Now().Add(time.Minute)) // as if much time had passed since each use
			removed.Add(int64(n))
		}
	})
	last := uint64(0)
	for i := 0; i < 300 || removed.Load() == 0; i++ {
		r := request("k")
		r.Mode = driver.Mode(i % 2)
		l := acquire(t, b, r)
		if l.Grant().Fence <= last {
			t.Errorf("token %d after %d", l.Grant().Fence, last)
		}
		last = l.Grant().Fence
		release(t, l)
	}
}

func TestTokensRiseOverARemovalThoughTheClockWasSetBack(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	release(t, acquire(t, b, request("k")))
	ahead := uint64(time.Now().Add(24 * time.Hour).UnixMicro())
	setCounter(t, b.files("k").gate, ahead) // it was given a day ahead, by a clock that was set back since
	age(t, folder, time.Now().Add(-time.Minute))
	if _, removed := b.clean(time.Now()); removed != 1 || len(files(t, folder)) != 0 {
		t.Fatalf("%d keys were removed, and there are %v", removed, files(t, folder))
	}
	for before := ahead; before < ahead+3; before++ {
		l := acquire(t, b, request("k"))
		if l.Grant().Fence <= before {
			t.Errorf("token %d after %d", l.Grant().Fence, before)
		}
		release(t, l)
	}
}

// setCounter overwrites a gate's counter.
func setCounter(t *testing.T, path string, limit uint64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(t, err)
	defer f.Close() //nolint:errcheck // it was synced
	must(t, beginAt(f, limit))
}

// What is damaged or at its end is refused, and the error names the file.
func TestTheErrorNamesTheCountersFile(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	release(t, acquire(t, b, request("k")))
	gate := b.files("k").gate
	setCounter(t, gate, driver.MaxFence-1)
	must(t, attempt(t, folder)) // the last token
	wantRefused(t, "the gate's end", attempt(t, folder), gate, "largest token")
	must(t, os.Truncate(gate, 0))
	wantRefused(t, "an empty gate", attempt(t, folder), gate, "empty")
	must(t, os.WriteFile(gate, []byte(strings.Repeat("garbage\n", 1024)), 0o600))
	wantRefused(t, "a damaged gate", attempt(t, folder), gate, "damaged")
	if err := os.Remove(gate); err != nil { // as the errors say
		t.Fatal(err)
	}
	if err := attempt(t, folder); err != nil {
		t.Error(err)
	}
}

// A limit of the size of files stands for a full disk.
func TestAFullDiskLeavesNoHalfMadeGate(t *testing.T) {
	signal.Ignore(syscall.SIGXFSZ)
	defer signal.Reset(syscall.SIGXFSZ)
	b := open(t, t.TempDir())
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_FSIZE, &limit))
	full := limit
	full.Cur = 0
	must(t, syscall.Setrlimit(syscall.RLIMIT_FSIZE, &full))
	_, err := b.Acquire(context.Background(), request("k"))
	if e := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); e != nil {
		t.Fatal(e)
	}
	gates, _ := filepath.Glob(filepath.Join(b.folder.path, gatePrefix+"*"))
	if !errors.Is(err, syscall.EFBIG) || len(gates) != 0 {
		t.Errorf("got %v, and the files %v", err, gates)
	}
	release(t, acquire(t, b, request("k")))
}

func TestTooManyOpenFilesAreNamed(t *testing.T) {
	b := open(t, t.TempDir())
	release(t, acquire(t, b, request("k")))
	var limit syscall.Rlimit
	must(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	few := limit
	few.Cur = 0 // no descriptor can be opened, and those that are open stay so
	must(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
	_, err := b.Acquire(context.Background(), request("k"))
	if e := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); e != nil {
		t.Fatal(e)
	}
	var refused *driver.RefusedError
	if !errors.As(err, &refused) || refused.RetryAfter <= 0 || !strings.Contains(refused.Reason, "ulimit -n") {
		t.Errorf("got %v, want a refusal for now that names the limit", err)
	}
	release(t, acquire(t, b, request("k")))
}
