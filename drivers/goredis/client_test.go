package goredis

import (
	"context"
	"errors"
	"net"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// nobody is an address without a listener.
func nobody(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// If there is no listener every call returns an error that says so, and that nothing was sent:
// alone, in a pipeline or in a transaction. (A pipeline of go-redis that gets no connection may
// leave its commands without an error.)
func TestEveryCallOfARefusedBatchSaysSo(t *testing.T) {
	r := redis.NewClient(&redis.Options{MaxRetries: -1, Addr: nobody(t)})
	t.Cleanup(func() { _ = r.Close() })
	c := &client{redis: r, inner: r, once: true, own: true}
	plain := func() *redisnode.Call { return &redisnode.Call{SHA: strings.Repeat("0", 40), Keys: []string{"k"}} }
	behind := func() *redisnode.Call {
		return &redisnode.Call{Text: "return {1}", Keys: []string{"k"}, Behind: "mark"}
	}
	for name, calls := range map[string][]*redisnode.Call{
		"alone":            {plain()},
		"with others":      {plain(), plain(), plain()},
		"in a transaction": {behind()},
		"all":              {plain(), behind(), plain()},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		c.Exec(ctx, calls)
		cancel()
		for i, call := range calls {
			if !errors.Is(call.Err, redisnode.ErrNotSent) || !errors.Is(call.Err, syscall.ECONNREFUSED) {
				t.Errorf("%s: call %d: %v, reply %v", name, i, call.Err, call.Reply)
			}
		}
	}
}

// goroutines notes on which goroutine a command runs.
type goroutines struct{ seen chan string }

func (goroutines) DialHook(next redis.DialHook) redis.DialHook { return next }
func (goroutines) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (g goroutines) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		select {
		case g.seen <- string(debug.Stack()):
		default:
		}
		return next(ctx, cmd)
	}
}

// A lone call runs on its caller's goroutine if the client's own timeouts bound it: with the
// library's defaults it does, with more retries than fit into the call timeout it does not.
func TestALoneCallGoesOnItsCallersGoroutine(t *testing.T) {
	s := server.Redis(t)
	for name, c := range map[string]struct {
		options redis.Options
		want    bool
	}{
		"defaults":                {redis.Options{}, true},
		"deadlines heeded":        {redis.Options{ContextTimeoutEnabled: true, MaxRetries: -1}, true},
		"deadlines, and retries":  {redis.Options{ContextTimeoutEnabled: true}, true},
		"no retries, no deadline": {redis.Options{MaxRetries: -1}, true},
		"retries without end":     {redis.Options{MaxRetries: 30}, false},
	} {
		t.Run(name, func(t *testing.T) {
			c.options.Addr = s.Addr()
			r := redis.NewClient(&c.options)
			defer func() { _ = r.Close() }()
			g := goroutines{make(chan string, 1)}
			r.AddHook(g)
			b, err := New(r, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = b.Close() }()
			heeds := r.Options().ContextTimeoutEnabled && r.Options().MaxRetries <= 0
			c.want = c.want && (heeds || keepsHooks())
			own := 0
			for i := 0; i < 5000 && own == 0 && (c.want || i < 50); i++ { // the first may have to connect, and a round trip take long
				l, err := b.Acquire(t.Context(), &driver.Request{Key: "k", Owner: "o", TTL: time.Minute})
				if err != nil {
					t.Fatal(err)
				}
				if strings.Contains(<-g.seen, t.Name()[:strings.Index(t.Name(), "/")]) {
					own++
				}
				if err := l.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				select { // the release's
				case <-g.seen:
				default:
				}
			}
			if (own > 0) != c.want {
				t.Errorf("%d went on the caller's goroutine", own)
			}
		})
	}
}

