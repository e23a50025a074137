package redlocktest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

const canary = "pw-c4n4ry"

// redisClients are the schemes of the two client libraries.
var redisClients = []string{"redis", "valkey"}

// startFuzzed starts a server with a user whose password must appear in no error.
func startFuzzed(f *testing.F) *server.Server {
	s := server.Redis(f)
	if _, err := s.Do("ACL", "SETUSER", "fuzz", "on", ">"+canary, "~*", "&*", "+@all"); err != nil {
		f.Fatal(err)
	}
	return s
}

func openFuzzed(t *testing.T, scheme, addr, parameters string) driver.Backend {
	b, err := dlock.OpenBackend(scheme + "://fuzz:" + canary + "@" + addr + "?restart_guard=off" + parameters)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// shows reports whether an error, or one that it wraps, contains the password.
func shows(err error) bool {
	switch e := err.(type) { //nolint:errorlint // each error of the tree is looked at
	case nil:
		return false
	case interface{ Unwrap() []error }:
		for _, each := range e.Unwrap() {
			if shows(each) {
				return true
			}
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

var fuzzOwners atomic.Int64

func fuzzRequest(key string) *driver.Request {
	return &driver.Request{Key: key, Owner: "fuzz/" + strconv.FormatInt(fuzzOwners.Add(1), 10), TTL: 20 * time.Second}
}

// FuzzStoredOnRedis writes foreign and mangled values to the drivers' keys. No call crashes,
// two leases are never valid at the same time, and no token is lower than an earlier one.
func FuzzStoredOnRedis(f *testing.F) {
	for i, value := range []string{"", "x", "-1", "0", "9007199254740991", "9007199254740992", "1e300", "nan", "inf", "0x7fffffffffffffff", "99999999999999999999999",
		"1 2 3", "9e15 1 1", "99999999999999999 0 0", "0 99999999999999999 0", "a b c", "redlock1:next|", "redlock1:next|5|p", "redlock1:next|5|listen.1", "fuzz/1|", "|5", "\x00\xff", strings.Repeat("9", 400)} {
		f.Add(uint8(i), value, false)
		f.Add(uint8(i+1), value, i%4 == 0)
	}
	if testing.Short() {
		f.Skip("starts a server")
	}
	s := startFuzzed(f)
	var keys atomic.Int64
	f.Fuzz(func(t *testing.T, what uint8, value string, ofAnotherType bool) {
		t.Parallel()
		n := keys.Add(1)
		scheme, prefix := redisClients[n%2], fmt.Sprintf("f%d:", n)
		a := openFuzzed(t, scheme, s.Addr(), "&prefix="+prefix)
		b := openFuzzed(t, scheme, s.Addr(), "&prefix="+prefix)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		const key = "k"
		acquire := func(by driver.Backend) driver.Lease {
			l, err := by.Acquire(ctx, fuzzRequest(key))
			quiet(t, "Acquire", err)
			return l
		}
		before := acquire(a)
		if before == nil {
			return // the machine stalled
		}
		name := prefix + []string{key, "redlock1:fence:{" + prefix + key + "}", "redlock1:mark", "redlock1:queue:{" + prefix + key + "}"}[what%4]
		if what%4 != 0 && what&4 != 0 { // the lock is free while the key beside it is mangled
			_ = before.Release(ctx)
		}
		command := []string{"SET", name, value}
		if ofAnotherType {
			command = []string{"ZADD", name, "1", value}
			_, _ = s.Do("DEL", name)
		}
		if _, err := s.Do(command...); err != nil {
			t.Fatal(err)
		}
		valid := func(l driver.Lease) bool { return l != nil && time.Now().Before(l.Grant().Expires) }
		rising := func(l driver.Lease) {
			if l != nil && (l.Grant().Fence <= before.Grant().Fence || l.Grant().Fence > driver.MaxFence) {
				t.Errorf("token %d after %d", l.Grant().Fence, before.Grant().Fence)
			}
		}
		one, two := acquire(b), acquire(a)
		rising(one)
		rising(two)
		if valid(one) && valid(two) {
			t.Errorf("two owners at once, with tokens %d and %d", one.Grant().Fence, two.Grant().Fence)
		}
		if what%4 != 0 && what&4 == 0 && (valid(one) || valid(two)) && valid(before) {
			t.Errorf("a second owner has the lock beside the first, whose value was not changed")
		}
		i := b.(driver.Inspector)
		_, err := i.Lookup(ctx, key)
		quiet(t, "Lookup", err)
		quiet(t, "List", i.List(ctx, "", func(*driver.State) bool { return true }))
		_, err = i.Check(ctx)
		quiet(t, "Check", err)
		quiet(t, "Break", b.(driver.Admin).Break(ctx, key, before.Grant().Fence))
		for _, l := range []driver.Lease{before, one, two} {
			if l == nil {
				continue
			}
			_, err := l.Renew(ctx, &driver.Renewal{TTL: 20 * time.Second})
			quiet(t, "Renew", err)
			quiet(t, "Release", l.Release(ctx))
		}
		if three := acquire(b); three != nil { // the remaining values do not hide an earlier token
			rising(three)
			_ = three.Release(ctx)
		}
	})
}

// A liar is a proxy between a client and its server that changes one reply on each connection.
type liar struct {
	net.Listener
	server string
	nth    int
	how    uint8
	text   string
}

// The ways to change a reply.
const (
	lieText  = iota // a string
	lieError        // an error
	lieEcho         // an error that quotes the command, like that of a server that does not know it
	lieArray        // an array of strings
	lieRaw          // any bytes
	lieCut          // half of the reply, then the connection ends
	lieBits         // the reply with some bits flipped
	lies
)

func startLiar(t *testing.T, server string, nth, how uint8, text string) *liar {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	lie := &liar{l, server, int(nth % 12), how % lies, text}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go lie.serve(c)
		}
	}()
	return lie
}

func (l *liar) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	up, err := net.Dial("tcp", l.server)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	var mu sync.Mutex
	var asked []string // commands that wait for their replies
	go func() {
		defer func() { _ = up.Close() }()
		messages(client, func(m []byte) bool {
			mu.Lock()
			asked = append(asked, string(m))
			mu.Unlock()
			_, err := up.Write(m)
			return err == nil
		})
	}()
	n := 0
	messages(up, func(m []byte) bool {
		command := ""
		mu.Lock()
		if len(asked) > 0 {
			command, asked = asked[0], asked[1:]
		}
		mu.Unlock()
		n++
		if n-1 == l.nth {
			m = l.lie(m, command)
		}
		_, err := client.Write(m)
		return err == nil && (n-1 != l.nth || l.how != lieCut)
	})
}

func (l *liar) lie(reply []byte, command string) []byte {
	line := strings.NewReplacer("\r", " ", "\n", " ").Replace
	switch l.how {
	case lieText:
		return fmt.Appendf(nil, "$%d\r\n%s\r\n", len(l.text), l.text)
	case lieError:
		return []byte("-" + line(l.text) + "\r\n")
	case lieEcho:
		return []byte("-ERR " + line(l.text+" "+command) + "\r\n")
	case lieArray:
		parts := strings.Split(l.text, ",")
		b := fmt.Appendf(nil, "*%d\r\n", len(parts))
		for _, p := range parts {
			b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(p), p)
		}
		return b
	case lieRaw:
		return []byte(l.text)
	case lieCut:
		return reply[:len(reply)/2]
	}
	b := bytes.Clone(reply)
	for i := range l.text {
		b[(int(l.text[i])+i)%len(b)] ^= 1 << (l.text[i] % 8)
	}
	return b
}

