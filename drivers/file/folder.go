package file

import (
	"crypto/sha256"
	"encoding/base32"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// folder says where the lock files are, and what the folder must be like.
type folder struct {
	path    string
	private bool // the default folder: only for its user
}

// place is a folder after its examination: it is safe for this user.
type place struct {
	path   string
	mode   fs.FileMode // of new files
	shared bool        // users other than its owner may write in it
	id     identity
}

// defaultFolder returns the user's own state folder; no absolute path if there is none. lookUp returns
// the home of a user whose environment names none, such as that of a service.
func defaultFolder(goos string, getenv func(string) string, lookUp func() string) string {
	home := getenv("HOME")
	if goos != "windows" && !strings.HasPrefix(home, "/") {
		home = lookUp()
	}
	switch {
	case goos == "windows":
		return filepath.Join(getenv("LocalAppData"), "dlock")
	case goos == "darwin":
		return filepath.Join(home, "Library", "Application Support", "dlock")
	case strings.HasPrefix(getenv("XDG_STATE_HOME"), "/"):
		return filepath.Join(getenv("XDG_STATE_HOME"), "dlock")
	}
	return filepath.Join(home, ".local", "state", "dlock")
}

// userHome returns the home of this process's user by the system's list of users.
func userHome() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.HomeDir
}

// enter makes the folder if it does not exist, and examines it.
func (f *folder) enter() (*place, error) {
	p, err := f.visit()
	if !errors.Is(err, fs.ErrNotExist) {
		return p, err
	}
	if err := f.make(); err != nil {
		return nil, f.unusable(err)
	}
	return f.visit()
}

// visit examines the folder. It does so every time, usually with one system call, because a folder
// may be replaced. The error is fs.ErrNotExist if there is none.
func (f *folder) visit() (*place, error) {
	fi, err := f.stat()
	if err != nil {
		return nil, f.unusable(err)
	}
	p := &place{path: f.path, mode: 0o600, id: identify(fi)}
	perm := fi.Mode().Perm()
	switch {
	case !fi.IsDir():
		return nil, refuse("%s is no folder (%v): name a folder (file:///folder)", f.path, fi.Mode())
	case f.private && !p.id.mine():
		return nil, refuse("%s belongs to user %d, and this process is user %d: name a folder of its own (file:///folder), or chown that one", f.path, p.id.uid, os.Geteuid())
	case f.private && p.id.known && perm&0o022 != 0:
		return nil, refuse("%s can be written by others (mode %#o): chmod 700 it, or name a folder that is meant to be shared (file:///folder)", f.path, uint32(perm))
	}
	// All users who may write in the folder can share its files.
	p.shared = p.id.known && perm&0o022 != 0
	if perm&0o020 != 0 {
		p.mode |= 0o060
	}
	if perm&0o002 != 0 {
		p.mode |= 0o006
	}
	return p, nil
}

func (f *folder) unusable(err error) error {
	return &driver.RefusedError{Reason: "file: the folder " + f.path + " cannot be used: name another (file:///folder)", Err: err}
}

// stat follows a symbolic link only if the user named the folder.
func (f *folder) stat() (fs.FileInfo, error) {
	if f.private {
		return os.Lstat(f.path)
	}
	return os.Stat(f.path)
}

// make makes the folder, for its user alone.
func (f *folder) make() error {
	parents := fs.FileMode(0o755)
	if f.private {
		parents = 0o700
	}
	if err := os.MkdirAll(filepath.Dir(f.path), parents); err != nil {
		return err
	}
	if err := os.Mkdir(f.path, 0o700); !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// open opens a file of the folder, and makes it if flag is os.O_RDWR. It refuses symbolic
// links, files that are not regular, and files that another user may have put there.
//
// Making the file is a separate step, because Linux forbids O_CREAT on other users' files in
// shared folders (fs.protected_regular).
func (p *place) open(path string, flag int) (*os.File, error) {
	var err error
	for range attempts {
		var f *os.File
		if f, err = os.OpenFile(path, flag|safely, 0); err == nil {
			if err = p.vet(f); err != nil {
				_ = f.Close() // it was not written to
				return nil, err
			}
			return f, nil
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) && flag == os.O_RDWR:
			f, err = p.create(path)
			if err == nil {
				return f, nil
			}
			if !errors.Is(err, fs.ErrExist) {
				return nil, refused(err, path)
			}
		case errors.Is(err, fs.ErrPermission) && p.shared:
			time.Sleep(time.Millisecond) // its maker may be about to change its mode
		default:
			return nil, refused(err, path)
		}
	}
	return nil, refused(err, path)
}

