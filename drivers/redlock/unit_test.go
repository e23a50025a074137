package redlock

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/quorum"
	_ "github.com/redlock-go/redlock/drivers/goredis"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/internal/redisnode"
	"github.com/redlock-go/redlock/drivers/memory"
)

// The error for a bad URL names the bad part and contains no secret. A parameter of the whole quorum
// in the URL of one node, usually the last, would be ignored or make the nodes differ.
func TestBadURLsAreRefusedBeforeIO(t *testing.T) {
	for url, part := range map[string]string{
		"redlock:":                                         "URL",
		"redlock:memory:a,,memory:b":                       "empty item",
		"redlock:memory:a,s3cret":                          "item 2",
		"redlock:memory:a,memory:a":                        "are the same",
		"redlock:memory:a,node_timeout=s3cret":             `parameter "node_timeout"`,
		"redlock:memory:a,node_timout=5ms":                 `parameter "node_timout"`,
		"redlock:memory:a,drift_percent=60":                `parameter "drift_percent"`,
		"redlock:memory:a,restart_guard=never":             `parameter "restart_guard"`,
		"redlock:memory:a,in_flight=5":                     `parameter "in_flight"`,
		"redlock:memory:a,drift_percent=5,drift_percent=6": "given twice",
		"redlock:memory:a,nosuch://:s3cret@h":              "nosuch",
		"redlock:memory:1,memory:2,memory:3,memory:4,memory:5,memory:6,memory:7,memory:8,memory:9,memory:10": "there are 10",
		"redlock:redis://u:s3cret@a,redis://b?restart_guard=off":                                             "restart_guard",
		"redlock:redis://u:s3cret@a,redis://b?pool_size=3&prefix=app":                                        "prefix",
		"redlock:redis://u:s3cret@a,redis://b?ttl=5s":                                                        "ttl",
		"redlock:redis://u:s3cret@a,redis://b?pool_size=3&node_timeout=70ms":                                 "node_timeout",
		"redlock:redis://u:s3cret@a,redis://b?bootstrap=true":                                                "Bootstrap",
	} {
		b, err := dlock.OpenURL(url)
		if err == nil {
			_ = b.Close()
			t.Errorf("%s was opened", url)
			continue
		}
		if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want one about %s", url, err, part)
		}
	}
}

func TestAURLNamesNodesAndOptions(t *testing.T) {
	b, err := dlock.OpenBackend("redlock:memory:u1,memory:u2,node_timeout=70ms,memory:u3,restart_guard=off,clock_allowance=5ms,drift_percent=8")
	drivertest.Must(t, err)
	q := b.(*Backend)
	if len(q.nodes) != 3 || q.opts.NodeTimeout != 70*time.Millisecond || q.opts.Guard != 0 || q.opts.ClockAllowance != 5*time.Millisecond || q.opts.DriftPercent != 8 {
		t.Errorf("got %+v", q.opts)
	}
	drivertest.Must(t, b.Close())
	if _, err := q.nodes[0].backend.Acquire(t.Context(), request1("k", "o", time.Second)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("Close left a node open that Open had opened: %v", err)
	}
	if _, err := b.Acquire(t.Context(), request1("k", "o", time.Second)); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// named gives a node its own address.
type named struct {
	driver.Backend
	name string
}

func (n named) String() string { return n.name }

// A server that is listed under two addresses would vote twice, and is refused.
func TestOneServerDoesNotVoteTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory.New()
		b := opened(t, []driver.Backend{named{m, "a"}, named{m.Peer(), "b"}, named{memory.New(), "c"}}, nil)
		var err error
		for range 3 {
			_, err = b.Acquire(t.Context(), request1("k", "web/x", time.Second))
			if errors.Is(err, driver.ErrRefused) {
				break
			}
			synctest.Wait() // one of the two and the third are a majority, perhaps before the other answers
		}
		if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "nodes a and b are the same server") {
			t.Errorf("got %v", err)
		}
	})
}

// script is a node whose answers the test supplies.
type script struct {
	driver.Backend
	acquire func(context.Context, *driver.Request) (driver.Lease, error)
}

func (s script) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	return s.acquire(ctx, r)
}
func (s script) String() string { return s.Backend.(fmt.Stringer).String() }

// lateContext is a context whose timer has not fired yet, though its deadline has passed.
type lateContext struct {
	context.Context
	deadline time.Time
}

func (c lateContext) Deadline() (time.Time, bool) { return c.deadline, true }

