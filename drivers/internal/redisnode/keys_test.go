package redisnode_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// declaredKeys: a script touches only keys that its call names, as servers and proxies demand that
// run scripts in parallel, or find a key's server by its name.
func (s *suite) declaredKeys(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	seen := monitor(t, srv.Addr())
	b, other := s.open(t, s.url(srv.Addr(), "")), s.open(t, s.url(srv.Addr(), ""))
	for _, key := range []string{"k", "{tag}k", "k}"} {
		l := s.lock(t, b, key, time.Minute)
		_ = watch(t, t.Context(), other, key)
		if _, err := other.Acquire(t.Context(), s.ask(key, time.Minute)); err == nil {
			t.Errorf("%q has two holders", key)
		}
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); err != nil {
			t.Error(err)
		}
		if _, err := b.(driver.Inspector).Lookup(t.Context(), key); err != nil {
			t.Error(err)
		}
		unlock(t, l)
		if err := b.(driver.Admin).Break(t.Context(), key, driver.Holder{Fence: 1}); err == nil {
			t.Error("a lock that was released was broken")
		}
	}
	if err := b.(driver.Inspector).List(t.Context(), "", func(*driver.State) bool { return true }); err != nil {
		t.Error(err)
	}
	guarded := s.open(t, s.url(srv.Addr(), "?restart_guard=1m&bootstrap=true"))
	unlock(t, s.lock(t, guarded, "guarded", time.Minute))
	join := s.ask("joined", time.Minute)
	join.ExactFence, join.Quorum = uint64(time.Now().UnixMicro()), &quorum.Info{}
	if l, err := b.Acquire(t.Context(), join); err == nil {
		unlock(t, l)
	}
	for range 3 { // the first time the script of a batch is loaded
		var wg sync.WaitGroup
		for i := range 100 {
			wg.Go(func() { unlock(t, s.lock(t, b, fmt.Sprint("many", i), time.Minute)) })
		}
		wg.Wait()
	}
	calls := 0
	var declared []string
	for line := range seen(t) {
		var args []string
		for _, quoted := range regexp.MustCompile(`"(?:[^"\\]|\\.)*"`).FindAllString(line, -1) {
			arg, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatal(line)
			}
			args = append(args, arg)
		}
		if len(args) == 0 {
			continue
		}
		command := strings.ToUpper(args[0])
		if !strings.Contains(line, " lua] ") {
			if declared = nil; strings.HasPrefix(command, "EVAL") {
				n, _ := strconv.Atoi(args[2])
				declared = args[3 : 3+n]
				calls++
			}
			continue
		}
		touched := args[1:]
		switch command {
		case "TIME", "INFO", "PUBLISH":
			continue
		case "DEL", "MGET", "EXISTS":
		default:
			touched = args[1:2]
		}
		for _, key := range touched {
			if !slices.Contains(declared, key) {
				t.Errorf("%s of %q, which is not among the keys %.5q of its script", command, key, declared)
			}
		}
	}
	if calls < 20 {
		t.Errorf("only %d scripts were seen", calls)
	}
}

// monitor returns a function with the commands that a server has run since.
func monitor(t *testing.T, addr string) func(*testing.T) func(func(string) bool) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if _, err := conn.Write([]byte("MONITOR\r\n")); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewScanner(conn)
	in.Buffer(nil, 1<<20)
	if !in.Scan() || in.Text() != "+OK" {
		t.Fatalf("MONITOR: %s", in.Text())
	}
	lines := make(chan string, 100_000)
	go func() {
		defer close(lines)
		for in.Scan() {
			lines <- in.Text()
		}
	}()
	return func(t *testing.T) func(func(string) bool) {
		c := dial(t, addr)
		if _, err := c.Write([]byte("ECHO the-end\r\n")); err != nil {
			t.Fatal(err)
		}
		return func(yield func(string) bool) {
			for line := range lines {
				if strings.Contains(line, `"the-end"`) || !yield(line) {
					return
				}
			}
		}
	}
}

func dial(t *testing.T, addr string) net.Conn {
	var d net.Dialer
	c, err := d.DialContext(context.Background(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}
