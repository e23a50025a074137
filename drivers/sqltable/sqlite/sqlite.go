// Package sqlite registers the driver "sqlite": locks in a table of a SQLite database, for the
// processes of one machine, through modernc.org/sqlite, which needs no C compiler. See package
// sqltable for a description.
//
//	sqlite:///var/lib/app/locks.db     an absolute path; on Windows sqlite:///C:/app/locks.db
//	sqlite:locks.db                    one that is relative to the working directory
//
// '%', '?', '#' and '@' in the path are percent-encoded. The parameters, beside ttl and prefix:
//
//	table          the table of the locks (dlock)
//	setup          true makes the table and the file, but not its folder, at the first call
//	conns          connections at most (4)
//	call_timeout   for one call (1s)
//
// The file has a write-ahead log, so its folder must be on a disk of this machine. A crash of
// the machine may lose the last locks, but also ends all their holders. A process that is stopped
// (SIGSTOP, a debugger) in the middle of a statement keeps the file locked until it goes on or
// ends: until then nobody gets a lock, and errors say so.
package sqlite

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	client "modernc.org/sqlite"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/dsn"
	"github.com/redlock-go/redlock/drivers/sqltable"
	"github.com/redlock-go/redlock/drivers/sqltable/internal/params"
)

func init() { dlock.Register("sqlite", Driver{}) }

// Driver opens backends by URL.
type Driver struct{}

var _ driver.Driver = Driver{}

// Open reads a URL. It does no I/O.
func (Driver) Open(cfg *driver.Config) (driver.Backend, error) {
	path, query, err := parse(cfg.DSN)
	if err != nil {
		return nil, err
	}
	p := dsn.Query(query)
	o := params.Options(cfg, p)
	conns := p.Int("conns", 4, 1, 1000)
	if err := p.Err(); err != nil {
		return nil, err
	}
	o.Address = "sqlite:///" + strings.TrimPrefix((&url.URL{Path: filepath.ToSlash(path)}).EscapedPath(), "/")
	return params.Open(sql.OpenDB(file{new(client.Driver), path, o.Setup}), conns, sqltable.SQLite, o)
}

// parse returns the path and the parameters of a URL.
func parse(raw string) (path, query string, err error) {
	_, rest, _ := strings.Cut(raw, ":")
	rest, query, _ = strings.Cut(rest, "?")
	rest, absolute := strings.CutPrefix(rest, "//")
	path, err = url.PathUnescape(rest)
	local, ok := dsn.LocalPath(path)
	if ok {
		path = local
	}
	switch {
	case strings.ContainsAny(rest, "@#"):
		return "", "", driver.Invalid("URL", "has a bare '@' or '#' (in a path write %%40 and %%23)")
	case err != nil || strings.ContainsRune(path, 0):
		return "", "", driver.Invalid("URL", "is not percent-encoded correctly")
	case absolute && !ok:
		return "", "", driver.Invalid("URL", "has a host: write sqlite:///folder/file, or sqlite:file")
	case path == "" || strings.HasSuffix(path, "/"):
		return "", "", driver.Invalid("URL", "names no file")
	case path == ":memory:":
		return "", "", driver.Invalid("URL", "names a database in memory, which no other connection sees: use the URL memory: for locks in this process")
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", "", driver.Invalid("URL", "has a relative path, and the working directory is gone")
	}
	return path, query, nil
}

// file connects to a file.
type file struct {
	driver sqldriver.Driver
	path   string
	make   bool // if it is missing
}

var _ sqldriver.Connector = file{}

func (f file) Driver() sqldriver.Driver { return f.driver }

// Connect returns a *fs.PathError of the file if only that is missing, and of its folder if there is
// none. A statement that finds the database locked fails at once, and the backend repeats it within
// the call's time.
func (f file) Connect(context.Context) (sqldriver.Conn, error) {
	u := url.URL{Scheme: "file", Path: filepath.ToSlash(f.path), OmitHost: true}
	name := u.String() + "?_pragma=busy_timeout(0)&_pragma=journal_mode(WAL)&_pragma=synchronous(NORMAL)"
	if !f.make {
		name += "&mode=rw"
	}
	c, err := f.driver.Open(name)
	if err == nil {
		return c, nil
	}
	folder := filepath.Dir(f.path)
	if _, missing := os.Stat(folder); errors.Is(missing, fs.ErrNotExist) {
		return nil, &fs.PathError{Op: "open folder", Path: folder, Err: fs.ErrNotExist} // SQLite says "out of memory"
	}
	if _, missing := os.Stat(f.path); errors.Is(missing, fs.ErrNotExist) && !f.make {
		return nil, &fs.PathError{Op: "open", Path: f.path, Err: fs.ErrNotExist}
	}
	return nil, err
}