// The node timeout ends together with the caller's time, and its timer may fire first. The
// error still says that the caller's time was over.
func TestADeadlineIsToldBeforeItsTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		silent := func() driver.Backend {
			return script{memory.New(), func(ctx context.Context, _ *driver.Request) (driver.Lease, error) {
				<-ctx.Done()
				return nil, errors.New("no answer")
			}}
		}
		b := opened(t, []driver.Backend{silent(), silent(), silent()}, nil)
		ctx := lateContext{t.Context(), time.Now().Add(20 * time.Millisecond)}
		if _, err := b.Acquire(ctx, request1("k", "web/x", time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

// If the wall clock jumps and the boot-time clock does not, the machine may have paused. The
// current bid fails and leaves nothing behind, and the next one does not propose a token from
// the old knowledge of the nodes' clocks.
func TestAJumpOfTheWallClockFailsABid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set atomic.Int64
		var jump, zero atomic.Bool
		stores := [3]*memory.Backend{memory.New(), memory.New(), memory.New()}
		nodes := make([]driver.Backend, len(stores))
		for i, store := range stores {
			nodes[i] = script{store, func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				time.Sleep(time.Millisecond)
				if i == 0 {
					zero.Store(r.FenceFloor == 0)
				}
				if jump.Swap(false) {
					set.Add(int64(-time.Second))
				}
				return store.Acquire(ctx, r)
			}}
		}
		b := opened(t, nodes, nil)
		b.clock = boot.New(boot.Source{Wall: func(now time.Time) time.Time { return now.Add(time.Duration(set.Load())) }})
		// The answers to the first bid have no clock yet; those to the bid with the jump have
		// none that can be trusted.
		for _, c := range []struct{ jumps, zero bool }{{zero: true}, {}, {jumps: true}, {zero: true}, {}} {
			jump.Store(c.jumps)
			l, err := b.Acquire(t.Context(), request1("k", "web/x", time.Second))
			synctest.Wait()
			switch {
			case c.jumps && (err == nil || errors.Is(err, driver.ErrHeld) || !strings.Contains(err.Error(), "wall clock")):
				t.Errorf("with a jump the bid ends with %v", err)
			case !c.jumps && err != nil:
				t.Fatal(err)
			case zero.Load() != c.zero:
				t.Errorf("a token was proposed: %v, want %v", !zero.Load(), !c.zero)
			}
			if err == nil {
				err = l.Release(t.Context())
				synctest.Wait()
			} else {
				err = nil
			}
			for i, store := range stores {
				s, e := store.Lookup(t.Context(), "k")
				if err != nil || e != nil || len(s.Holders) > 0 {
					t.Errorf("node %d has %+v afterwards (%v, %v)", i, s, err, e)
				}
			}
		}
	})
}

