package file

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
)

var owners atomic.Int64

func request(key string, change ...func(*driver.Request)) *driver.Request {
	r := &driver.Request{Key: key, Owner: fmt.Sprintf("web-4/%d/%d", os.Getpid(), owners.Add(1))}
	for _, f := range change {
		f(r)
	}
	return r
}

func shared(r *driver.Request) { r.Mode = driver.Shared }

func open(t testing.TB, folder string) *Backend {
	t.Helper()
	b, err := New(&Options{Folder: folder})
	must(t, err)
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

var (
	must        = drivertest.Must
	wantErr     = drivertest.WantErr
	wantHeld    = drivertest.WantHeld
	wantRefused = drivertest.WantRefused
)

func acquire(t testing.TB, b *Backend, r *driver.Request) *Lease {
	t.Helper()
	l, err := b.Acquire(context.Background(), r)
	if err != nil {
		t.Fatalf("acquire %q: %v", r.Key, err)
	}
	return l.(*Lease)
}

func release(t testing.TB, l *Lease) {
	t.Helper()
	if err := l.Release(context.Background()); err != nil {
		t.Fatalf("release: %v", err)
	}
}

// files are the files of a key.
func (b *Backend) files(key string) paths { return names(&place{path: b.folder.path}, key) }

// A reader is not named: it may have gone, and another has the lock still.
func TestHeldNamesTheWriterAndSinceWhen(t *testing.T) {
	b := open(t, t.TempDir())
	r := request("k")
	before := time.Now().Add(-time.Second)
	l := acquire(t, b, r)
	h := wantHeld(t, open(t, b.folder.path), request("k"))
	if h.Holder != r.Owner || h.Since.Before(before) || h.Clock.Before(h.Since) || h.RetryAfter != 0 || h.Server != b.boot {
		t.Errorf("held: %+v", h)
	}
	release(t, l)
	acquire(t, b, request("k", shared))
	release(t, acquire(t, b, request("k", shared)))
	s, err := b.Lookup(t.Context(), "k")
	if h := wantHeld(t, b, request("k")); err != nil || h.Holder != "" || len(s.Holders) != 1 || s.Holders[0] != (driver.Holder{}) {
		t.Errorf("readers: %+v, %+v, %v", h, s, err)
	}
	if a, ok := driver.Backend(b).(driver.Admin); ok { // not on Windows
		wantErr(t, "break", a.Break(t.Context(), "k", s.Holders[0]), driver.ErrRefused)
	}
}

func TestARemovedLockFileIsALoss(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be removed")
	}
	t.Parallel()
	b := open(t, t.TempDir())
	l := acquire(t, b, request("k"))
	must(t, os.Remove(l.path))
	next := acquire(t, b, request("k"))
	if next.Grant().Fence <= l.Grant().Fence {
		t.Errorf("token %d after %d", next.Grant().Fence, l.Grant().Fence)
	}
	<-l.Grant().Lost
	_, err := l.Renew(t.Context(), &driver.Renewal{})
	wantErr(t, "renewal", err, driver.ErrLost)
	wantErr(t, "release", l.Release(t.Context()), driver.ErrLost)
	wantErr(t, "a second release", l.Release(t.Context()), nil)
	wantHeld(t, b, request("k"))
	release(t, next)
	if len(b.leases) != 0 {
		t.Errorf("%d leases are kept after their release", len(b.leases))
	}
	closing, err := New(&Options{Folder: b.folder.path})
	must(t, err)
	acquire(t, closing, request("other"))
	must(t, os.Remove(acquire(t, closing, request("k")).path))
	wantErr(t, "Close", closing.Close(), driver.ErrLost)
}

func TestKeysAreAnyBytesAndNeverCollide(t *testing.T) {
	b := open(t, t.TempDir())
	keys := []string{
		"\x00", "a\x00b", "a/b", "../up", "..", ".", ".hidden", "a b\n", "ключ", "КЛЮЧ", "\xff\xfe", "a_b", "A_B", "a\\b", "CON", "a:b", "{a}b", "%2f",
		strings.Repeat("k", 512), strings.Repeat("k", 511), strings.Repeat("/", 512), strings.Repeat("\x00", 512), strings.Repeat("é", 256),
	}
	for _, k := range keys { // all at once
		acquire(t, b, request(k))
	}
	locks, err := filepath.Glob(filepath.Join(b.folder.path, "[^.]*"+lockSuffix))
	all, _ := os.ReadDir(b.folder.path)
	if err != nil || len(locks) != len(keys) || len(all) > len(keys)+17 {
		t.Errorf("%d locks and %d files of %d keys, %v", len(locks), len(all), len(keys), err)
	}
	for _, path := range locks {
		if name := filepath.Base(path); len(name) > 100 {
			t.Errorf("file name %q", name)
		}
	}
}

func TestCheckFindsNothingWrongWithALocalFolder(t *testing.T) {
	b := open(t, t.TempDir())
	found, err := b.Check(t.Context())
	must(t, err)
	for _, f := range found {
		if f.Severity != driver.SeverityNote {
			t.Errorf("%+v", f)
		}
	}
	if left, _ := os.ReadDir(b.folder.path); len(left) != 0 {
		t.Errorf("the check left %v", left)
	}
	if kind := networkKind(b.folder.path); kind != "" {
		t.Logf("the temporary folder is on %s", kind)
	}
}

