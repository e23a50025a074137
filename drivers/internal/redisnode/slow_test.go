package redisnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/fakelib"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/lua"
)

// library is a client library without a server, whose every reply is 1.
type library struct{ *fakelib.Library }

func newLibrary(takes time.Duration, heeds bool) library {
	return library{fakelib.New(takes, heeds)}
}

func (l library) exec(ctx context.Context, calls []*Call) {
	err := l.Trip(ctx, len(calls))
	for _, c := range calls {
		c.Reply, c.Err = []any{int64(1)}, err
	}
}

const second = time.Second // the call timeout

// lateContext is a context whose timer has not fired yet, though its deadline has passed.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// A library that respects deadlines may return before the context's timer fires. A call that
// failed this way is not repeated after its own deadline.
func TestNothingIsSentBehindADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, true)
		n, err := New(Config{Client: hanging{lib, true}, Abandon: func(time.Time) {}})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(ctx context.Context, key string) (driver.Lease, error) {
			return n.Acquire(ctx, &driver.Request{Key: key, Owner: "o/" + key, TTL: time.Minute})
		}
		late := func() context.Context { return lateContext{t.Context(), time.Now().Add(100 * time.Millisecond)} }
		l, err := ask(late(), "a")
		if err != nil {
			t.Fatal(err)
		}
		lib.Takes.Store(int64(time.Hour))
		before := lib.Sent.Load()
		if _, err := l.Renew(late(), &driver.Renewal{TTL: time.Minute}); err == nil || errors.Is(err, ErrNotSent) || lib.Sent.Load() != before+1 {
			t.Errorf("a renewal was sent %d times: %v", lib.Sent.Load()-before, err)
		}
		before = lib.Sent.Load()
		if err := n.router.slots[0].Load().pipelines.Do(lateContext{t.Context(), time.Now()}, &Call{}); !errors.Is(err, ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) || lib.Sent.Load() != before {
			t.Errorf("a call was sent %d times when its time was over: %v", lib.Sent.Load()-before, err)
		}
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
}

// hanging is the client of a node whose server no longer answers.
type hanging struct {
	library
	own bool
}

func (h hanging) Exec(ctx context.Context, calls []*Call) {
	h.exec(ctx, calls)
	for _, c := range calls {
		if c.Err == nil && c.Text == lua.Hello {
			c.Reply = []any{"run", time.Now().UnixMicro()}
		} else if c.Err == nil {
			c.Reply = []any{int64(1), time.Now().UnixMicro(), time.Now().UnixMicro()}
		}
	}
}

func (h hanging) Servers(context.Context) ([]Server, error) { return nil, nil }

func (h hanging) Subscribe(context.Context, Sink, []string) (Subscription, error) {
	return nil, errors.New("no")
}

func (h hanging) Close() error {
	if h.own {
		close(h.Closed)
	}
	return nil
}

// distant is the client of a node behind a slow link, whose locks another process holds. A new
// connection takes a round trip more. The server does not know the script for batches.
type distant struct {
	library
	batch  lua.Script
	loaded atomic.Bool

	mu    sync.Mutex
	stand int // idle connections
}

func (d *distant) Exec(ctx context.Context, calls []*Call) {
	d.mu.Lock()
	dial := d.stand == 0
	if !dial {
		d.stand--
	}
	d.mu.Unlock()
	if dial {
		d.trip()
	}
	loaded := d.loaded.Load()
	d.exec(ctx, calls)
	d.mu.Lock()
	d.stand++
	d.mu.Unlock()
	for _, c := range calls {
		now := time.Now().UnixMicro()
		switch {
		case c.Text == lua.Hello:
			c.Reply = []any{"run", now}
		case c.Text == d.batch.Text:
			d.loaded.Store(true)
			c.Reply = []any{int64(1), "run", now}
		case c.SHA == d.batch.SHA && !loaded:
			c.Reply, c.Err = nil, ServerError("NOSCRIPT No matching script")
		case c.SHA == d.batch.SHA:
			c.Reply = []any{now, int64(0)}
			for i := range len(c.Keys) - 1 {
				c.Reply = append(c.Reply, int64(i+1), "other/1|1700000000000000", int64(60_000))
			}
		case len(c.Args) < acquireArgs: // a listener, or a release
			c.Reply = []any{int64(1)}
		default:
			c.Reply = []any{int64(0), "other/1|1700000000000000", int64(60_000), now}
		}
	}
}

// trip takes one round trip.
func (d *distant) trip() { time.Sleep(time.Duration(d.Takes.Load())) }