// The error for a bad option says what the option must be, and what it is.
func TestTheErrorForABadOptionSaysWhatItMustBe(t *testing.T) {
	for want, o := range map[string]*Options{
		"NodeTimeout: must be 0 or more, not -1ns":                        {NodeTimeout: -1},
		"ClockAllowance: must be 0 or more, not -1ns":                     {ClockAllowance: -1},
		"DriftPercent: must be 1 to 50, or 0 for the default, not 51":     {DriftPercent: 51},
		"Guard: is off, so Bootstrap must not be set":                     {Guard: -1, Bootstrap: true},
		"NodeTimeout: 2s must be at most the restart guard, 1s, which is": {NodeTimeout: 2 * time.Second, Guard: time.Second},
		"ClockAllowance: 2s must be less than the restart guard, 1s":      {ClockAllowance: 2 * time.Second, Guard: time.Second},
	} {
		if _, err := New([]driver.Backend{memory.New()}, o); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// A TTL over the guard, or under the node timeout, is refused; the error names both.
func TestATTLThatContradictsTheOptionsIsRefused(t *testing.T) {
	b := opened(t, []driver.Backend{memory.New()}, &Options{Guard: 10 * time.Second, NodeTimeout: 2 * time.Second})
	refused := func(err error, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), part) {
				t.Errorf("%v, want one about %s", err, part)
			}
		}
	}
	_, err := b.Acquire(t.Context(), request1("k", "web/x", time.Second))
	refused(err, "NodeTimeout", "TTL", "2s", "1s")
	_, err = b.Acquire(t.Context(), request1("k", "web/x", 20*time.Second))
	refused(err, "TTL", "20s", "10s")
	l, err := b.Acquire(t.Context(), request1("k", "web/x", 2*time.Second))
	drivertest.Must(t, err)
	_, err = l.Renew(t.Context(), &driver.Renewal{TTL: time.Second})
	refused(err, "NodeTimeout", "TTL", "2s", "1s")
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The answers of a minority alone decide no verdict. Nodes that are reserved for the next waiter count
// together with the owner of the most other nodes: that is a verdict, not a split vote that needs
// further rounds of bids. The verdict names an owner only if this owner has enough nodes by itself:
// with fewer nodes it may have released the lock, or may not get it.
func TestAMinoritysVerdictDoesNotLeak(t *testing.T) {
	errDown := errors.New("connection refused")
	say := func(after time.Duration, err error) driver.Backend {
		return script{memory.New(), func(context.Context, *driver.Request) (driver.Lease, error) {
			time.Sleep(after)
			return nil, err
		}}
	}
	held := func(by string, after time.Duration) driver.Backend {
		return say(after, &driver.HeldError{Holder: by, RetryAfter: time.Minute})
	}
	refused := say(0, &driver.RefusedError{Reason: "read-only"})
	loading := say(0, &driver.RefusedError{Reason: "loading", RetryAfter: time.Second})
	// These nodes answer last: once two of four are known to be down, or three are reserved, the bid no
	// longer waits for the other answers.
	down := func() driver.Backend { return say(time.Millisecond, errDown) }
	kept := func() driver.Backend {
		return say(time.Millisecond, &driver.HeldError{ReservedForWaiter: true, RetryAfter: 30 * time.Millisecond})
	}
	x := func() driver.Backend { return held("x/1", 0) }
	dead := func() driver.Backend { return say(0, errDown) }
	endless := func() driver.Backend { return say(0, &driver.HeldError{Holder: "x"}) }
	polled := func() driver.Backend { return say(0, &driver.HeldError{Holder: "x", PollAfter: time.Second}) }
	since := time.Unix(1, 0)
	anything := driver.HeldError{RetryAfter: -1}
	each := func(of driver.HeldError, others ...driver.Backend) []driver.Backend { // different times
		for _, n := range []time.Duration{4, 1, 3} {
			h := of
			h.RetryAfter, h.PollAfter, h.Server = n*time.Minute, n*time.Second, "one"
			others = append(others, say(time.Millisecond, &h))
		}
		return others
	}
	for name, c := range map[string]struct {
		nodes []driver.Backend
		want  any // an error, or what a *driver.HeldError says: any, if its RetryAfter is -1; nil: neither held nor refused
	}{
		"two held, the rest down":                         {[]driver.Backend{x(), x(), down(), down(), down()}, nil},
		"two refused":                                     {[]driver.Backend{refused, loading, down(), down(), down()}, nil},
		"three held by one":                               {[]driver.Backend{x(), held("x/2", 0), held("x/1|77", 0), down(), down()}, driver.HeldError{Holder: "x", RetryAfter: time.Minute}},
		"three held by three":                             {[]driver.Backend{x(), held("y/2", 0), held("z/1", 0), down(), down()}, nil},
		"three refused":                                   {[]driver.Backend{refused, loading, say(0, &driver.RefusedError{Reason: "no"}), x(), down()}, driver.ErrRefused},
		"half of four held by one":                        {[]driver.Backend{x(), x(), down(), down()}, anything},
		"held, at different times":                        {each(driver.HeldError{Holder: "x/1", Since: since}, dead(), dead()), driver.HeldError{Holder: "x", Since: since, RetryAfter: 4 * time.Minute, PollAfter: time.Second}},
		"kept, at different times":                        {each(driver.HeldError{ReservedForWaiter: true}, memory.New(), memory.New()), driver.HeldError{ReservedForWaiter: true, RetryAfter: time.Minute, PollAfter: time.Second}},
		"held, nobody knows until when":                   {[]driver.Backend{endless(), endless(), endless(), dead(), dead()}, driver.HeldError{Holder: "x"}},
		"one of two does not say until when":              {[]driver.Backend{endless(), x(), dead()}, driver.HeldError{Holder: "x"}},
		"two of four":                                     {[]driver.Backend{polled(), polled(), down(), down()}, driver.HeldError{Holder: "x"}},
		"both of two":                                     {each(driver.HeldError{Holder: "x/1"})[:2], driver.HeldError{Holder: "x", RetryAfter: 4 * time.Minute, PollAfter: time.Second}},
		"kept, nobody knows how long the others are held": {[]driver.Backend{kept(), endless(), endless(), dead(), dead()}, driver.HeldError{ReservedForWaiter: true, RetryAfter: 30 * time.Millisecond}},
		"held by one, and by another before and after it": {[]driver.Backend{held("y/1", 0), x(), x(), held("x/1", 2*time.Millisecond), held("y/1", 0)}, driver.HeldError{Holder: "x", RetryAfter: time.Minute}},

		"all kept":                    {[]driver.Backend{kept(), kept(), kept(), kept(), kept()}, driver.HeldError{ReservedForWaiter: true, RetryAfter: 30 * time.Millisecond}},
		"a few have not heard of it":  {[]driver.Backend{x(), kept(), kept(), kept(), kept()}, driver.HeldError{ReservedForWaiter: true, RetryAfter: 30 * time.Millisecond}},
		"some kept, the rest its own": {[]driver.Backend{x(), kept(), x(), kept(), kept()}, driver.HeldError{ReservedForWaiter: true, RetryAfter: -1}},
		"a majority with a minority":  {[]driver.Backend{kept(), dead(), x(), dead(), x()}, driver.HeldError{ReservedForWaiter: true, RetryAfter: 30 * time.Millisecond}},
		"enough by itself":            {[]driver.Backend{kept(), x(), x(), dead(), x()}, driver.HeldError{Holder: "x", RetryAfter: time.Minute}},
		// The owner's third node answers after the reserved nodes.
		"enough, if all are heard": {[]driver.Backend{kept(), kept(), x(), x(), held("x/1", 2*time.Millisecond)}, driver.HeldError{Holder: "x", RetryAfter: time.Minute}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, err := opened(t, c.nodes, nil).Acquire(t.Context(), request1("k", "me", time.Second))
				var h *driver.HeldError
				switch want := c.want.(type) {
				case driver.HeldError:
					if strings.Count(err.Error(), "held by") > 1 {
						t.Errorf("the error names the holder twice: %v", err)
					}
					if !errors.As(err, &h) || want != anything && h.Holder != want.Holder || h.ReservedForWaiter != want.ReservedForWaiter || want.RetryAfter >= 0 && h.RetryAfter != want.RetryAfter ||
						want.PollAfter != h.PollAfter || !want.Since.Equal(h.Since) || h.Server != "" {
						t.Errorf("got %v: %+v", err, h)
					}
				case error:
					if !errors.Is(err, want) || errors.Is(err, driver.ErrHeld) {
						t.Errorf("got %v", err)
					}
				default:
					if errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) {
						t.Errorf("got %v", err)
					}
				}
				var q *quorum.Error
				if errors.Is(err, errDown) || !errors.As(err, &q) || len(q.Votes) != len(c.nodes) || q.Need != len(c.nodes)/2+1 {
					t.Errorf("no votes in %v, or one node's error", err)
				}
			})
		})
	}
}

