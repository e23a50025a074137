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
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A replyChanger is a proxy between a client and its server that changes one reply on each
// connection.
type replyChanger struct {
	net.Listener
	server string
	end    fault.Boundary
	nth    int
	how    uint8
	text   string
}

// The ways to change a reply.
const (
	changeBits    = iota // the reply with some bits flipped
	changeCut            // a part of the reply, then the connection ends
	changeGarbled        // the reply with each byte changed in the same way
	changeRaw            // any bytes
	changesOfAll         // how many there are; Redis has more:
	changeText    = iota - 1
	changeError   // an error
	changeEcho    // an error that quotes the command, like that of a server that does not know it
	changeArray   // an array of strings
	changesOfRedis
)

// mayBeTrue reports whether the changed reply may equal another one that servers give: then a
// verdict from it is right.
func (r *replyChanger) mayBeTrue() bool {
	return r.how == changeBits || r.how == changeRaw || r.how == changeText
}

func startReplyChanger(t *testing.T, r *replyChanger) *replyChanger {
	var err error
	if r.Listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Close() })
	go func() {
		for {
			c, err := r.Accept()
			if err != nil {
				return
			}
			go r.serve(c)
		}
	}()
	return r
}

func (r *replyChanger) serve(client net.Conn) {
	defer func() { _ = client.Close() }()
	up, err := net.Dial("tcp", r.server)
	if err != nil {
		return
	}
	defer func() { _ = up.Close() }()
	var mu sync.Mutex
	var asked []string // requests that wait for their replies
	go func() {
		defer func() { _ = up.Close() }()
		r.messages(client, func(m []byte) bool {
			mu.Lock()
			asked = append(asked, string(m))
			mu.Unlock()
			_, err := up.Write(m)
			return err == nil
		})
	}()
	n := 0
	r.messages(up, func(m []byte) bool {
		request := ""
		mu.Lock()
		if len(asked) > 0 {
			request, asked = asked[0], asked[1:]
		}
		mu.Unlock()
		n++
		if n-1 == r.nth {
			m = r.change(m, request)
		}
		_, err := client.Write(m)
		return err == nil && (n-1 != r.nth || r.how != changeCut)
	})
}

func (r *replyChanger) change(reply []byte, request string) []byte {
	line := strings.NewReplacer("\r", " ", "\n", " ").Replace
	first := 0
	if r.text != "" {
		first = int(r.text[0])
	}
	b := bytes.Clone(reply)
	switch r.how {
	case changeBits:
		for i := range r.text {
			b[(int(r.text[i])*7+i)%len(b)] ^= 1 << (r.text[i] % 8)
		}
	case changeCut:
		b = b[:(first+len(b)/2)%len(b)]
	case changeGarbled:
		for i := range b {
			b[i] ^= byte(first%255 + 1)
		}
	case changeRaw:
		b = []byte(r.text)
	case changeText:
		b = fmt.Appendf(nil, "$%d\r\n%s\r\n", len(r.text), r.text)
	case changeError:
		b = []byte("-" + line(r.text) + "\r\n")
	case changeEcho:
		b = []byte("-ERR " + line(r.text+" "+request) + "\r\n")
	case changeArray:
		parts := strings.Split(r.text, ",")
		b = fmt.Appendf(nil, "*%d\r\n", len(parts))
		for _, p := range parts {
			b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(p), p)
		}
	}
	return b
}

