package everything_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A liar is a proxy between a client and its server that changes one reply on each connection.
type liar struct {
	net.Listener
	server string
	end    fault.Boundary
	nth    int
	how    uint8
	text   string
}

// The ways to change a reply.
const (
	lieBits    = iota // the reply with some bits flipped
	lieCut            // a part of the reply, then the connection ends
	lieGarbled        // the reply with each byte changed in the same way
	lieRaw            // any bytes
	liesOfAll         // how many there are; Redis has more:
	lieText    = iota - 1
	lieError   // an error
	lieEcho    // an error that quotes the command, like that of a server that does not know it
	lieArray   // an array of strings
	liesOfRedis
)

// mayBeTrue reports whether the changed reply may equal another one that servers give: then a
// verdict from it is right.
func (l *liar) mayBeTrue() bool { return l.how == lieBits || l.how == lieRaw || l.how == lieText }

func startLiar(t *testing.T, l *liar) *liar {
	var err error
	if l.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go l.serve(c)
		}
	}()
	return l
}

func (l *liar) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	up, err := net.Dial("tcp", l.server)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	var mu sync.Mutex
	var asked []string // requests that wait for their replies
	go func() {
		defer func() { _ = up.Close() }()
		l.messages(client, func(m []byte) bool {
			mu.Lock()
			asked = append(asked, string(m))
			mu.Unlock()
			_, err := up.Write(m)
			return err == nil
		})
	}()
	n := 0
	l.messages(up, func(m []byte) bool {
		request := ""
		mu.Lock()
		if len(asked) > 0 {
			request, asked = asked[0], asked[1:]
		}
		mu.Unlock()
		n++
		if n-1 == l.nth {
			m = l.lie(m, request)
		}
		_, err := client.Write(m)
		return err == nil && (n-1 != l.nth || l.how != lieCut)
	})
}

func (l *liar) lie(reply []byte, request string) []byte {
	line := strings.NewReplacer("\r", " ", "\n", " ").Replace
	first := 0
	if l.text != "" {
		first = int(l.text[0])
	}
	b := bytes.Clone(reply)
	switch l.how {
	case lieBits:
		for i := range l.text {
			b[(int(l.text[i])*7+i)%len(b)] ^= 1 << (l.text[i] % 8)
		}
	case lieCut:
		b = b[:(first+len(b)/2)%len(b)]
	case lieGarbled:
		for i := range b {
			b[i] ^= byte(first%255 + 1)
		}
	case lieRaw:
		b = []byte(l.text)
	case lieText:
		b = fmt.Appendf(nil, "$%d\r\n%s\r\n", len(l.text), l.text)
	case lieError:
		b = []byte("-" + line(l.text) + "\r\n")
	case lieEcho:
		b = []byte("-ERR " + line(l.text+" "+request) + "\r\n")
	case lieArray:
		parts := strings.Split(l.text, ",")
		b = fmt.Appendf(nil, "*%d\r\n", len(parts))
		for _, p := range parts {
			b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(p), p)
		}
	}
	return b
}