// simNodes returns new servers, and a node over each of these links.
func simNodes(links ...network) (servers []*simServer, nodes []driver.Backend) {
	for i := range links {
		servers = append(servers, newSimServer(i))
		nodes = append(nodes, &simNode{s: servers[i], net: &links[i], rng: rand.New(rand.NewPCG(1, uint64(i)))})
	}
	return servers, nodes
}

// A node whose clock disagrees does not count, and the error names it.
func TestClocksThatDisagreeDoNotCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, nodes := simNodes(make([]network, 3)...)
		var notices []driver.Notice
		b := opened(t, nodes, &Options{Guard: -1, Notify: func(e driver.Notice) { notices = append(notices, e) }})
		servers[0].step(time.Hour)
		l, err := b.Acquire(t.Context(), request1("k", "one", time.Second))
		if err != nil {
			t.Fatalf("two of three agree: %v", err)
		}
		synctest.Wait()
		drivertest.Must(t, l.Release(t.Context()))
		servers[1].step(-time.Hour)
		_, err = b.Acquire(t.Context(), request1("k", "two", time.Second))
		if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "sim-2: its clock is 1h0m0s ahead") {
			t.Errorf("no two agree: %v", err)
		}
		if len(notices) == 0 || notices[0].Kind != quorum.NoticeClockSkew {
			t.Errorf("notices: %v", notices)
		}

		servers, nodes = simNodes(append(make([]network, 4), network{delay: time.Second}, network{delay: time.Second}, network{delay: time.Second})...)
		for i, ahead := range []time.Duration{7, 0, 3, 1} {
			servers[i].step(ahead * time.Hour)
		}
		_, err = opened(t, nodes, &Options{Guard: -1}).Acquire(t.Context(), request1("k", "three", time.Second))
		for _, part := range []string{"they are 7h0m0s apart", "1 of 7 nodes granted, 4 needed", "clock is 3h0m0s behind", "clock is 2h0m0s ahead", "clock is 2h0m0s behind"} {
			if !strings.Contains(fmt.Sprint(err), part) {
				t.Errorf("the error lacks %q: %v", part, err)
			}
		}
	})
}

// The number of an attempt is no part of the owner's name.
func TestAllAttemptsOfARequestAreOneOwner(t *testing.T) {
	for holder, want := range map[string]string{
		"x/1": "x", "x/9z|7": "x", "a/b/zzzzzz": "a/b", "x|7": "x",
		"/1": "/1", "x/": "x/", "x/1234567": "x/1234567", "x/A": "x/A", "x": "x",
	} {
		if got := requester(holder); got != want {
			t.Errorf("%s is of %s, want %s", holder, got, want)
		}
	}
}

// Processes of all versions must ask the same node first.
func TestTheFirstNodeIsAHashOfTheKey(t *testing.T) {
	for i := range 100 {
		key := fmt.Sprint("key/", i)
		h := fnv.New32a()
		_, _ = h.Write([]byte(key))
		if got, want := firstNode(key, 5), int8(h.Sum32()%5); got != want {
			t.Errorf("%s: node %d is first, want %d", key, got, want)
		}
	}
}