// vet refuses a file that is not safe to use.
func (p *place) vet(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	id := identify(fi)
	switch {
	case !fi.Mode().IsRegular():
		return refuse("%s is no regular file (%v): remove it", f.Name(), fi.Mode())
	case id.links > 1:
		return refuse("%s has another name too (a hard link): remove it", f.Name())
	case id.known && !p.shared && !id.mine() && id.uid != p.id.uid && id.uid != 0:
		return refuse("%s belongs to user %d, and its folder to user %d: remove it, or chown it", f.Name(), id.uid, p.id.uid)
	}
	return nil
}

// create makes a file, with rights for the users that share it.
func (p *place) create(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|safely, p.mode)
	if err != nil {
		return nil, err
	}
	if err := p.hand(f); err != nil {
		_ = f.Close() // the error above tells more
		return nil, refused(err, path)
	}
	return f, nil
}

// refuse returns a permanent refusal.
func refuse(format string, args ...any) error {
	return &driver.RefusedError{Reason: "file: " + fmt.Sprintf(format, args...)}
}

// refused turns an error that will not go away by itself into a refusal.
func refused(err error, path string) error {
	what := ""
	switch {
	case errors.Is(err, driver.ErrRefused), errors.Is(err, driver.ErrHeld):
		return err
	case errors.Is(err, errDamaged):
		return refuse("%s is damaged or empty, and with it a counter of tokens: if this machine's clock is right, remove that file", path)
	case errors.Is(err, errLayout):
		return refuse("%s was written by another release, in a layout that this one does not know: use the newer release", path)
	case errors.Is(err, errEnd):
		return refuse("the counter of %s has reached the largest token: if this machine's clock is right, remove that file", path)
	case irregular(path):
		return refuse("%s is no regular file: remove it", path)
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return &driver.RefusedError{
			Reason:     "file: too many files are open: a lock needs a descriptor until it is released; raise the limit (ulimit -n, LimitNOFILE), or hold fewer locks",
			RetryAfter: time.Second, Err: err,
		}
	case errors.Is(err, fs.ErrPermission):
		what = "this user may not use " + path + ": name a folder of its own (file:///folder), or one that is made to be shared (mkdir -m 3770)"
	case errors.Is(err, errors.ErrUnsupported):
		what = "the file system of " + path + " has no file locks: name a folder on a local disk (file:///folder)"
	case errors.Is(err, errReadOnly):
		what = path + " is on a read-only file system: name another folder (file:///folder)"
	default:
		return fmt.Errorf("file: %w", err)
	}
	return &driver.RefusedError{Reason: "file: " + what, Err: err}
}

func irregular(path string) bool {
	fi, err := os.Lstat(path)
	return err == nil && !fi.Mode().IsRegular()
}

// paths are the files of one key.
type paths struct {
	lock string // the lock is on it, and its holder's name in it
	gate string // of this key and others
}

const lockSuffix = ".lock"

func names(p *place, key string) paths {
	return pathsOf(p, fileName(key))
}

func pathsOf(p *place, name string) paths {
	base := filepath.Join(p.path, name)
	gate := strconv.FormatUint(uint64(name[len(name)-1]&15), 16) // the end of the hash
	return paths{lock: base + lockSuffix, gate: filepath.Join(p.path, gatePrefix+gate)}
}

// shown is how many bytes of a key the names of its files show.
const shown = 40

// fileName returns a safe name for any key: its readable beginning, for people, and 160 bits of its
// SHA-256, which tell keys apart even if the file system ignores case.
func fileName(key string) string {
	sum := sha256.Sum256([]byte(key))
	hash := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:20])
	return beginning(key) + "-" + strings.ToLower(hash)
}

// beginning returns how the file names of all keys begin that begin so.
func beginning(key string) string {
	text := []byte(key[:min(len(key), shown)])
	for i, c := range text {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '.' && i > 0:
		default:
			text[i] = '_'
		}
	}
	return string(text)
}
