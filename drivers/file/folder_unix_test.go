//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/redlock-go/redlock/driver"
)

// home makes the default folder one below the test's, and returns it.
func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("XDG_STATE_HOME", "")
	if runtime.GOOS == "darwin" {
		return filepath.Join(dir, "Library", "Application Support", "dlock")
	}
	return filepath.Join(dir, ".local", "state", "dlock")
}

func attempt(t *testing.T, folder string) error {
	t.Helper()
	l, err := open(t, folder).Acquire(t.Context(), request("k"))
	if err == nil {
		release(t, l.(*Lease))
	}
	return err
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	fi, err := os.Lstat(path)
	must(t, err)
	return fi.Mode()
}

func TestTheDefaultFolderIsPrivate(t *testing.T) {
	folder := home(t)
	must(t, attempt(t, ""))
	if m := mode(t, folder); m.Perm() != 0o700 {
		t.Errorf("the folder has mode %v, want 0700", m)
	}
	p := names(&place{path: folder}, "k")
	for _, path := range []string{p.lock, p.gate} {
		if m := mode(t, path); m != 0o600 {
			t.Errorf("%s has mode %v, want 0600", path, m)
		}
	}

	must(t, os.Chmod(folder, 0o770))
	wantRefused(t, "a default folder that others can write", attempt(t, ""), folder, "chmod 700")

	must(t, os.Rename(folder, folder+"2"))
	must(t, os.Symlink(folder+"2", folder))
	wantRefused(t, "a default folder that is a link", attempt(t, ""), folder, "no folder")

	must(t, os.Remove(folder))
	must(t, os.WriteFile(folder, nil, 0o600))
	wantRefused(t, "a default folder that is a file", attempt(t, ""), folder, "no folder")
}

func TestWhoMayWriteInAFolderMayShareItsLocks(t *testing.T) {
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for _, c := range []struct{ folder, want fs.FileMode }{
		{0o700, 0o600}, {0o755, 0o600}, {0o770, 0o660}, {fs.ModeSetgid | 0o775, 0o660}, {fs.ModeSticky | 0o777, 0o666}, {0o707, 0o606},
	} {
		folder := t.TempDir()
		must(t, os.Chmod(folder, c.folder))
		must(t, attempt(t, folder))
		p := names(&place{path: folder}, "k")
		if m := mode(t, p.lock); m.Perm() != c.want {
			t.Errorf("a file in a folder of mode %v has mode %v, want %v", c.folder, m, c.want)
		}
		if m := mode(t, p.gate); m.Perm() != c.want {
			t.Errorf("a gate in a folder of mode %v has mode %v, want %v", c.folder, m, c.want)
		}
	}
	folder := filepath.Join(t.TempDir(), "new")
	syscall.Umask(0o022)
	must(t, attempt(t, folder+"/"))
	if m := mode(t, folder); m != fs.ModeDir|0o700 {
		t.Errorf("a new folder has mode %v", m)
	}
}

func TestWhatSomebodySlippedInIsRefused(t *testing.T) {
	target := filepath.Join(t.TempDir(), "target")
	const text = "precious\n"
	for what, plant := range map[string]func(path string) error{
		"a symbolic link":   func(path string) error { return os.Symlink(target, path) },
		"a link to nowhere": func(path string) error { return os.Symlink(target+"2", path) },
		"another name":      func(path string) error { return os.Link(target, path) },
		"a named pipe":      func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"a folder":          func(path string) error { return os.Mkdir(path, 0o700) },
	} {
		for _, suffix := range []string{lockSuffix, "gate", makerName} {
			must(t, os.WriteFile(target, []byte(text), 0o600))
			folder := t.TempDir()
			path := filepath.Join(folder, fileName("k")+suffix)
			switch suffix {
			case "gate":
				path = names(&place{path: folder}, "k").gate
			case makerName:
				path = filepath.Join(folder, makerName)
			}
			must(t, plant(path))
			err := attempt(t, folder)
			wantRefused(t, what+" as "+suffix, err, path, "remove it")
			if got, err := os.ReadFile(target); err != nil || string(got) != text {
				t.Errorf("%s as %s: the target is now %q, %v", what, suffix, got, err)
			}
			if _, err := os.Lstat(target + "2"); err == nil {
				t.Errorf("%s as %s: its target was made", what, suffix)
			}
			if _, err := open(t, folder).Lookup(t.Context(), "k"); err == nil && suffix == lockSuffix {
				t.Errorf("%s as %s: Lookup read it", what, suffix)
			}
		}
	}
}