// messages calls f for each message, until the connection ends or f returns false.
func (r *replyChanger) messages(from io.Reader, f func([]byte) bool) {
	var rest []byte
	buf := make([]byte, 16<<10)
	for {
		for n := r.end(rest); n > 0; n = r.end(rest) {
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
	shortTimeouts    string // parameters
	end              fault.Boundary
	messages         int            // how many there may be on a connection
	changes          int            // how many ways there are to change a reply
	direct           driver.Backend // the same locks, by replies that nobody changes
}

func targets(f *testing.F) []target {
	const secret = ":" + canary + "@"
	redis, pg := startFuzzed(f).Addr(), server.Postgres(f).Addr()
	all := []target{
		{head: "redis://fuzz" + secret, addr: redis, tail: "?restart_guard=off&", shortTimeouts: "dial_timeout=300ms&", end: fault.RESP, messages: 12, changes: changesOfRedis},
		{head: "valkey://fuzz" + secret, addr: redis, tail: "?restart_guard=off&", shortTimeouts: "dial_timeout=300ms&", end: fault.RESP, messages: 12, changes: changesOfRedis},
		{head: "postgres://postgres" + secret, addr: pg, tail: "/postgres?sslmode=disable&", shortTimeouts: "connect_timeout=1", end: fault.Postgres, messages: 60},
		{head: "pgtable://postgres" + secret, addr: pg, tail: "/postgres?sslmode=disable&setup=true&", end: fault.Postgres, messages: 60},
		{head: "mariadb://root@", addr: server.MariaDB(f).Addr(), tail: "/test?setup=true&", end: fault.MySQL, messages: 40},
		{head: "etcd://", addr: server.Etcd(f, 1).Addrs()[0], tail: "?", end: etcdMessages, messages: 40},
		{head: "zk://user" + secret, addr: server.ZooKeeper(f, 1).Addrs()[0], tail: "?", end: zooKeeperMessages, messages: 16},
	}
	for i := range all {
		to := &all[i]
		to.changes = max(to.changes, changesOfAll)
		if !strings.HasPrefix(to.head, "postgres:") {
			to.shortTimeouts += "call_timeout=300ms"
		}
		var err error
		if to.direct, err = dlock.OpenBackend(to.head + to.addr + to.tail); err != nil {
			f.Fatal(err)
		}
		f.Cleanup(func() { _ = to.direct.Close() })
	}
	return all
}

// lookup returns the true state of a key.
func (to *target) lookup(t *testing.T, key string) (s *driver.State) {
	drivertest.Known(t, func() (err error) {
		s, err = to.direct.(driver.Inspector).Lookup(t.Context(), key)
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
		time.Sleep(20 * time.Millisecond)
	}
}

// FuzzReplies changes a reply on each connection of a client to a real server. No call crashes or
// hangs, no error shows the password, and no token is out of its range. Unless the changed reply
// may be one that servers give, each verdict is true, as another client sees by replies that
// nobody changes.
func FuzzReplies(f *testing.F) {
	for i := range uint8(7) {
		for nth := range uint8(6) {
			f.Add(i, nth*5, uint8(changeCut), "\x01\x09"[:nth%3])
			f.Add(i, nth*7+1, nth%changesOfAll, "\x01\x09\x50")
		}
	}
	for nth := range uint8(4) {
		f.Add(nth%2, nth, uint8(changeEcho), "unknown command")
		f.Add(nth%2, nth+2, uint8(changeArray), "0")
	}
	for i, text := range []string{"", "x", ":1", ":0\r\n", "*0\r\n", "*-1\r\n", "*3\r\n:1\r\n:-5\r\n:7\r\n", "%1\r\n+a\r\n+b\r\n", "*99999999\r\n", "$-1\r\n", "NOSCRIPT no", "MOVED 1 h:1", "GUARD layout", "WRONGPASS ", "READONLY x", "1,2,3"} {
		f.Add(uint8(i%2), uint8(2+i%4), uint8(i%changesOfRedis), text)
		if i%3 == 0 {
			f.Add(uint8(1-i%2), uint8(2+i%5), uint8(changeRaw), text)
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
		changer := startReplyChanger(t, &replyChanger{server: to.addr, end: to.end, nth: int(nth) % to.messages, how: how % uint8(to.changes), text: text})
		b, err := dlock.OpenBackend(to.head + changer.Addr().String() + to.tail + to.shortTimeouts)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { quiet(t, "Close", b.Close()) }()
		key := fmt.Sprintf("fuzz%d", keys.Add(1))
		judge := func(call string, began time.Time, l driver.Lease, err error) {
			if took := time.Since(began); took > 30*time.Second {
				t.Errorf("%s took %v, and its context 2 s", call, took)
			}
			quiet(t, call, err)
			if !changer.mayBeTrue() && l != nil {
				to.judge(t, call, key, l, err)
			}
		}
		inDoubt := false // an earlier attempt may have the lock
		for range 2 {
			brief, end := context.WithTimeout(t.Context(), 2*time.Second)
			began := time.Now()
			l, err := b.Acquire(brief, fuzzRequest(key))
			judge("Acquire", began, l, err)
			switch {
			case err == nil:
				if fence := l.Grant().Fence; fence == 0 || fence > driver.MaxFence {
					t.Errorf("granted with token %d", fence)
				}
				began = time.Now()
				_, err := l.Renew(brief, &driver.Renewal{TTL: fuzzTTL})
				judge("Renew", began, l, err)
				began = time.Now()
				err = l.Release(brief)
				judge("Release", began, l, err)
				inDoubt = inDoubt || err != nil
			case errors.Is(err, driver.ErrHeld) && !inDoubt && !changer.mayBeTrue():
				t.Errorf("nobody has the lock, and yet: %v", err)
			default:
				inDoubt = true
			}
			before := to.lookup(t, key)
			began = time.Now()
			s, err := b.(driver.Inspector).Lookup(brief, key)
			judge("Lookup", began, nil, err)
			after := to.lookup(t, key)
			if err == nil && !changer.mayBeTrue() && len(before.Holders) == len(after.Holders) && len(s.Holders) != len(after.Holders) {
				t.Errorf("Lookup says %+v, and the state is %+v", s, after)
			}
			began = time.Now()
			_, err = b.(driver.Inspector).Check(brief)
			judge("Check", began, nil, err)
			end()
		}
	})
}