func (d *distant) Servers(context.Context) ([]Server, error) { return nil, nil }

func (d *distant) Close() error { return nil }

func (d *distant) Subscribe(ctx context.Context, sink Sink, channels []string) (Subscription, error) {
	d.trip()
	s := &distantSubscription{distant: d, sink: sink}
	return s, s.Add(ctx, channels...)
}

type distantSubscription struct {
	*distant
	sink Sink

	order sync.Mutex
	sent  [][]string // without a confirmation
}

func (s *distantSubscription) Add(_ context.Context, channels ...string) error {
	s.order.Lock()
	defer s.order.Unlock()
	s.sent = append(s.sent, slices.Clone(channels))
	time.AfterFunc(time.Duration(s.Takes.Load()), func() {
		s.order.Lock()
		defer s.order.Unlock()
		for _, c := range s.sent[0] {
			s.sink.Subscribed(c)
		}
		s.sent = s.sent[1:]
	})
	return nil
}

func (s *distantSubscription) Remove(context.Context, ...string) error { return nil }

func (s *distantSubscription) Close() {}

// Many new waiters over a slow link are subscribed, and have their places, within few round
// trips, and then do not ask again.
func TestManyWaitersNeedFewTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const waiters, trip = 3000, 10 * time.Millisecond
		d := &distant{library: newLibrary(trip, true), batch: lua.Bind("run")[lua.Batch]}
		n, err := New(Config{Client: d, Abandon: func(time.Time) {}})
		if err != nil {
			t.Fatal(err)
		}
		ask := func(i int) *driver.HeldError {
			_, err := n.Acquire(t.Context(), startRequest(fmt.Sprint("w", i)))
			var held *driver.HeldError
			if !errors.As(err, &held) {
				t.Errorf("Acquire: %v", err)
				return &driver.HeldError{}
			}
			return held
		}
		_ = ask(0) // the first contact
		start := time.Now()
		var subscribed, queued atomic.Int64 // when the last waiter is subscribed, in trips
		var wg sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range waiters {
			wg.Go(func() {
				_ = ask(i) // a refusal
				if _, err := n.Watch(ctx, fmt.Sprint("w", i)); err != nil {
					t.Errorf("Watch: %v", err)
				}
				subscribed.Store(int64(time.Since(start) / trip))
				if held := ask(i); held.PollAfter < 50*time.Second {
					t.Errorf("a waiter asks again after %v", held.PollAfter)
				}
				queued.Store(int64(time.Since(start) / trip))
			})
		}
		wg.Wait()
		t.Logf("subscribed after %d trips, in the queue after %d", subscribed.Load(), queued.Load())
		if s, l := subscribed.Load(), queued.Load(); s > 5 || l > 7 {
			t.Errorf("%d waiters are subscribed after %d round trips, want 5 at most, and in the queue after %d", waiters, s, l)
		}
		cancel()
		synctest.Wait()
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		<-n.wg.Idle()
	})
}

// Close gives clean-ups about a call timeout, and leaves nothing behind. With an application's
// client, which ends its calls itself, that takes at most another call timeout.
func TestCloseIsBoundedWhereTheServerHangs(t *testing.T) {
	for _, own := range []bool{true, false} {
		t.Run(fmt.Sprintf("own=%v", own), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lib := newLibrary(time.Millisecond, true)
				n, err := New(Config{Client: hanging{lib, own}, Abandon: func(time.Time) {}})
				if err != nil {
					t.Fatal(err)
				}
				ask := func(key string) (driver.Lease, error) {
					return n.Acquire(t.Context(), &driver.Request{Key: key, Owner: "o/" + key, TTL: time.Minute})
				}
				l, err := ask("a")
				if err != nil {
					t.Fatal(err)
				}
				lib.Takes.Store(int64(time.Hour))
				if _, err := ask("b"); err == nil {
					t.Fatal("a lock of a server that hangs")
				}
				returned := make(chan error, 1)
				go func() { returned <- l.Release(t.Context()) }()
				time.Sleep(time.Millisecond) // the release and the clean-up are under way
				start := time.Now()
				if err := n.Close(); err != nil {
					t.Error(err)
				}
				most := second + second/4
				if !own {
					most += second
				}
				if d := time.Since(start); d > most {
					t.Errorf("Close took %v", d)
				}
				if err := <-returned; err == nil {
					t.Error("a release that was never answered succeeded")
				}
				<-n.wg.Idle()
			})
		})
	}
}