func TestAFolderThatCannotBeUsedIsARefusal(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	must(t, os.WriteFile(path, nil, 0o600))
	wantRefused(t, "a file as folder", attempt(t, path), path, "no folder")
	wantRefused(t, "a file as parent", attempt(t, filepath.Join(path, "a")), path, "file:///folder")
	b := open(t, path)
	found, err := b.Check(t.Context())
	if err != nil || len(found) != 1 || found[0].Severity != driver.SeverityUnsafe {
		t.Errorf("check of a file: %v, %v", found, err)
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be two users")
	}
}

const stranger, neighbour = 54321, 54322

func TestStrangersFilesAreRefused(t *testing.T) {
	needRoot(t)
	folder := home(t)
	must(t, attempt(t, ""))
	n := names(&place{path: folder}, "k")
	for _, path := range []string{n.lock, n.gate} {
		must(t, os.Chown(path, stranger, stranger))
		wantRefused(t, "a stranger's file", attempt(t, ""), path, fmt.Sprint(stranger))
		must(t, os.Chown(path, 0, 0))
	}
	must(t, os.Chown(folder, stranger, stranger))
	wantRefused(t, "a stranger's folder", attempt(t, ""), folder, fmt.Sprint(stranger), "file:///folder")
}

// readable makes a folder that other users reach.
func readable(t *testing.T, mode fs.FileMode) string {
	t.Helper()
	folder, err := os.MkdirTemp("", "dlock")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) }) // it is in the temporary folder
	must(t, os.Chmod(folder, mode))
	return folder
}

func asUser(uid int, role, folder string) *process {
	cmd := helper(role, folder)
	cmd.Env = append(cmd.Env, fmt.Sprint("DLOCK_FILE_TEST_UID=", uid))
	return &process{Cmd: cmd}
}

func TestUsersWhoShareAFolderExcludeEachOther(t *testing.T) {
	needRoot(t)
	folder := readable(t, fs.ModeSticky|0o777)
	p := begin(t, asUser(stranger, "hold", folder).Cmd)
	b := open(t, folder)
	wantHeld(t, b, request("k")) // root
	out, err := asUser(neighbour, "hold", folder).withOutput()
	if err == nil || !strings.Contains(out, "held by web-4/") {
		t.Errorf("the neighbour: %q, %v; want that it is held", out, err)
	}
	p.kill(t)
	q := begin(t, asUser(neighbour, "hold", folder).Cmd) // files of the stranger
	if q.fence(t) <= p.fence(t) {
		t.Errorf("token %d after %d", q.fence(t), p.fence(t))
	}
}

func (p *process) withOutput() (string, error) {
	p.Stderr = nil
	out, err := p.CombinedOutput()
	return string(out), err
}

func TestWhoMayNotShareIsToldHow(t *testing.T) {
	needRoot(t)
	for _, mode := range []fs.FileMode{0o755, 0o700} {
		folder := readable(t, mode)
		release(t, acquire(t, open(t, folder), request("k")))
		out, err := asUser(stranger, "hold", folder).withOutput()
		if err == nil || !strings.Contains(out, folder) || !strings.Contains(out, "mkdir -m 3770") {
			t.Errorf("the stranger in a folder of mode %v: %q, %v; want advice", mode, out, err)
		}
	}
}

// With sudo root works in a user's folder, and must not leave files that lock the
// user out.
func TestWhatRootMakesBelongsToTheFoldersOwner(t *testing.T) {
	needRoot(t)
	folder := readable(t, 0o700)
	must(t, os.Chown(folder, stranger, stranger))
	b := open(t, folder)
	release(t, acquire(t, b, request("k")))
	begin(t, asUser(stranger, "hold", folder).Cmd)
	wantHeld(t, b, request("k"))
	found, err := b.Check(t.Context())
	if err != nil || len(found) != 1 || found[0].Severity != driver.SeverityWarning || !strings.Contains(found[0].Summary, fmt.Sprint(stranger)) {
		t.Errorf("check: %+v, %v; want a warning on the owner", found, err)
	}
}
