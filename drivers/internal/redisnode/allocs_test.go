package redisnode

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/names"
)

// A fake is the part of a client that most tests need not have.
type fake struct{}

func (fake) Servers(context.Context) ([]Server, error) { return nil, nil }
func (fake) Close() error                              { return nil }
func (fake) Subscribe(context.Context, Sink, string, string) (Subscription, error) {
	return nil, errors.New("no pub/sub")
}

// instant is a client that grants and frees every lock at once, without an allocation.
type instant struct{ fake }

func (instant) Exec(_ context.Context, calls []*Call) {
	for _, c := range calls {
		switch {
		case c.Text == lua.Hello:
			c.Reply = []any{"run", time.Now().UnixMicro()}
		case len(c.Keys) == 2:
			c.Number = 1
		default:
			c.Number = time.Now().UnixMicro()
		}
	}
}

// A lock and its release allocate a lease, its texts and contexts, and little else: on the
// caller's goroutine or another, for one server or a quorum's node.
func TestALockAllocatesLittle(t *testing.T) {
	for name, c := range map[string]struct {
		direct func(time.Time)
		quorum *quorum.Info
		most   float64
	}{
		"the caller's goroutine":   {func(time.Time) {}, nil, 10},
		"another goroutine":        {nil, nil, 10},
		"a node of a quorum":       {nil, &quorum.Info{Terms: quorum.Terms{N: 5}}, 8},
		"one that remembers terms": {nil, &quorum.Info{Terms: quorum.Terms{N: 5}, Remembered: &quorum.Terms{N: 5}}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := New(Config{Client: instant{}, Abandon: c.direct})
			drivertest.Must(t, err)
			req := &driver.Request{Key: "reports/tenant-17", Owner: "host/1234/0123456789abcdef/1", TTL: 10 * time.Second, Quorum: c.quorum}
			if c.quorum != nil {
				req.FenceFloor = uint64(time.Now().UnixMicro())
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			least := 1000.0 // an average of many, because a garbage collection frees the objects kept for reuse
			for range 200 {
				least = min(least, testing.AllocsPerRun(1, func() {
					l, err := n.Acquire(ctx, req)
					if err == nil {
						err = l.Release(ctx)
					}
					drivertest.Must(t, err)
				}))
			}
			if least > c.most {
				t.Errorf("%v allocations, want %v at most", least, c.most)
			}
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// The calls of one term have the same names and value, if they are of one lock, owner and token.
func TestCallsOfOneTermShareTheirTexts(t *testing.T) {
	var texts []*names.Texts
	common := async.Common(async.Within(t.Context(), time.Minute))
	for _, of := range []struct{ prefix, key, owner string }{{"p:", "k", "o/1"}, {"p:", "k", "o/1"}, {"p:", "k", "o/12"}, {"p:", "other", "o/1"}, {"q:", "k", "o/1"}} {
		n, err := New(Config{Client: instant{}, Prefix: of.prefix})
		drivertest.Must(t, err)
		got := n.attempt(&driver.Request{Key: of.key, Owner: of.owner, TTL: time.Second, FenceFloor: 5}, common).texts
		if texts = append(texts, got); got.Lock != of.prefix+of.key || got.Value != of.owner+"|5" {
			t.Errorf("%v has %+v", of, got)
		}
	}
	if texts[0] != texts[1] {
		t.Error("the second node has made its own")
	}
}