// All attempts of a lone call, and the pauses between them, are over within the call timeout.
func TestTheTimeoutsOfALoneCallAddUp(t *testing.T) {
	for _, opt := range []*redis.Options{{}, {MaxRetries: -1}, {MaxRetries: 1, MaxRetryBackoff: time.Minute, MinRetryBackoff: 100 * time.Millisecond}, {MaxRetries: 5, MinRetryBackoff: -1}} {
		for _, callTimeout := range []time.Duration{200 * time.Millisecond, time.Second, 5 * time.Second} {
			r := redis.NewClient(opt)
			c := &client{redis: r, inner: r}
			d := c.limit(r, callTimeout)
			if o := r.Options(); d.Longest > 0 {
				sum := d.Attempt
				for i := range max(o.MaxRetries, 0) {
					least := max(o.MinRetryBackoff, 0)
					sum += d.Attempt + min(least+least<<(i+1), o.MaxRetryBackoff)
				}
				if sum > d.Longest || d.Longest >= callTimeout {
					t.Errorf("%+v: attempts take %v, of %v, with a call timeout of %v", opt, sum, d.Longest, callTimeout)
				}
				if got := c.lone.Options().ReadTimeout; got != d.Attempt {
					t.Errorf("a lone call reads for %v, want %v", got, d.Attempt)
				}
			} else if callTimeout >= time.Second {
				t.Errorf("%+v: no lone call with a call timeout of %v", opt, callTimeout)
			}
			_ = r.Close()
		}
	}
}

// After a node of a Cluster has failed, the slots are asked for until a node answers, even if the
// first one that is asked hangs: the next calls then reach the new primary.
func TestTheSlotsAreReloadedDespiteAHangingNode(t *testing.T) {
	primary, failed := server.Redis(t).Addr(), nobody(t)
	var asked atomic.Int32
	r := redis.NewClusterClient(&redis.ClusterOptions{
		MaxRetries: -1, ContextTimeoutEnabled: true,
		ClusterSlots: func(ctx context.Context) ([]redis.ClusterSlot, error) {
			addr := primary
			switch asked.Add(1) {
			case 1: // the first contact, before the failover
				addr = failed
			case 2: // a node that hangs
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	t.Cleanup(func() { _ = r.Close() })
	c := &client{redis: r, inner: r, once: true, own: true}
	for begun := time.Now(); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		call := &redisnode.Call{Text: "return 1", Keys: []string{"k"}}
		c.Exec(ctx, []*redisnode.Call{call})
		cancel()
		if call.Err == nil {
			return
		}
		if time.Since(begun) > 2*time.Minute {
			t.Fatalf("after %d questions no call reaches the new primary: %v", asked.Load(), call.Err)
		}
	}
}

// While no node answers for the slots, the calls to the other shards wait for them once, and not
// each of them.
func TestAReloadThatHangsDelaysCallsOnce(t *testing.T) {
	addr := server.Redis(t).Addr()
	var asked atomic.Int32
	release := make(chan struct{})
	r := redis.NewClusterClient(&redis.ClusterOptions{
		MaxRetries: -1,
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			if asked.Add(1) > 1 {
				<-release
			}
			return []redis.ClusterSlot{{End: 16383, Nodes: []redis.ClusterNode{{Addr: addr}}}}, nil
		},
	})
	t.Cleanup(func() { _ = r.Close() })
	t.Cleanup(func() { close(release) })
	c := &client{redis: r, inner: r, once: true, own: true}
	call := func() {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		call := &redisnode.Call{Text: "return 1", Keys: []string{"k"}}
		c.Exec(ctx, []*redisnode.Call{call})
		if call.Err != nil {
			t.Fatal(call.Err)
		}
	}
	call()
	c.reload(net.ErrClosed)
	const calls = 500 // so many that a busy machine cannot make up for a wait of each
	begun := time.Now()
	for range calls {
		call()
	}
	if took := time.Since(begun); took >= calls*mostAwaited {
		t.Errorf("%d calls took %v", calls, took)
	}
}
