package bench

import (
	"bufio"
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

func TestRepliesAreReadAsTheProtocolWritesThem(t *testing.T) {
	for _, c := range []struct {
		wire string
		want any
	}{
		{"+OK\r\n", "OK"}, {":-12\r\n", int64(-12)}, {"$3\r\na\rb\r\n", "a\rb"}, {"$0\r\n\r\n", ""}, {"$-1\r\n", nil},
		{"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n", []any{int64(1), []any{"x"}}}, {"*0\r\n", []any{}}, {"-ERR no\r\n", replyError("ERR no")},
	} {
		got, err := readReply(bufio.NewReader(strings.NewReader(c.wire)))
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %#v, %v; want %#v", c.wire, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "\n", "!x\r\n", ":x\r\n", "$5\r\nab", "*2\r\n:1\r\n"} {
		if v, err := readReply(bufio.NewReader(strings.NewReader(bad))); err == nil {
			t.Errorf("%q was read as %v", bad, v)
		}
	}
}

var dials = map[string]func(addr string) *socket{"callers read": dialSocket, "a goroutine reads": dialAsync}

func TestManyCallersOfOneSocketGetTheirOwnReplies(t *testing.T) {
	addr := server.Redis(t).Addr()
	for name, dial := range dials {
		t.Run(name, func(t *testing.T) {
			s := dial(addr)
			defer func() { _ = s.close() }() // it has nothing to say at the end of a test
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			var callers sync.WaitGroup
			for g := range 32 {
				callers.Go(func() {
					for i := range 100 {
						want := fmt.Sprintf("%d/%d", g, i)
						if got, err := s.do(ctx, []string{"ECHO", want}); err != nil || got != want {
							t.Errorf("got %v, %v; want %s", got, err, want)
							return
						}
					}
				})
			}
			callers.Wait()
		})
	}
}

func TestASocketComesBackAfterItsConnectionBroke(t *testing.T) {
	proxy := fault.NewProxy(t, server.Redis(t).Addr())
	for name, dial := range dials {
		t.Run(name, func(t *testing.T) {
			s := dial(proxy.Addr())
			defer func() { _ = s.close() }() // it has nothing to say at the end of a test
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			if _, err := s.do(ctx, []string{"PING"}); err != nil {
				t.Fatal(err)
			}
			proxy.CutAll()
			for {
				reply, err := s.do(ctx, []string{"PING"})
				if err == nil && reply == "PONG" {
					return
				}
				if ctx.Err() != nil {
					t.Fatalf("it never came back: %v", err)
				}
			}
		})
	}
}

func TestALimitIsALock(t *testing.T) {
	t.Parallel()
	servers := make([]*server.Server, 3)
	for i := range servers {
		servers[i] = server.Redis(t)
	}
	for _, c := range limits() {
		for _, n := range []int{1, 3} {
			if !c.Serves(server.KindRedis, n) {
				continue
			}
			t.Run(c.Name+"/"+strconv.Itoa(n), func(t *testing.T) { excludes(t, c, direct(servers[:n], time.Minute)) })
		}
	}
}

// excludes takes a lock twice, renews it, gives it back and takes it again.
func excludes(t *testing.T, c Contestant, s *Setup) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := c.Open(ctx, s)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h, err := l.Lock(ctx, t.Name(), false)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.Lock(ctx, t.Name(), false); err == nil {
		t.Error("it was granted twice", again)
	}
	if err := h.Renew(ctx); err != nil {
		t.Error("renew:", err)
	}
	if err := h.Unlock(); err != nil {
		t.Error("unlock:", err)
	}
	for { // a node that is not in the majority is released a moment later
		next, err := l.Lock(ctx, t.Name(), false)
		if err == nil {
			if err := next.Unlock(); err != nil {
				t.Error("unlock:", err)
			}
			break
		}
		if ctx.Err() != nil {
			t.Fatal("it stays locked:", err)
		}
	}
}