// The clock of a lease is the median of those of its nodes.
func TestTheClockOfALeaseIsTheMedian(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, nodes := simNodes(make([]network, 5)...)
		for i, ahead := range []time.Duration{30, 10, 50, 20, 40} {
			servers[i].step(ahead * time.Millisecond)
		}
		l, err := opened(t, nodes, &Options{Guard: -1}).Acquire(t.Context(), request1("k", "one", time.Minute))
		drivertest.Must(t, err)
		time.Sleep(time.Second) // all nodes have answered
		if ahead := time.Until(l.Grant().Clock).Round(time.Millisecond); ahead != 30*time.Millisecond {
			t.Errorf("it is %v ahead", ahead)
		}
		drivertest.Must(t, l.Release(t.Context()))
		if now := l.Grant().Clock; !now.IsZero() {
			t.Errorf("a lease without nodes has the clock %v", now)
		}
	})
}

// hasty is a node with a call timeout of its own.
type hasty struct{ *simNode }

func (n hasty) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	return n.simNode.Acquire(ctx, r)
}

// A node that keeps timing out is skipped until a probe succeeds; notices report both.
func TestANodeThatTimesOutIsSkippedAndRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, nodes := simNodes(make([]network, 3)...)
		nodes[1] = hasty{nodes[1].(*simNode)}
		var mu sync.Mutex
		var notices []string
		b := opened(t, nodes, &Options{Guard: -1, Notify: func(e driver.Notice) {
			mu.Lock()
			defer mu.Unlock()
			notices = append(notices, e.Kind)
		}})
		lock := func(i int) {
			l, err := b.Acquire(t.Context(), request1(fmt.Sprint("k", i), fmt.Sprint("o", i), time.Second))
			drivertest.Must(t, err)
			drivertest.Must(t, l.Release(t.Context()))
		}
		servers[1].pause(time.Minute)
		for i := range 10 {
			lock(i)
			time.Sleep(100 * time.Millisecond)
		}
		if b.tripped() != 1<<1 {
			t.Fatalf("skipped are %b", b.tripped())
		}
		time.Sleep(2 * time.Minute)
		lock(10) // this bid is the probe
		time.Sleep(time.Second)
		lock(11)
		if b.tripped() != 0 {
			t.Errorf("still skipped: %b", b.tripped())
		}
		mu.Lock()
		defer mu.Unlock()
		if fmt.Sprint(notices) != "[node skipped node restored]" {
			t.Errorf("notices: %v", notices)
		}
	})
}

// The breaker opens after five timeouts in a row over 200 ms, lets a probe through each second, and
// closes after an answer.
func TestTheBreakerOpensAfterTimeoutsInARow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var notices []string
		n := newNode(2, struct{ driver.Backend }{memory.New()})
		n.notify = func(e driver.Notice) { notices = append(notices, e.Node+": "+e.Kind) }
		for _, c := range []struct {
			late  bool
			times int
			every time.Duration
			open  bool
		}{
			{true, 5, 0, false}, // at once
			{false, 1, time.Second, false},
			{true, 4, 100 * time.Millisecond, false},
			{false, 1, 0, false},
			{true, 5, 40 * time.Millisecond, false}, // over 160 ms
			{false, 1, 0, false},
			{true, 5, 50 * time.Millisecond, true},
			{true, 1, 0, true},
			{false, 1, 0, false},
		} {
			for range c.times {
				n.report(c.late)
				if n.tripped.Load() {
					break
				}
				time.Sleep(c.every)
			}
			if n.tripped.Load() != c.open {
				t.Errorf("after %+v the breaker is open: %v", c, n.tripped.Load())
			}
			if c.open && (n.probes() || len(notices) != 1) {
				t.Errorf("a probe comes at once, or the notices are %v", notices)
			}
			switch {
			case c.open && c.times > 1:
				time.Sleep(probeEvery / 2)
			case c.open:
				time.Sleep(probeEvery / 2)
				if !n.probes() || n.probes() {
					t.Error("no probe, or two of them, after a second")
				}
			}
		}
		if fmt.Sprint(notices) != "[memory#3: node skipped memory#3: node restored]" {
			t.Errorf("notices: %v", notices)
		}
	})
}

