package valkeygo

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/redisnode"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/redisurl"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/resp"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// Connecting to a server that hangs ends before the library's own limit, because another server may
// have taken that server's place meanwhile.
func TestConnectingToAServerThatHangsEndsSoon(t *testing.T) {
	t.Parallel()
	srv := server.Redis(t)
	p := fault.NewProxy(t, srv.Addr())
	target, err := redisurl.Parse("redis", "redis://"+p.Addr()+"?call_timeout=1s&dial_timeout=5m")
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(options(target), target.Network, target.CallTimeout, resp.New())
	t.Cleanup(func() { _ = c.Close() })
	exec := func(d time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		defer cancel()
		call := &redisnode.Call{Text: "return 1", Keys: []string{"k"}}
		c.Exec(ctx, []*redisnode.Call{call})
		return call.Err
	}
	if err := exec(5 * time.Minute); err != nil {
		t.Fatal(err)
	}
	p.Pause()
	done := make(chan error)
	go func() {
		for range 3 { // the first has a connection
			done <- exec(20 * time.Millisecond)
		}
	}()
	for range 3 {
		select {
		case err := <-done:
			if err == nil {
				t.Error("an answer of a server that hangs")
			}
		case <-time.After(2 * time.Minute):
			t.Fatal("a call is not over after two minutes")
		}
	}
	p.Resume()
	for end := time.Now().Add(2 * time.Minute); exec(10*time.Second) != nil; {
		if time.Now().After(end) {
			t.Fatal("no connection stands again")
		}
	}
}

// A call on a connection that stands ends while another call connects. Before valkey-go 1.0.55 it
// could not give its connection back.
func TestConnectingHoldsUpNoOtherCall(t *testing.T) {
	t.Parallel()
	srv := server.Redis(t)
	p := fault.NewProxy(t, srv.Addr())
	target, err := redisurl.Parse("redis", "redis://"+p.Addr()+"?call_timeout=2m&dial_timeout=5m")
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(options(target), target.Network, target.CallTimeout, resp.New())
	t.Cleanup(func() { _ = c.Close() })
	exec := func() error {
		call := &redisnode.Call{Text: "return 1", Keys: []string{"k"}}
		c.Exec(t.Context(), []*redisnode.Call{call})
		return call.Err
	}
	if err := exec(); err != nil {
		t.Fatal(err)
	}
	asked, connects, answers := make(chan struct{}), make(chan struct{}), make(chan struct{})
	ask, connect := sync.OnceFunc(func() { close(asked) }), sync.OnceFunc(func() { close(connects) })
	p.Judge(fault.ToServer, func(_ int64, chunk []byte) (int, fault.Action) {
		switch {
		case bytes.Contains(chunk, []byte("EVAL")):
			ask()
		case bytes.Contains(chunk, []byte("HELLO")):
			connect()
			<-t.Context().Done()
		}
		return len(chunk), fault.Pass
	})
	p.Judge(fault.ToClient, func(_ int64, chunk []byte) (int, fault.Action) {
		<-answers
		return len(chunk), fault.Pass
	})
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- exec() }()
	<-asked
	go func() { second <- exec() }()
	<-connects
	close(answers)
	select {
	case err := <-first:
		if err != nil {
			t.Error(err)
		}
	case err := <-second:
		t.Fatalf("the attempt to connect ended first: %v", err)
	}
}

// A subscription sends a command before earlier ones are answered: over a slow link each would
// wait for a round trip. A channel that was added and removed in turn is as the last command left it.
func TestSubscriptionsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	srv := server.Redis(t)
	p := fault.NewProxy(t, srv.Addr())
	target, err := redisurl.Parse("redis", "redis://"+p.Addr()+"?call_timeout=1m&dial_timeout=5m")
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(options(target), target.Network, target.CallTimeout, resp.New())
	t.Cleanup(func() { _ = c.Close() })
	confirmed := make(chan string, 100)
	s, err := c.Subscribe(t.Context(), redisnode.Sink{
		Subscribed: func(channel string) { confirmed <- channel },
		Message:    func(string, string) {},
		Broken:     func(error) {},
	}, []string{"own", "a"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	confirms := func(want ...string) {
		t.Helper()
		for len(want) > 0 {
			select {
			case channel := <-confirmed:
				want = slices.DeleteFunc(want, func(w string) bool { return w == channel })
			case <-time.After(2 * time.Minute):
				t.Fatalf("no confirmation of %q", want)
			}
		}
	}
	hears := func(channel string, want int64) {
		t.Helper()
		var got any
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for end := time.Now().Add(2 * time.Minute); ; <-tick.C {
			reply, err := srv.Do("PUBSUB", "NUMSUB", channel)
			if err != nil {
				t.Fatal(err)
			}
			if got = reply.([]any)[1]; got == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%v connections listen on %q, want %d", got, channel, want)
			}
		}
	}
	send := func(do func(context.Context, ...string) error, channels ...string) {
		t.Helper()
		if err := do(t.Context(), channels...); err != nil {
			t.Fatal(err)
		}
	}
	confirms("own", "a")

	answers := make(chan struct{}) // the client gets none until it is closed
	answer := sync.OnceFunc(func() { close(answers) })
	t.Cleanup(answer)
	p.Judge(fault.ToClient, func(_ int64, chunk []byte) (int, fault.Action) {
		if bytes.Contains(chunk, []byte("subscribe")) {
			<-answers
		}
		return len(chunk), fault.Pass
	})
	for i := range 5 {
		channel := fmt.Sprint("b", i)
		send(s.Add, channel)
		hears(channel, 1)
	}
	for range 20 {
		send(s.Remove, "a")
		send(s.Add, "a", "c")
		send(s.Remove, "c")
	}
	send(s.Add, "end")
	answer()
	confirms("b0", "b4", "a", "c", "end")
	hears("a", 1)
	hears("c", 0)
}
