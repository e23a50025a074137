package everything_test

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

const canary = "pw-c4n4ry"

// shows reports whether an error, or one that it wraps, has the password.
func shows(err error) bool {
	switch e := err.(type) { //nolint:errorlint // the function visits the wrapped errors itself
	case nil:
		return false
	case interface{ Unwrap() []error }:
		if slices.ContainsFunc(e.Unwrap(), shows) {
			return true
		}
	case interface{ Unwrap() error }:
		if shows(e.Unwrap()) {
			return true
		}
	}
	return strings.Contains(fmt.Sprintf("%v %+v", err, err), canary)
}

// quiet fails the test if an error shows the password.
func quiet(t *testing.T, call string, err error) {
	t.Helper()
	if shows(err) {
		t.Errorf("%s: the error shows the password: %v", call, err)
	}
}

// fuzzTTL is the TTL of the fuzz tests' locks.
const fuzzTTL = 20 * time.Second

var fuzzOwners atomic.Int64

func fuzzRequest(key string) *driver.Request {
	return &driver.Request{Key: key, Owner: fmt.Sprintf("fuzz/%d", fuzzOwners.Add(1)), TTL: fuzzTTL}
}

// FuzzURL opens URLs of every driver with arbitrary text behind a password: no driver crashes,
// and no error quotes the password. Of the drivers on local files it also opens folders of its
// own: two clients of one URL exclude each other.
func FuzzURL(f *testing.F) {
	var heads []string
	for _, name := range dlock.Drivers() {
		if name == "redlock" {
			heads = append(heads, "redlock:redis://", "redlock:restart_guard=off,valkeys://")
		} else {
			heads = append(heads, name+"://")
		}
	}
	local := len(heads)
	heads = append(heads, "file://", "sqlite://")
	rests := []string{"host:1/0", "host:notaport", "[::1", "host:1/%zz", "ho st:1/", "host:1/?a=1;b=2", "host:1/?%zz", "host/\x7f", ",b:2?ttl=-1s", "@@host", "h:1,h:2/p?tls=x&ca=/", "/run/s?db=1",
		"locks", "a/b?setup=true", "%2f%ff?call_timeout=1s&setup=on"}
	for i := range heads {
		for _, rest := range rests {
			f.Add(uint8(i), rest)
		}
	}
	f.Fuzz(func(t *testing.T, head uint8, rest string) {
		i := int(head) % len(heads)
		if i >= local {
			excludes(t, heads[i], rest)
			return
		}
		b, err := dlock.OpenBackend(heads[i] + "user:" + canary + "@" + rest)
		said := fmt.Sprintf("%v %+v", err, err)
		if err == nil {
			said = fmt.Sprintf("%v %+v", b, b.Info())
			if err := b.Close(); err != nil {
				said += err.Error()
			}
		}
		if (shows(err) || strings.Contains(said, canary)) && !strings.Contains(rest, canary) {
			t.Errorf("%q: %s", heads[i]+"user:…@"+rest, said)
		}
	})
}

// excludes locks a key by two clients of one URL, in a folder of its own.
func excludes(t *testing.T, head, rest string) {
	if path, err := url.PathUnescape(rest); err != nil || strings.Contains(path, "..") {
		return // it may leave the folder
	}
	folder := "/" + strings.TrimPrefix(filepath.ToSlash(t.TempDir()), "/") + "/"
	var leases []driver.Lease
	for range 2 {
		b, err := dlock.OpenBackend(head + folder + rest)
		if err != nil {
			return
		}
		t.Cleanup(func() { _ = b.Close() })
		req := fuzzRequest("k")
		if b.Info().MaxTTL == 0 {
			req.TTL = 0
		}
		l, err := b.Acquire(t.Context(), req)
		switch {
		case err == nil:
			leases = append(leases, l)
		case errors.Is(err, driver.ErrLost), errors.Is(err, driver.ErrHeld) && len(leases) == 0:
			t.Errorf("%q: the first client is told: %v", rest, err)
		}
	}
	if len(leases) > 1 && lives(leases[0]) {
		t.Errorf("%q: two owners at once", rest)
	}
	for _, l := range leases {
		if err := l.Release(t.Context()); err != nil {
			t.Errorf("%q: %v", rest, err)
		}
	}
}