// A writer whom readers refuse does not wait for a node that does not answer: it would get into the queue late, and readers
// would come first meanwhile.
func TestReadersRefuseAWriterAtOnceBesideANodeThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, nodes := simNodes(make([]network, 5)...)
		b := opened(t, nodes, &Options{Guard: -1})
		read := request1("k", "reader", time.Minute)
		read.Mode = driver.Shared
		if _, err := b.Acquire(t.Context(), read); err != nil {
			t.Fatal(err)
		}
		servers[1].pause(time.Minute)
		start := time.Now()
		_, err := b.Acquire(t.Context(), request1("k", "writer", time.Minute))
		if took := time.Since(start); !errors.Is(err, driver.ErrHeld) || took > 50*time.Millisecond {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// A bid that fails leaves the counter of a node that granted it as it was, whether the counter is a
// moment behind the clock, long behind it, or not there.
func TestAFailedBidGivesItsVoteBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, nodes := simNodes(make([]network, 3)...)
		b := opened(t, nodes, &Options{Guard: -1})
		for _, n := range b.nodes[1:] {
			rival := request1("k", "rival", time.Hour)
			rival.Quorum = b.quorum(n, b.clock.Now(), 0)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := n.backend.Acquire(ctx, rival)
			drivertest.Must(t, err)
		}
		for _, ago := range []time.Duration{time.Millisecond, time.Minute, 0} {
			k, before := servers[0].key(), uint64(0)
			if ago > 0 {
				before = uint64(time.Now().Add(-ago).UnixMicro())
			}
			k.counter, k.ends = before, time.Now().Add(time.Hour)
			if _, err := b.Acquire(t.Context(), request1("k", "one", time.Minute)); !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if k := servers[0].key(); k.owner != "" || k.counter != before {
				t.Errorf("the counter was %d, and a failed bid leaves %d, and the lock to %q", before, k.counter, k.owner)
			}
		}
	})
}

// A request that ended at its deadline, which may be its caller's, tells nothing of the node, whatever its driver's clock shows.
func TestADeadlineOfTheCallerIsNoTimeoutOfTheNode(t *testing.T) {
	b := opened(t, []driver.Backend{memory.New()}, nil)
	for _, end := range []time.Duration{20 * time.Millisecond, time.Second} {
		sent := b.clock.Now()
		g := &nodeRequest{l: &lease{b: b, bid: bid{timeout: time.Second}}, call: acquire, sent: sent, until: sent.Add(end)}
		g.learn(&result{err: context.DeadlineExceeded, received: sent.Add(20 * time.Millisecond)})
		if late := b.late() != 0; late != (end == time.Second) {
			t.Errorf("a request of %v ended after 20 ms: the node is late: %v", end, late)
		}
	}
}

// If the nodes granted different tokens, only the lease's own token breaks it.
func TestBreakTakesTheLeasesTokenAndNotANodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpaces(3)
		ahead := uint64(time.Now().Add(driver.FenceSlack / 2).UnixMicro())
		for i, node := range s { // different counters, all ahead of the proposed token
			r := request1("k", fmt.Sprint("before/", i), time.Second)
			r.FenceFloor = ahead + uint64(10*i)
			l, err := node.Acquire(t.Context(), r)
			drivertest.Must(t, err)
			drivertest.Must(t, l.Release(t.Context()))
		}
		b := s.quorum(t, nil)
		l, err := b.Acquire(t.Context(), request1("k", "web/a", 20*time.Second))
		drivertest.Must(t, err)
		synctest.Wait() // if a straggler joins during the renewal, its result would be unknown
		for i, node := range s {
			st, err := node.Lookup(t.Context(), "k")
			drivertest.Must(t, err)
			for _, h := range st.Holders {
				if h.Fence == l.Grant().Fence {
					continue
				}
				if err := b.Break(t.Context(), "k", h); !errors.Is(err, driver.ErrLost) {
					t.Errorf("Break with node %d's token, %d under the lease's: %v", i, l.Grant().Fence-h.Fence, err)
				}
			}
		}
		drivertest.Must(t, b.Break(t.Context(), "k", driver.Holder{Fence: l.Grant().Fence}))
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("the renewal of a broken lock: %v", err)
		}
	})
}

// List yields the locks that any majority has, and while a minority is down those that it can
// still see. A node that hangs costs it a part of the caller's time, but not the answers of the others.
func TestListFindsWhatAMajorityHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpaces(3)
		hangs := false // the nodes that are down
		without := func(down ...int) *Backend {
			nodes := make([]driver.Backend, len(s))
			for i := range s {
				nodes[i] = s[i].Peer()
			}
			for _, i := range down {
				if n := nodes[i].(*memory.Backend); hangs {
					nodes[i] = hangingList{n}
				} else {
					n.Fail(errors.New("connection refused"))
				}
			}
			return opened(t, nodes, nil)
		}
		list := func(want []string, down ...int) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var keys []string
			began := time.Now()
			err := without(down...).List(ctx, "not ", func(st *driver.State) bool {
				if len(st.Holders) != 1 || st.Holders[0].Owner != "web/"+st.Key || len(st.Nodes) != 3 {
					t.Errorf("List yields %+v", st)
				}
				for _, i := range down {
					if st.Nodes[i].Err == "" || st.Nodes[i].State != nil {
						t.Errorf("node %d is down, and says %+v", i, st.Nodes[i])
					}
				}
				keys = append(keys, st.Key)
				return true
			})
			drivertest.Must(t, err)
			if took := time.Since(began); took > 500*time.Millisecond {
				t.Errorf("without the nodes %v List took %v", down, took)
			}
			if slices.Sort(keys); !slices.Equal(keys, want) {
				t.Errorf("without the nodes %v List yields %q, want %q", down, keys, want)
			}
		}
		all := []string{"not on 0", "not on 1", "not on 2"}
		for i, key := range all {
			if _, err := without(i).Acquire(t.Context(), request1(key, "web/"+key, 20*time.Second)); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		list(all)
		for i, key := range all {
			hangs = false
			list([]string{key}, i)
			hangs = true
			list([]string{key}, i)
		}
		hangs = false
		if err := without(0, 2).List(t.Context(), "", func(*driver.State) bool { return true }); !errors.As(err, new(*quorum.Error)) || !strings.Contains(err.Error(), "of 3 nodes answered, 2 needed") {
			t.Errorf("without a majority: %v", err)
		}
	})
}