// messages calls f for each message, until the connection ends or f returns false.
func messages(from io.Reader, f func([]byte) bool) {
	var rest []byte
	buf := make([]byte, 16<<10)
	for {
		for {
			n := fault.RESP(rest)
			if n == 0 {
				break
			}
			if !f(rest[:n]) {
				return
			}
			rest = rest[n:]
		}
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		rest = append(rest, buf[:n]...)
	}
}

// FuzzRepliesOfRedis changes a reply of a real server to either client library. No call crashes
// or hangs, no error shows the password, and a reply that no server gives is not a verdict.
func FuzzRepliesOfRedis(f *testing.F) {
	for nth := range uint8(4) {
		f.Add(nth, uint8(lieEcho), "unknown command", nth%2 == 0)
		f.Add(nth+2, uint8(lieArray), "0", nth%2 == 0)
	}
	for i, text := range []string{"", "x", ":1", ":0\r\n", "*0\r\n", "*-1\r\n", "*3\r\n:1\r\n:-5\r\n:7\r\n", "%1\r\n+a\r\n+b\r\n", "*99999999\r\n", "$-1\r\n", "NOSCRIPT no", "MOVED 1 h:1", "GUARD layout", "WRONGPASS ", "READONLY x", "1,2,3"} {
		f.Add(uint8(2+i%4), uint8(i%lies), text, i%2 == 0)
		if i%3 == 0 {
			f.Add(uint8(2+i%5), uint8(lieRaw), text, i%2 == 1)
		}
	}
	if testing.Short() {
		f.Skip("starts a server")
	}
	s := startFuzzed(f)
	var keys atomic.Int64
	f.Fuzz(func(t *testing.T, nth, how uint8, text string, valkey bool) {
		t.Parallel()
		key, scheme := fmt.Sprintf("r%d", keys.Add(1)), redisClients[0]
		if valkey {
			scheme = redisClients[1]
		}
		lie := startLiar(t, s.Addr(), nth, how, text)
		a := openFuzzed(t, scheme, lie.Addr().String(), "&call_timeout=300ms&dial_timeout=300ms")
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		// A changed reply may equal a reply that servers give, and then a verdict from it is right.
		honest := lie.how != lieRaw && lie.how != lieBits && lie.how != lieText
		stored := func() string {
			v, err := s.Do("GET", key)
			if err != nil {
				t.Fatal(err)
			}
			value, _ := v.(string)
			return value
		}
		req := fuzzRequest(key)
		for i := range 2 {
			l, err := a.Acquire(ctx, req)
			quiet(t, "Acquire", err)
			switch {
			case err != nil && errors.Is(err, driver.ErrHeld) && honest && i == 0 && !strings.Contains(stored(), "fuzz/"):
				t.Errorf("held, though the key is free: %v", err)
			case err == nil && honest && time.Now().Before(l.Grant().Expires) && !strings.Contains(stored(), req.Owner):
				t.Errorf("granted, and the server has %q", stored())
			case err == nil && (l.Grant().Fence == 0 || l.Grant().Fence > driver.MaxFence):
				t.Errorf("granted with token %d", l.Grant().Fence)
			}
			if err == nil {
				_, err := l.Renew(ctx, &driver.Renewal{TTL: 20 * time.Second})
				quiet(t, "Renew", err)
				if errors.Is(err, driver.ErrLost) && honest && strings.Contains(stored(), req.Owner) {
					t.Errorf("lost, though the server still has the lease: %v", err)
				}
				quiet(t, "Release", l.Release(ctx))
			}
			req = fuzzRequest(key)
		}
		_, err := a.(driver.Inspector).Lookup(ctx, key)
		quiet(t, "Lookup", err)
		_, err = a.(driver.Inspector).Check(ctx)
		quiet(t, "Check", err)
		if err := a.Close(); err != nil {
			quiet(t, "Close", err)
		}
		if ctx.Err() != nil {
			t.Error("the calls took a minute, and their timeouts are 0.3 s")
		}
	})
}
