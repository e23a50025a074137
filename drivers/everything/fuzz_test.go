package everything_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
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

// FuzzURL opens URLs of every driver with arbitrary text behind a password: no driver crashes,
// and no error quotes the password.
func FuzzURL(f *testing.F) {
	var heads []string
	for _, name := range dlock.Drivers() {
		switch name {
		case "file", "sqlite": // they have no password, and their Open makes what it names
		case "redlock":
			heads = append(heads, "redlock:redis://", "redlock:restart_guard=off,valkeys://")
		default:
			heads = append(heads, name+"://")
		}
	}
	rests := []string{"host:1/0", "host:notaport", "[::1", "host:1/%zz", "ho st:1/", "host:1/?a=1;b=2", "host:1/?%zz", "host/\x7f", ",b:2?ttl=-1s", "@@host", "h:1,h:2/p?tls=x&ca=/", "/run/s?db=1"}
	for i := range heads {
		for _, rest := range rests {
			f.Add(uint8(i), rest)
		}
	}
	f.Fuzz(func(t *testing.T, head uint8, rest string) {
		before := heads[int(head)%len(heads)]
		b, err := dlock.OpenBackend(before + "user:" + canary + "@" + rest)
		said := fmt.Sprintf("%v %+v", err, err)
		if err == nil {
			said = fmt.Sprintf("%v %+v", b, b.Info())
			if err := b.Close(); err != nil {
				said += err.Error()
			}
		}
		if (shows(err) || strings.Contains(said, canary)) && !strings.Contains(rest, canary) {
			t.Errorf("%q: %s", before+"user:…@"+rest, said)
		}
	})
}

// spoiled forwards connections to a server. On each connection it changes bits in the nth chunk
// of the answers.
func spoiled(t *testing.T, server string, nth int, bits []byte) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	pump := func(to, from net.Conn, change func([]byte)) {
		defer func() { _, _ = to.Close(), from.Close() }()
		buf := make([]byte, 16<<10)
		for {
			n, err := from.Read(buf)
			if err != nil {
				return
			}
			change(buf[:n])
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			up, err := net.Dial("tcp", server)
			if err != nil {
				_ = c.Close()
				continue
			}
			n := 0
			go pump(up, c, func([]byte) {})
			go pump(c, up, func(b []byte) {
				if n++; n-1 != nth {
					return
				}
				for i := range bits {
					b[(int(bits[i])*7+i)%len(b)] ^= 1 << (bits[i] % 8)
				}
			})
		}
	}()
	return l.Addr().String()
}

// FuzzReplies changes bits of what servers answer: no call crashes or hangs, no error shows the
// password, and a token is never out of its range.
func FuzzReplies(f *testing.F) {
	if testing.Short() {
		f.Skip("starts five servers")
	}
	for i := range uint8(5) {
		f.Add(i, uint8(1), []byte{1, 9, 80})
		f.Add(i, uint8(5), []byte{7})
	}
	const secret = ":" + canary + "@"
	pg := server.Postgres(f)
	targets := []struct{ head, addr, tail string }{ // with a password, where the server takes any
		{"postgres://postgres" + secret, pg.Addr(), "/postgres?sslmode=disable&connect_timeout=1"},
		{"pgtable://postgres" + secret, pg.Addr(), "/postgres?sslmode=disable&setup=true&call_timeout=300ms"},
		{"mariadb://root@", server.MariaDB(f).Addr(), "/test?setup=true&call_timeout=300ms"},
		{"etcd://", server.Etcd(f, 1).Addrs()[0], "?call_timeout=300ms"},
		{"zk://user" + secret, server.ZooKeeper(f, 1).Addrs()[0], "?call_timeout=300ms"},
	}
	var keys atomic.Int64
	f.Fuzz(func(t *testing.T, which, nth uint8, bits []byte) {
		t.Parallel()
		target := targets[int(which)%len(targets)]
		b, err := dlock.OpenBackend(target.head + spoiled(t, target.addr, int(nth%24), bits) + target.tail)
		if err != nil {
			t.Fatal(err)
		}
		quiet := func(call string, err error) {
			if shows(err) {
				t.Errorf("%s: the error shows the password: %v", call, err)
			}
		}
		defer func() { quiet("Close", b.Close()) }()
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		key := fmt.Sprintf("fuzz%d", keys.Add(1))
		for i := range 2 {
			brief, end := context.WithTimeout(ctx, 2*time.Second)
			l, err := b.Acquire(brief, &driver.Request{Key: key, Owner: fmt.Sprintf("fuzz/%d", i), TTL: 10 * time.Second})
			quiet("Acquire", err)
			if err == nil {
				if fence := l.Grant().Fence; fence == 0 || fence > driver.MaxFence {
					t.Errorf("granted with token %d", fence)
				}
				_, err := l.Renew(brief, &driver.Renewal{TTL: 10 * time.Second})
				quiet("Renew", err)
				quiet("Release", l.Release(brief))
			}
			if i, ok := b.(driver.Inspector); ok {
				_, err := i.Lookup(brief, key)
				quiet("Lookup", err)
			}
			end()
		}
		if ctx.Err() != nil {
			t.Error("the calls took a minute, and their contexts 2 s")
		}
	})
}