// An error names each node only once, even if the node's own error begins with its name, or if
// the verdict is a node's own error.
func TestAnErrorNamesEachNodeOnce(t *testing.T) {
	quarantined := func(name string) error {
		return &driver.RefusedError{RetryAfter: 3 * time.Second, Reason: name + ": restart guard"}
	}
	for name, c := range map[string]struct {
		say  func(node string) error
		want string
	}{
		"late":   {func(node string) error { return errors.New(node + " did not answer in time") }, "0 of 3 nodes granted, 2 needed: redis://h:11/0 did not answer in time; redis://h:111/0 did not answer in time"},
		"silent": {nil, "0 of 3 nodes granted, 2 needed: redis://h:1/0: no answer within 250ms; redis://h:11/0: no answer within 250ms; redis://h:111/0: no answer within 250ms"},
		"denied": {func(node string) error { return &driver.RefusedError{Reason: node + ": no"} }, "redis://h:11/0: no (0 of 3 nodes granted, 2 needed): redis://h:111/0: no"},
		"held": {func(node string) error {
			if node == "redis://h:111/0" {
				return errors.New("EOF")
			}
			return &driver.HeldError{Holder: "x/1"}
		}, "held by x (0 of 3 nodes granted, 2 needed): redis://h:111/0: EOF"},
		"nameless":    {func(string) error { return errors.New("EOF") }, "0 of 3 nodes granted, 2 needed: redis://h:11/0: EOF; redis://h:111/0: EOF"},
		"quarantined": {quarantined, "redis://h:11/0: restart guard (retry in 3s) (0 of 3 nodes granted, 2 needed): redis://h:111/0: restart guard (retry in 3s)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var nodes []driver.Backend
				for i, node := range []string{"redis://h:1/0", "redis://h:11/0", "redis://h:111/0"} {
					nodes = append(nodes, named{script{memory.New(), func(context.Context, *driver.Request) (driver.Lease, error) {
						if c.say == nil {
							time.Sleep(time.Second)
							return nil, errors.New("no answer")
						}
						time.Sleep(time.Duration(3-i) * time.Millisecond) // the first node is not needed
						return nil, c.say(node)
					}}, node})
				}
				b := opened(t, nodes, nil)
				if _, err := b.Acquire(t.Context(), request1("k", "me", time.Second)); err == nil || err.Error() != c.want {
					t.Errorf("got  %v\nwant %s", err, c.want)
				}
				time.Sleep(time.Minute)
			})
		})
	}
}

// A renewal that no majority confirmed says how many did, and why the others did not.
func TestARenewalWithoutAMajoritySaysWhoConfirmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := []driver.Backend{named{memory.New(), "n0"}}
		for _, name := range []string{"n1", "n2"} {
			nodes = append(nodes, named{closesLater{memory.New()}, name})
		}
		l, err := opened(t, nodes, nil).Acquire(t.Context(), request1("k", "me", time.Second))
		drivertest.Must(t, err)
		synctest.Wait()
		const want = "a majority did not confirm the renewal (1 of 3 nodes confirmed, 2 needed: n1: EOF; n2: EOF)"
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}); err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
	})
}

// closesLater is a node that closes the connection in a renewal, after others have answered.
type closesLater struct{ driver.Backend }

func (b closesLater) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l, err := b.Backend.Acquire(ctx, r)
	return closesLaterLease{l}, err
}

type closesLaterLease struct{ driver.Lease }

func (closesLaterLease) Renew(context.Context, *driver.Renewal) (driver.Grant, error) {
	time.Sleep(time.Millisecond)
	return driver.Grant{}, errors.New("EOF")
}

// hangingList is a node whose List hangs until the caller's context ends.
type hangingList struct{ *memory.Backend }

func (h hangingList) List(ctx context.Context, _ string, _ func(*driver.State) bool) error {
	<-ctx.Done()
	return ctx.Err()
}