// messages calls f for each message, until the connection ends or f returns false.
func (l *liar) messages(from io.Reader, f func([]byte) bool) {
	var rest []byte
	buf := make([]byte, 16<<10)
	for {
		for n := l.end(rest); n > 0; n = l.end(rest) {
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

// etcdMessages is the boundary of what an etcd client sends and gets: frames, and HTTP/1.1 when
// it asks for the time.
func etcdMessages(b []byte) int {
	if n := len("HTTP/1"); len(b) >= n && (string(b[:n]) == "HTTP/1" || string(b[:n]) == "GET /v") {
		return len(b)
	}
	return fault.HTTP2(b)
}

// zooKeeperMessages is the boundary of ZooKeeper's protocol: a length of four bytes.
func zooKeeperMessages(b []byte) int {
	if len(b) < 4 {
		return 0
	}
	if n := 4 + int(binary.BigEndian.Uint32(b)); n <= len(b) {
		return n
	}
	return 0
}

// A target is a driver whose server's replies are changed.
type target struct {
	head, addr, tail string // of its URL; with a password, if the server accepts any
	hasty            string // parameters: short timeouts
	end              fault.Boundary
	messages         int            // how many there may be on a connection
	lies             int            // how many ways there are to change a reply
	honest           driver.Backend // the same locks, by replies that nobody changes
}

func targets(f *testing.F) []target {
	const secret = ":" + canary + "@"
	redis, pg := startFuzzed(f).Addr(), server.Postgres(f).Addr()
	all := []target{
		{head: "redis://fuzz" + secret, addr: redis, tail: "?restart_guard=off&", hasty: "dial_timeout=300ms&", end: fault.RESP, messages: 12, lies: liesOfRedis},
		{head: "valkey://fuzz" + secret, addr: redis, tail: "?restart_guard=off&", hasty: "dial_timeout=300ms&", end: fault.RESP, messages: 12, lies: liesOfRedis},
		{head: "postgres://postgres" + secret, addr: pg, tail: "/postgres?sslmode=disable&", hasty: "connect_timeout=1", end: fault.Postgres, messages: 60},
		{head: "pgtable://postgres" + secret, addr: pg, tail: "/postgres?sslmode=disable&setup=true&", end: fault.Postgres, messages: 60},
		{head: "mariadb://root@", addr: server.MariaDB(f).Addr(), tail: "/test?setup=true&", end: fault.MySQL, messages: 40},
		{head: "etcd://", addr: server.Etcd(f, 1).Addrs()[0], tail: "?", end: etcdMessages, messages: 40},
		{head: "zk://user" + secret, addr: server.ZooKeeper(f, 1).Addrs()[0], tail: "?", end: zooKeeperMessages, messages: 16},
	}
	for i := range all {
		to := &all[i]
		to.lies = max(to.lies, liesOfAll)
		if !strings.HasPrefix(to.head, "postgres:") {
			to.hasty += "call_timeout=300ms"
		}
		var err error
		if to.honest, err = dlock.OpenBackend(to.head + to.addr + to.tail); err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { _ = to.honest.Close() })
	}
	return all
}

// lookup returns the true state of a key.
func (to *target) lookup(t *testing.T, key string) (s *driver.State) {
	redlocktest.Known(t, func() (err error) {
		s, err = to.honest.(driver.Inspector).Lookup(t.Context(), key)
		return err
	})
	return s
}

// lives reports whether a lease's owner must take it for valid.
func lives(l driver.Lease) bool {
	select {
	case <-l.Grant().Lost:
		return false
	default:
		return l.Grant().Expires.IsZero() || time.Now().Before(l.Grant().Expires)
	}
}

// judge checks what a call says of a lease. The client and the server may notice at different
// times that a session has ended.
func (to *target) judge(t *testing.T, call, key string, l driver.Lease, err error) {
	has := err == nil && call != "Release"
	gone := err == nil && call == "Release" || errors.Is(err, driver.ErrLost)
	g := l.Grant()
	for end := time.Now().Add(time.Minute); ; {
		s := to.lookup(t, key)
		stored := slices.ContainsFunc(s.Holders, func(h driver.Holder) bool { return h.Fence == g.Fence })
		if !(has && !stored && lives(l) || gone && stored) {
			return
		}
		if !g.Expires.IsZero() || time.Now().After(end) {
			t.Errorf("%s of token %d: %v, and the state is %+v", call, g.Fence, err, s)
			return
		}
	}
}

// FuzzReplies changes a reply on each connection of a client to a real server. No call crashes or
// hangs, no error shows the password, and no token is out of its range. Unless the changed reply
// may be one that servers give, each verdict is true, as another client sees by replies that
// nobody changes.
func FuzzReplies(f *testing.F) {
	for i := range uint8(7) {
		for nth := range uint8(6) {
			f.Add(i, nth*5, uint8(lieCut), "\x01\x09"[:nth%3])
			f.Add(i, nth*7+1, nth%liesOfAll, "\x01\x09\x50")
		}
	}
	for nth := range uint8(4) {
		f.Add(nth%2, nth, uint8(lieEcho), "unknown command")
		f.Add(nth%2, nth+2, uint8(lieArray), "0")
	}
	for i, text := range []string{"", "x", ":1", ":0\r\n", "*0\r\n", "*-1\r\n", "*3\r\n:1\r\n:-5\r\n:7\r\n", "%1\r\n+a\r\n+b\r\n", "*99999999\r\n", "$-1\r\n", "NOSCRIPT no", "MOVED 1 h:1", "GUARD layout", "WRONGPASS ", "READONLY x", "1,2,3"} {
		f.Add(uint8(i%2), uint8(2+i%4), uint8(i%liesOfRedis), text)
		if i%3 == 0 {
			f.Add(uint8(1-i%2), uint8(2+i%5), uint8(lieRaw), text)
		}
	}
	if testing.Short() {
		f.Skip("starts five servers")
	}
	all := targets(f)
	var keys atomic.Int64
	f.Fuzz(func(t *testing.T, which, nth, how uint8, text string) {
		t.Parallel()
		to := &all[int(which)%len(all)]
		lie := startLiar(t, &liar{server: to.addr, end: to.end, nth: int(nth) % to.messages, how: how % uint8(to.lies), text: text})
		b, err := dlock.OpenBackend(to.head + lie.Addr().String() + to.tail + to.hasty)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { quiet(t, "Close", b.Close()) }()
		ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
		defer cancel()
		key := fmt.Sprintf("fuzz%d", keys.Add(1))
		judge := func(call string, l driver.Lease, err error) {
			quiet(t, call, err)
			if !lie.mayBeTrue() && l != nil {
				to.judge(t, call, key, l, err)
			}
		}
		doubt := false // an earlier attempt may have the lock
		for range 2 {
			brief, end := context.WithTimeout(ctx, 2*time.Second)
			l, err := b.Acquire(brief, fuzzRequest(key))
			judge("Acquire", l, err)
			switch {
			case err == nil:
				if fence := l.Grant().Fence; fence == 0 || fence > driver.MaxFence {
					t.Errorf("granted with token %d", fence)
				}
				_, err := l.Renew(brief, &driver.Renewal{TTL: fuzzTTL})
				judge("Renew", l, err)
				err = l.Release(brief)
				judge("Release", l, err)
				doubt = doubt || err != nil
			case errors.Is(err, driver.ErrHeld) && !doubt && !lie.mayBeTrue():
				t.Errorf("nobody has the lock, and yet: %v", err)
			default:
				doubt = true
			}
			before := to.lookup(t, key)
			s, err := b.(driver.Inspector).Lookup(brief, key)
			quiet(t, "Lookup", err)
			after := to.lookup(t, key)
			if err == nil && !lie.mayBeTrue() && len(before.Holders) == len(after.Holders) && len(s.Holders) != len(after.Holders) {
				t.Errorf("Lookup says %+v, and the state is %+v", s, after)
			}
			_, err = b.(driver.Inspector).Check(brief)
			quiet(t, "Check", err)
			end()
		}
		if ctx.Err() != nil {
			t.Error("the calls took a minute, and their contexts 2 s")
		}
	})
}
