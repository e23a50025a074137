package redisnode_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// Whatever a server sends, at the first contact or later, a call ends with an error, and the process
// goes on.
func (s *suite) hostile(t *testing.T) {
	srv := server.StartFor(t, s.kind, server.WithUser("u on >"+canary+" ~* &* +@all"))
	var reply atomic.Value // what all connections get in place of the next reply
	reply.Store("")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	drivertest.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			down, err := l.Accept()
			if err != nil {
				return
			}
			go misquote(down, srv.Addr(), &reply)
		}
	}()
	for _, wrong := range []string{
		quote,
		"$-5\r\n", "*-9\r\n", "$99999999999\r\n", "*99999999999\r\n", "%-1\r\n", ">-1\r\n>-3\r\n", "%1\r\n*0\r\n:1\r\n", "HTTP/1.1 400 no\r\n\r\n",
	} {
		for _, met := range []bool{false, true} {
			reply.Store("")
			b := s.open(t, s.Scheme+"://u:"+canary+"@"+l.Addr().String()+"?call_timeout=1s&dial_timeout=1s")
			if met {
				s.warm(t, b)
			}
			reply.Store(wrong)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			if _, err := b.Acquire(ctx, s.ask(fmt.Sprintf("%q %v", wrong, met), 5*time.Second)); err == nil || strings.Contains(err.Error(), canary) {
				t.Errorf("%q, met before: %v: %v", wrong, met, err)
			}
			if _, err := b.(driver.Inspector).Lookup(ctx, "k"); err == nil {
				t.Errorf("%q, met before: %v: a lookup", wrong, met)
			}
			soon, end := context.WithTimeout(ctx, 100*time.Millisecond)
			_, _ = b.(driver.Watcher).Watch(soon, "k")
			end()
			cancel()
			reply.Store("") // so that Close need not wait
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// quote makes the server refuse every request, and quote it, like one that does not know the command.
const quote = "quote"

// misquote passes requests on, and changes the answers while it has something to say.
func misquote(down net.Conn, server string, reply *atomic.Value) {
	defer func() { _ = down.Close() }()
	up, err := net.Dial("tcp", server)
	if err != nil {
		return
	}
	var asked atomic.Value // the last request
	asked.Store("")
	go func() {
		defer func() { _ = up.Close() }()
		chunk := make([]byte, 64<<10)
		for {
			n, err := down.Read(chunk)
			if err != nil {
				return
			}
			asked.Store(strings.Join(strings.Fields(string(chunk[:n])), " "))
			if _, err := up.Write(chunk[:n]); err != nil {
				return
			}
		}
	}()
	chunk := make([]byte, 64<<10)
	for {
		n, err := up.Read(chunk)
		if err != nil {
			return
		}
		answer := chunk[:n]
		if wrong := reply.Load().(string); wrong == quote {
			answer = []byte("-ERR this is no server: " + asked.Load().(string) + "\r\n")
		} else if wrong != "" {
			answer = []byte(wrong)
		}
		if _, err := down.Write(answer); err != nil {
			return
		}
	}
}