// Only a lock makes the folder.
func TestLookingMakesNoFolder(t *testing.T) {
	b := open(t, filepath.Join(t.TempDir(), "a", "b"))
	if s, err := b.Lookup(t.Context(), "k"); err != nil || s.Key != "k" || len(s.Holders) != 0 {
		t.Errorf("lookup: %+v, %v", s, err)
	}
	if err := b.List(t.Context(), "", func(s *driver.State) bool { t.Errorf("list: %+v", s); return true }); err != nil {
		t.Errorf("list: %v", err)
	}
	found, err := b.Check(t.Context())
	if err != nil || len(found) != 1 || found[0].Code != "no-folder" || found[0].Severity != driver.SeverityNote || !strings.Contains(found[0].Summary, b.folder.path) {
		t.Errorf("check: %+v, %v", found, err)
	}
	if a, ok := driver.Backend(b).(driver.Admin); ok { // not on Windows
		wantErr(t, "break", a.Break(t.Context(), "k", driver.Holder{Fence: 1}), driver.ErrLost)
	}
	if _, err := os.Stat(filepath.Dir(b.folder.path)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("looking made the folder: %v", err)
	}
	release(t, acquire(t, b, request("k")))
}

func TestTheURLNamesTheFolder(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a b#c?d%")
	escaped := strings.NewReplacer(" ", "%20", "#", "%23", "?", "%3F", "%", "%25").Replace(folder)
	app, locks := "/var/lock/app", "/var/lock/app"
	if runtime.GOOS == "windows" {
		app, locks = "/C:/lock/app", `C:\lock\app`
	}
	for dsn, want := range map[string]Options{
		"file:":             {},
		"file:?":            {},
		"file://" + app:     {Folder: locks},
		"file://" + locks:   {Folder: locks},
		"file:" + app:       {Folder: locks},
		"file://" + escaped: {Folder: folder},
	} {
		got, err := parse(dsn)
		if err != nil || *got != want {
			t.Errorf("%q: %+v, %v; want %+v", dsn, got, err, want)
		}
	}
	if runtime.GOOS == "windows" {
		return // no folder has such a name there
	}
	b, err := dlock.OpenBackend("file://" + escaped)
	must(t, err)
	defer b.Close() //nolint:errcheck // the folder is temporary
	again, err := parse(b.(*Backend).String())
	if err != nil || again.Folder != folder {
		t.Errorf("String() = %q, which is %+v, %v", b, again, err)
	}
	release(t, acquire(t, b.(*Backend), request("k")))
	if _, err := os.Stat(folder); err != nil {
		t.Errorf("the folder was not made: %v", err)
	}
}

func TestABadURLNamesTheBadPart(t *testing.T) {
	for dsn, part := range map[string]string{
		"file":                 "URL",
		"file:locks":           "absolute",
		"file:./locks":         "absolute",
		"file://locks/app":     "absolute",
		"file:///a%zz":         "percent",
		"file:///a%00b":        "percent",
		"file:///a#b":          "percent",
		"file:///a?colour=red": `"colour"`,
	} {
		_, err := Driver{}.Open(&driver.Config{DSN: dsn})
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), part) {
			t.Errorf("%q: got %v, want ErrInvalid that names %s", dsn, err, part)
		}
	}
	_, err := New(&Options{Folder: "relative"})
	wantErr(t, "a relative folder", err, driver.ErrInvalid)
	_, err = dlock.OpenURL("file:?ttl=10s")
	wantErr(t, "an explicit TTL", err, driver.ErrInvalid)
}

func TestTheDefaultFolderIsTheUsersOwn(t *testing.T) {
	for _, c := range []struct{ goos, home, state, local, want string }{
		{goos: "linux", home: "/home/u", want: "/home/u/.local/state/dlock"},
		{goos: "linux", home: "/home/u", state: "/s", want: "/s/dlock"},
		{goos: "linux", home: "/home/u", state: "relative", want: "/home/u/.local/state/dlock"},
		{goos: "linux", state: "/s", want: "/s/dlock"},
		{goos: "linux", want: "/listed/.local/state/dlock"},
		{goos: "linux", home: "relative", want: "/listed/.local/state/dlock"},
		{goos: "darwin", home: "/Users/u", state: "/s", want: "/Users/u/Library/Application Support/dlock"},
		{goos: "darwin", want: "/listed/Library/Application Support/dlock"},
		{goos: "windows", local: "/local", home: "/home/u", want: "/local/dlock"},
	} {
		env := map[string]string{"HOME": c.home, "XDG_STATE_HOME": c.state, "LocalAppData": c.local}
		got := defaultFolder(c.goos, func(name string) string { return env[name] }, func() string { return "/listed" })
		if filepath.ToSlash(got) != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if home := userHome(); runtime.GOOS != "windows" && !filepath.IsAbs(home) {
		t.Errorf("this user's home is %q", home)
	}
}
