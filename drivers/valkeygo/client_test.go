package valkeygo

import (
	"context"
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
