//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// files returns what is in a folder, without the high-water mark.
func files(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if e.Name() != markName {
			names = append(names, e.Name())
		}
	}
	return names
}

// age makes every state of a folder look unused for a while, and its tokens as old.
func age(t *testing.T, folder string, since time.Time) {
	t.Helper()
	states, _ := filepath.Glob(filepath.Join(folder, "*"+stateSuffix))
	for _, path := range states {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range read(f).rec {
			if r != nil {
				r.fence = uint64(since.UnixMicro())
				r.limit = r.fence + reserve
				if err := write(f, i, r); err != nil {
					t.Fatal(err)
				}
			}
		}
		_ = f.Close()
		if err := os.Chtimes(path, since, since); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAFolderDoesNotGrowForEver(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	b := open(t, folder)
	b.cleaner.close() // it would clean beside the test
	held := acquire(t, b, request("held"))
	for i := range 100 {
		release(t, acquire(t, b, request(fmt.Sprint("old/", i))))
	}
	now := time.Now()
	age(t, folder, now.Add(-time.Minute))
	for i := range 3 {
		release(t, acquire(t, b, request(fmt.Sprint("new/", i))))
	}
	left, removed := b.clean(now)
	if got := len(files(t, folder)); left != 4 || removed == 0 || got != 8 {
		t.Errorf("%d keys were removed and %d are left, in %d files; want those of the one that is held and of three new ones", removed, left, got)
	}
	if _, err := held.Renew(t.Context(), &driver.Renewal{}); err != nil {
		t.Errorf("the key that is held: %v", err)
	}
	wantHeld(t, b, request("held"))
	release(t, held)
	if err := os.RemoveAll(folder); err != nil {
		t.Fatal(err)
	}
	b.clean(time.Now())
	if _, err := os.Stat(folder); err == nil {
		t.Error("a folder that was removed is back")
	}
}

// A program that takes one lock and ends removes some files of unused keys.
func TestAProgramThatEndsSoonRemovesSomething(t *testing.T) {
	folder := t.TempDir()
	for i := range 50 {
		b, err := New(&Options{Folder: folder})
		if err != nil {
			t.Fatal(err)
		}
		release(t, acquire(t, b, request(fmt.Sprint(i))))
		if err := b.Close(); err != nil {
			t.Fatal(err)
		}
		age(t, folder, time.Now().Add(-time.Minute))
	}
	if n := len(files(t, folder)); n > 2*someKeys {
		t.Errorf("%d files are left", n)
	}
}

func TestTokensRiseOverARemovalThoughTheClockWasSetBack(t *testing.T) {
	folder := t.TempDir()
	b := open(t, folder)
	l := acquire(t, b, request("k"))
	ahead := time.Now().Add(24 * time.Hour)
	release(t, l)
	age(t, folder, ahead) // it was given a day ahead, by a clock that was set back since
	if _, removed := b.clean(ahead.Add(time.Minute)); removed != 1 || len(files(t, folder)) != 0 {
		t.Fatalf("%d keys were removed, and there are %v", removed, files(t, folder))
	}
	next := acquire(t, b, request("k"))
	if before := uint64(ahead.UnixMicro()) + reserve; next.Grant().Fence <= before {
		t.Errorf("token %d after %d", next.Grant().Fence, before)
	}
	release(t, next)
	again := acquire(t, b, request("k"))
	if again.Grant().Fence <= next.Grant().Fence {
		t.Errorf("token %d after %d", again.Grant().Fence, next.Grant().Fence)
	}
	release(t, again)
}

func TestTheMarkOutlivesAWriteThatWasCutOff(t *testing.T) {
	folder := t.TempDir()
	p := &place{path: folder, mode: 0o600}
	now := time.Now()
	for i := range 3 {
		now = now.Add(time.Minute)
		if err := raiseMark(p, uint64(now.UnixMicro())+7, now); err != nil {
			t.Fatal(err)
		}
		if m, err := mark(p); err != nil || m != uint64(now.UnixMicro())+7 {
			t.Fatalf("round %d: the mark is %d: %v", i, m, err)
		}
	}
	before := uint64(now.Add(-time.Minute).UnixMicro()) + 7
	f, err := os.OpenFile(filepath.Join(folder, markName), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range 2 {
		if _, err := f.WriteAt([]byte("cut"), int64(i)*blockSize); err != nil {
			t.Fatal(err)
		}
		m, err := mark(p)
		if i == 0 && (err != nil || m < before) {
			t.Errorf("one record is damaged: %d, %v", m, err)
		}
		if i == 1 {
			wantRefused(t, "both are damaged", err, markName)
		}
	}
}

func TestARemovalLetsNobodyInTwiceAndRefusesNobody(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	b := open(t, folder)
	b.patience = time.Minute
	var inside, last atomic.Uint64
	var removed atomic.Int64
	stop := make(chan struct{})
	var cleaners, wg sync.WaitGroup
	for range 2 {
		cleaners.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				// As if much time had passed since each use.
				if _, n := b.clean(time.Now().Add(time.Minute)); n > 0 {
					removed.Add(int64(n))
				}
			}
		})
	}
	for range 4 {
		wg.Go(func() {
			other, err := New(&Options{Folder: folder})
			if err != nil {
				t.Error(err)
				return
			}
			defer other.Close() //nolint:errcheck // nothing is held
			for granted := 0; granted < 100; {
				l, err := other.Acquire(t.Context(), request("k"))
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
				if fence := l.Grant().Fence; last.Swap(fence) >= fence {
					t.Errorf("token %d after one that is not smaller", fence)
				}
				inside.Add(^uint64(0))
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	cleaners.Wait()
	if removed.Load() == 0 {
		t.Error("nothing was removed meanwhile")
	}
}

func TestACleanerRefusesNoLoneRequest(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	b := open(t, folder)
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				b.clean(time.Now().Add(time.Minute))
			}
		}
	}()
	other := open(t, folder)
	other.patience = time.Minute
	for range 300 {
		release(t, acquire(t, other, request("k"))) // nobody else wants it
	}
	close(stop)
	<-done
}

func TestTooManyOpenFilesAreNamed(t *testing.T) {
	b := open(t, t.TempDir())
	release(t, acquire(t, b, request("k")))
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 0 // no descriptor can be opened, and those that are open stay so
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
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