// Calls to an application's own backend around one that can start calls pass through its methods.
func TestABackendAroundANodeGetsEveryCall(t *testing.T) {
	n, err := redisnode.New(redisnode.Config{Name: "redis", Addr: "h"})
	drivertest.Must(t, err)
	if newNode(0, n).async == nil || newNode(0, struct{ *redisnode.Node }{n}).async != nil {
		t.Error("calls are started on what is around a node")
	}
}

// A first contact that hangs delays no caller beyond its context.
func TestAFirstContactThatHangsIsWaitedForTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, nodes := simNodes(make([]network, 3)...)
		for _, s := range servers {
			s.pause(time.Hour)
		}
		b, err := New(nodes, &Options{NodeTimeout: 10 * time.Second})
		drivertest.Must(t, err)
		began := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
				defer cancel()
				if _, err := b.Acquire(ctx, request1("k", "o", 20*time.Second)); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
			})
		}
		all.Wait()
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("twenty callers waited for %v", took)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
}

// If nodes refuse for a while, RetryAfter is the time until so few still refuse that a majority
// is possible again.
func TestTheRefusalThatCountsIsTheOneThatGivesAMajority(t *testing.T) {
	const enough = 3 // this many refusals of five nodes exclude a majority
	for _, c := range []struct {
		after []time.Duration // zero: permanently
		want  time.Duration
	}{
		{[]time.Duration{50, 10, 40}, 10},
		{[]time.Duration{50, 10, 40, 20}, 20},
		{[]time.Duration{50, 10, 40, 20, 30}, 30},
		{[]time.Duration{0, 50, 10}, 10},
		{[]time.Duration{0, 50, 0, 10}, 50},
	} {
		forever, today := 0, []*driver.RefusedError(nil)
		for _, d := range c.after {
			if d == 0 {
				forever++
			} else {
				today = append(today, &driver.RefusedError{RetryAfter: d})
			}
		}
		if got := firstToEnd(today, forever, enough).RetryAfter; got != c.want {
			t.Errorf("of %v: %v, want %v", c.after, got, c.want)
		}
	}
}

// noting is a node that notes the WaitingSince of each request.
type noting struct {
	*memory.Backend
	mu    *sync.Mutex
	since *[]uint64
}

func (l noting) Acquire(ctx context.Context, r *driver.Request) (driver.Lease, error) {
	l.mu.Lock()
	*l.since = append(*l.since, r.Quorum.WaitingSince)
	l.mu.Unlock()
	return l.Backend.Acquire(ctx, r)
}

// Every attempt of a waiting client has the same WaitingSince for all nodes, and a new one
// after the client was served.
func TestNodesAreToldOneTimeSinceWhenAClientWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpaces(5)
		other := s.quorum(t, nil)
		var mu sync.Mutex
		var since []uint64
		nodes := make([]driver.Backend, len(s))
		for i := range s {
			nodes[i] = noting{s[i].Peer(), &mu, &since}
		}
		b := opened(t, nodes, nil)
		said := func() []uint64 {
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			all := since
			since = nil
			return slices.Compact(all)
		}
		ask := func() (driver.Lease, []uint64) {
			l, err := b.Acquire(t.Context(), request1("k", "me", 20*time.Second))
			if err != nil && !errors.Is(err, driver.ErrHeld) {
				t.Fatal(err)
			}
			return l, said()
		}
		l, err := other.Acquire(t.Context(), request1("k", "other", 20*time.Second))
		drivertest.Must(t, err)
		if _, got := ask(); !slices.Equal(got, []uint64{0}) {
			t.Errorf("a client that does not wait is said to wait since %d", got)
		}
		began := uint64(time.Now().UnixMicro())
		ctx, cancel := context.WithCancel(t.Context())
		if _, err := b.Watch(ctx, "k"); err != nil {
			t.Fatal(err)
		}
		_, first := ask()
		time.Sleep(time.Second)
		_, second := ask()
		if len(first) != 1 || first[0] < began || first[0] > began+1e6 || !slices.Equal(first, second) {
			t.Errorf("a client that waits since %d is said to wait since %d, and then since %d", began, first, second)
		}
		drivertest.Must(t, l.Release(t.Context()))
		if l, _ = ask(); l == nil {
			t.Fatal("a free lock is not granted")
		}
		if _, next := ask(); len(next) != 1 || next[0] <= first[0] {
			t.Errorf("a client that was served is said to wait since %d, the same as before it was served, %d", next, first)
		}
		cancel()
		synctest.Wait()
		if _, got := ask(); !slices.Equal(got, []uint64{0}) {
			t.Errorf("a client that no longer waits is said to wait since %d", got)
		}
		if n := len(b.waits.byKey); n != 0 {
			t.Errorf("waits still has %d keys", n)
		}
		drivertest.Must(t, l.Release(t.Context()))
	})
}
