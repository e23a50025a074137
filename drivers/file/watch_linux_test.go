package file

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
)

func watch(t *testing.T, b *Backend, key string) <-chan struct{} {
	t.Helper()
	ch, err := b.Watch(t.Context(), key)
	must(t, err)
	return ch
}

// signalled waits for a value, for much longer than it takes.
func signalled(t *testing.T, what string, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s: no signal", what)
	}
}

func TestWatchHearsOfAHoldersDeath(t *testing.T) {
	b := open(t, t.TempDir())
	p := begin(t, helper("hold", b.folder.path))
	ch := watch(t, b, "k")
	p.kill(t)
	signalled(t, "a holder's death", ch)
	release(t, acquire(t, b, request("k")))
}

// Break removes the lock file, and a watch of the new one may begin before the event of that is read.
func TestWatchersFromBeforeABreakHearOfLaterReleases(t *testing.T) {
	b := open(t, t.TempDir())
	other := open(t, b.folder.path)
	for range 5 {
		broken := acquire(t, other, request("k"))
		before := watch(t, b, "k")
		must(t, other.Break(t.Context(), "k", driver.Holder{Fence: broken.Grant().Fence}))
		after := watch(t, b, "k")
		signalled(t, "the break", before)
		l := acquire(t, other, request("k"))
		time.Sleep(10 * echoAfter) // for the repeated signal: if it comes later, it can only hide a missing one
		for _, ch := range []<-chan struct{}{before, after} {
			select {
			case <-ch:
			default:
			}
		}
		release(t, l)
		signalled(t, "a release, after the break", after)
		signalled(t, "a release, from before the break", before)
		_ = broken.Release(t.Context())
	}
}

// Otherwise many waiters would wake each other for ever.
func TestAnAttemptThatFailedIsNoSignal(t *testing.T) {
	b := open(t, t.TempDir())
	l := acquire(t, b, request("k"))
	ch := watch(t, b, "k")
	for range 20 {
		wantHeld(t, b, request("k"))
		wantHeld(t, b, request("k", shared))
		if _, err := b.Lookup(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		watch(t, b, "k")
	}
	// Events come in order: the first one that is read here is that of another key.
	other := acquire(t, b, request("other"))
	mark := watch(t, b, "other")
	release(t, other)
	signalled(t, "another key's release", mark)
	if len(ch) != 0 {
		t.Error("a failed attempt was a signal")
	}
	release(t, l)
	signalled(t, "the release", ch)
}

func TestNoDescriptorIsLeft(t *testing.T) {
	b := open(t, t.TempDir())
	release(t, acquire(t, b, request("k")))
	watch(t, b, "k") // the instance stays open
	files := descriptors(t)
	for range 50 {
		l := acquire(t, b, request("k"))
		wantHeld(t, b, request("k"))
		wantHeld(t, b, request("k", shared))
		if _, err := b.Lookup(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if n := descriptors(t); n > files+1 {
			t.Fatalf("a lease has %d descriptors, want 1", n-files)
		}
		release(t, l)
		s := acquire(t, b, request("k", shared))
		must(t, s.Detach())
	}
	if _, err := b.Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	for _, key := range []string{"a", "a", "b"} {
		if _, err := b.Watch(ctx, key); err != nil {
			t.Fatal(err)
		}
	}
	cancel()
	eventually(t, func() bool { return descriptors(t) <= files })
	l := acquire(t, b, request("a")) // a new watch works after the others have ended
	ch := watch(t, b, "a")
	release(t, l)
	signalled(t, "a release after that", ch)
}

// descriptors counts the open files, and not those of the test's helpers.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("no /proc")
	}
	must(t, err)
	n := 0
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && (strings.HasPrefix(target, "/") || strings.Contains(target, "inotify")) {
			n++
		}
	}
	return n
}
