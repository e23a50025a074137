package redlock

import (
	"context"
	"errors"
	"fmt"
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
	"github.com/redlock-go/redlock/drivers/memory"
)

// The error for a bad URL names the bad part and contains no secret.
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
	} {
		b, err := dlock.OpenBackend(url)
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
	if err != nil {
		t.Fatal(err)
	}
	q := b.(*Backend)
	if len(q.nodes) != 3 || q.opts.NodeTimeout != 70*time.Millisecond || q.opts.Guard != 0 || q.opts.ClockAllowance != 5*time.Millisecond || q.opts.DriftPercent != 8 {
		t.Errorf("got %+v", q.opts)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
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
		b, err := New([]driver.Backend{named{m, "a"}, named{m.Peer(), "b"}, named{memory.New(), "c"}}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
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
		b, err := New([]driver.Backend{silent(), silent(), silent()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
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
		b, err := New(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
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
	} {
		if _, err := New([]driver.Backend{memory.New()}, o); !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// The error for terms that contradict each other names them; no node is asked.
func TestTermsThatContradictEachOtherAreRefused(t *testing.T) {
	asked := 0
	node := func() driver.Backend {
		store := memory.New()
		return script{store, func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
			asked++
			return store.Acquire(ctx, r)
		}}
	}
	names := func(err error, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), part) {
				t.Errorf("%v, want one about %s", err, part)
			}
		}
	}
	open := func(o *Options) (*Backend, error) { return New([]driver.Backend{node()}, o) }
	_, err := open(&Options{Guard: time.Second, ClockAllowance: 2 * time.Second})
	names(err, "ClockAllowance", "restart guard", "2s", "1s")
	_, err = open(&Options{Guard: time.Second, NodeTimeout: 2 * time.Second})
	names(err, "NodeTimeout", "restart guard", "2s", "1s")
	b, err := open(&Options{Guard: 10 * time.Second, NodeTimeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	_, err = b.Acquire(t.Context(), request1("k", "web/x", time.Second))
	names(err, "NodeTimeout", "TTL", "2s", "1s")
	_, err = b.Acquire(t.Context(), request1("k", "web/x", 20*time.Second))
	names(err, "TTL", "20s", "10s")
	if asked > 0 {
		t.Errorf("a node was asked %d times", asked)
	}
	l, err := b.Acquire(t.Context(), request1("k", "web/x", 2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Renew(t.Context(), &driver.Renewal{TTL: time.Second})
	names(err, "NodeTimeout", "TTL", "2s", "1s")
	if err := l.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// The answers of a minority alone decide no verdict.
func TestAMinoritysVerdictDoesNotLeak(t *testing.T) {
	errDown := errors.New("connection refused")
	say := func(err error) driver.Backend {
		return script{memory.New(), func(context.Context, *driver.Request) (driver.Lease, error) { return nil, err }}
	}
	held := func(by string) driver.Backend {
		return say(&driver.HeldError{Holder: by, RetryAfter: time.Second})
	}
	refused := say(&driver.RefusedError{Reason: "read-only"})
	loading := say(&driver.RefusedError{Reason: "loading", RetryAfter: time.Second})
	// The nodes that are down answer last: once two of four are known to be down, a majority is
	// impossible, and the bid no longer waits for the other answers.
	down := func() driver.Backend {
		return script{memory.New(), func(context.Context, *driver.Request) (driver.Lease, error) {
			time.Sleep(time.Millisecond)
			return nil, errDown
		}}
	}
	for name, c := range map[string]struct {
		nodes         []driver.Backend
		held, refused bool
	}{
		"two held, the rest down":  {nodes: []driver.Backend{held("x"), held("x"), down(), down(), down()}},
		"two refused":              {nodes: []driver.Backend{refused, loading, down(), down(), down()}},
		"three held by one":        {nodes: []driver.Backend{held("x/1"), held("x/2"), held("x/1|77"), down(), down()}, held: true},
		"three held by three":      {nodes: []driver.Backend{held("x/1"), held("y/2"), held("z/1"), down(), down()}},
		"three refused":            {nodes: []driver.Backend{refused, loading, say(&driver.RefusedError{Reason: "no"}), held("x"), down()}, refused: true},
		"half of four held by one": {nodes: []driver.Backend{held("x"), held("x"), down(), down()}, held: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, err := New(c.nodes, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = b.Close() }()
				_, err = b.Acquire(t.Context(), request1("k", "me", time.Second))
				if errors.Is(err, driver.ErrHeld) != c.held || errors.Is(err, driver.ErrRefused) != c.refused || errors.Is(err, errDown) {
					t.Errorf("got %v", err)
				}
				var q *quorum.Error
				if !errors.As(err, &q) || len(q.Votes) != len(c.nodes) || q.Need != len(c.nodes)/2+1 {
					t.Errorf("no votes in %v", err)
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
		b, err := New(nodes, &Options{Guard: -1, Notify: func(e driver.Notice) { notices = append(notices, e) }})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		servers[0].step(time.Hour)
		l, err := b.Acquire(t.Context(), request1("k", "one", time.Second))
		if err != nil {
			t.Fatalf("two of three agree: %v", err)
		}
		synctest.Wait()
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		servers[1].step(-time.Hour)
		_, err = b.Acquire(t.Context(), request1("k", "two", time.Second))
		if !errors.Is(err, driver.ErrRefused) || !strings.Contains(err.Error(), "sim-2: its clock is 1h0m0s ahead") {
			t.Errorf("no two agree: %v", err)
		}
		if len(notices) == 0 || notices[0].Kind != quorum.NoticeClockSkew {
			t.Errorf("notices: %v", notices)
		}
	})
}

// A vote is not split if nobody else has a node: where the clocks of the nodes that granted
// disagree, the bid waits for the other answers, and says so.
func TestClocksThatDisagreeSplitNoVote(t *testing.T) {
	b := bid{n: 4, q: 3, drift: 1, ttl: 10 * time.Second, timeout: time.Second}
	step := func(e event) actions {
		e.until = 1 << 62
		return b.step(&e)
	}
	step(event{kind: begins})
	for i, ahead := range []time.Duration{0, time.Hour, 0, 0} {
		e := event{kind: answered, node: i, answer: granted, fence: 7, clock: reading{earliest: ahead, latest: ahead, excuse: time.Second, known: true}}
		if i == 2 {
			e.answer = silence
		}
		step(e)
		out := step(event{kind: looks})
		if want := i == 3; b.stage == draining || (out.verdict == apart) != want || want != (out.verdict != open) {
			t.Errorf("after %d answers: split %v, verdict %d", i+1, b.stage == draining, out.verdict)
		}
	}
}

// A node that grants late, when the bid has gone on to ask another node first, is not asked again:
// while a second vote of it is under way, its token could not be written back.
func TestANodeThatGrantedLateIsNotAskedAgain(t *testing.T) {
	b := bid{n: 3, q: 2, drift: 1, ttl: 10 * time.Second, timeout: time.Second}
	var now boot.Instant
	step := func(e event) actions {
		e.until, e.now = 1<<62, now
		return b.step(&e)
	}
	step(event{kind: begins})
	step(event{kind: answered, node: 0, answer: granted, fence: 7})
	step(event{kind: answered, node: 1, answer: held, owner: somebody})
	step(event{kind: answered, node: 2, answer: held, owner: somebody + 1})
	if step(event{kind: looks}); b.stage != draining {
		t.Fatal("the vote is not split")
	}
	step(event{kind: answered, node: 0, answer: granted}) // released
	step(event{kind: looks})
	now += boot.Instant(5 * time.Second)
	asked := func(out actions) (nodes []int) {
		for i, c := range out.calls {
			if c == acquire {
				nodes = append(nodes, i)
			}
		}
		return nodes
	}
	out := step(event{kind: looks})
	for i := range b.n { // no node answers in time
		if got := asked(out); !slices.Equal(got, []int{i}) {
			t.Fatalf("after %d nodes it asks %v", i, got)
		}
		if i == 2 {
			step(event{kind: answered, node: 1, answer: granted, fence: 8})
		}
		if now += boot.Instant(time.Second); i != 1 {
			step(event{kind: answered, node: i, answer: silence})
		}
		out = step(event{kind: looks})
	}
	if got := asked(out); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("at last it asks %v, want 0 and 2", got)
	}
}

// Options.Notify may ask the lease that a notice is about: no mutex of it is locked then.
func TestAnEventHandlerMayAskTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, nodes := simNodes(network{}, network{}, network{delay: 20 * time.Millisecond})
		servers[2].step(time.Hour) // its vote comes after the grant
		granted, asked := make(chan driver.Lease, 1), make(chan driver.Grant, 1)
		b, err := New(nodes, &Options{Guard: -1, Notify: func(e driver.Notice) {
			if e.Kind == quorum.NoticeClockSkew {
				asked <- (<-granted).Grant()
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		l, err := b.Acquire(t.Context(), request1("k", "me", 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		granted <- l
		if g := <-asked; g.Fence != l.Grant().Fence {
			t.Errorf("the handler sees token %d, want %d", g.Fence, l.Grant().Fence)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A node that keeps timing out is skipped until a probe succeeds; notices report both.
func TestANodeThatTimesOutIsSkippedAndRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		servers, nodes := simNodes(make([]network, 3)...)
		var mu sync.Mutex
		var notices []driver.NoticeKind
		b, err := New(nodes, &Options{Guard: -1, Notify: func(e driver.Notice) {
			mu.Lock()
			defer mu.Unlock()
			notices = append(notices, e.Kind)
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		lock := func(i int) {
			l, err := b.Acquire(t.Context(), request1(fmt.Sprint("k", i), fmt.Sprint("o", i), time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
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

// Check also reports what earlier calls found out about the nodes.
func TestCheckNamesANodeThatIsSkipped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpaces(3)
		slow := s[1].Peer()
		b, err := New([]driver.Backend{s[0].Peer(), slow, s[2].Peer()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		slow.SetOutage(memory.Outage{Hang: true})
		for i := range 10 {
			l, err := b.Acquire(t.Context(), request1(fmt.Sprint("k", i), "o", time.Second))
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if b.tripped() != 1<<1 {
			t.Fatalf("skipped are %b", b.tripped())
		}
		slow.SetOutage(memory.Outage{})
		found, err := b.Check(t.Context())
		i := slices.IndexFunc(found, func(d driver.Diagnostic) bool { return d.Code == "node-skipped" })
		if err != nil || i < 0 || found[i].Severity != driver.SeverityWarning || found[i].Node != b.nodes[1].name || found[i].Remedy == "" {
			t.Errorf("found %+v, %v", found, err)
		}
	})
}

// A waiter is woken when a majority has announced the release.
func TestWatchWakesWhenAMajorityAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpaces(5)
		a, b := s.quorum(t, nil), s.quorum(t, nil)
		l, err := a.Acquire(t.Context(), request1("k", "web/a", 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		ch, err := b.Watch(ctx, "k")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		select {
		case <-ch:
			t.Fatal("woken though nothing was released")
		default:
		}
		start := time.Now()
		if err := l.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-ch
		if d := time.Since(start); d > 0 {
			t.Errorf("woken after %v", d)
		}
	})
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
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		b := s.quorum(t, nil)
		l, err := b.Acquire(t.Context(), request1("k", "web/a", 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // see TestOperatorsSeeAndBreak
		for i, node := range s {
			st, err := node.Lookup(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range st.Holders {
				if h.Fence == l.Grant().Fence {
					continue
				}
				if err := b.Break(t.Context(), "k", h); !errors.Is(err, driver.ErrLost) {
					t.Errorf("Break with node %d's token, %d under the lease's: %v", i, l.Grant().Fence-h.Fence, err)
				}
			}
		}
		if err := b.Break(t.Context(), "k", driver.Holder{Fence: l.Grant().Fence}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("the renewal of a broken lock: %v", err)
		}
	})
}

// Lookup names the holder on a majority, and Break takes the lock away from it.
func TestOperatorsSeeAndBreak(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpaces(5)
		a, b := s.quorum(t, nil), s.quorum(t, nil)
		l, err := a.Acquire(t.Context(), request1("k", "web/a", 20*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // if a straggler joins during the renewal, its result would be unknown
		st, err := b.Lookup(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if len(st.Holders) != 1 || st.Holders[0].Owner != "web/a" || st.Holders[0].Fence != l.Grant().Fence || len(st.Nodes) != 5 {
			t.Fatalf("got %+v", st)
		}
		if err := b.Break(t.Context(), "k", driver.Holder{Fence: 1}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("a token that nobody has: %v", err)
		}
		if err := b.Break(t.Context(), "k", driver.Holder{Fence: l.Grant().Fence}); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("the renewal of a broken lock: %v", err)
		}
		if _, err := b.Bootstrap(t.Context(), &quorum.Bootstrap{}); err != nil {
			t.Error(err)
		}
		found, err := s[:4].quorum(t, nil).Check(t.Context())
		if err != nil || !strings.Contains(fmt.Sprint(found), "4 nodes survive the loss of 1") {
			t.Errorf("got %v, %v", found, err)
		}
	})
}

// List yields the locks that any majority has, and while a minority is down those that it can
// still see. It does not read all keys of every node.
func TestListFindsWhatAMajorityHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpaces(5)
		without := func(down ...int) *Backend {
			nodes := make([]driver.Backend, len(s))
			for i := range s {
				nodes[i] = s[i].Peer()
			}
			for _, i := range down {
				nodes[i].(*memory.Backend).Fail(errors.New("connection refused"))
			}
			b, err := New(nodes, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = b.Close() }) // keys on a node that is down end with their TTL
			return b
		}
		name := func(i, j int) string { return fmt.Sprintf("not on %d and %d", i, j) }
		list := func(down ...int) (keys []string) {
			err := without(down...).List(t.Context(), "not ", func(st *driver.State) bool {
				if len(st.Holders) != 1 || st.Holders[0].Owner != "web/"+st.Key || len(st.Nodes) != 5 {
					t.Errorf("List yields %+v", st)
				}
				for _, i := range down {
					if st.Nodes[i].Err == nil || st.Nodes[i].State != nil {
						t.Errorf("node %d is down, and says %+v", i, st.Nodes[i])
					}
				}
				keys = append(keys, st.Key)
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(keys)
			return keys
		}
		var all []string
		for i := range s {
			for j := range i {
				if _, err := without(i, j).Acquire(t.Context(), request1(name(i, j), "web/"+name(i, j), 20*time.Second)); err != nil {
					t.Fatal(err)
				}
				all = append(all, name(i, j))
			}
		}
		synctest.Wait()
		slices.Sort(all)
		if got := list(); !slices.Equal(got, all) {
			t.Errorf("List yields %q, want %q", got, all)
		}
		for i := range s {
			want := slices.DeleteFunc(slices.Clone(all), func(key string) bool { return !strings.Contains(key, fmt.Sprint(i)) })
			if got := list(i); !slices.Equal(got, want) {
				t.Errorf("without node %d List yields %q, want %q", i, got, want)
			}
			for j := range i {
				if got := list(i, j); !slices.Equal(got, []string{name(i, j)}) {
					t.Errorf("without nodes %d and %d List yields %q", i, j, got)
				}
			}
		}
		if err := without(0, 2, 4).List(t.Context(), "", func(*driver.State) bool { return true }); !errors.As(err, new(*quorum.Error)) || !strings.Contains(err.Error(), "of 5 nodes answered, 3 needed") {
			t.Errorf("without a majority: %v", err)
		}
	})
}

// List succeeds only if a majority has answered, also if no key is held that the other nodes could
// be asked for.
func TestListNeedsAMajority(t *testing.T) {
	for n := 1; n <= 5; n++ {
		for down := range 1 << n {
			s := newSpaces(n)
			nodes, up := make([]driver.Backend, n), n
			for i := range s {
				node := s[i].Peer()
				if down&(1<<i) != 0 {
					node.Fail(errors.New("connection refused"))
					up--
				}
				nodes[i] = node
			}
			b, err := New(nodes, nil)
			if err != nil {
				t.Fatal(err)
			}
			err = b.List(t.Context(), "", func(*driver.State) bool { return true })
			if majority := up >= n/2+1; majority != (err == nil) {
				t.Errorf("%d of %d nodes answer (down: %b): %v", up, n, down, err)
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
	}
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
		"late":        {func(node string) error { return errors.New(node + " did not answer in time") }, "0 of 3 nodes granted, 2 needed: redis://h:11/0 did not answer in time; redis://h:111/0 did not answer in time"},
		"nameless":    {func(string) error { return errors.New("EOF") }, "0 of 3 nodes granted, 2 needed: redis://h:11/0: EOF; redis://h:111/0: EOF"},
		"quarantined": {quarantined, "redis://h:11/0: restart guard (retry in 3s) (0 of 3 nodes granted, 2 needed): redis://h:111/0: restart guard (retry in 3s)"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var nodes []driver.Backend
				for i, node := range []string{"redis://h:1/0", "redis://h:11/0", "redis://h:111/0"} {
					nodes = append(nodes, named{script{memory.New(), func(context.Context, *driver.Request) (driver.Lease, error) {
						time.Sleep(time.Duration(3-i) * time.Millisecond) // the first node is not needed
						return nil, c.say(node)
					}}, node})
				}
				b, err := New(nodes, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = b.Close() }()
				if _, err := b.Acquire(t.Context(), request1("k", "me", time.Second)); err == nil || err.Error() != c.want {
					t.Errorf("got  %v\nwant %s", err, c.want)
				}
			})
		})
	}
}

// The error of a renewal counts the nodes that confirmed it, without one that joined in it.
func TestANodeThatJoinsInARenewalDoesNotConfirmIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := false
		node := func(i int) driver.Backend {
			store := memory.New()
			return named{script{store, func(ctx context.Context, r *driver.Request) (driver.Lease, error) {
				time.Sleep(time.Duration(i) * time.Millisecond)
				if i == 3 && !broken {
					return nil, errors.New("connection refused")
				}
				l, err := store.Acquire(ctx, r)
				return breakable{l, &broken, i}, err
			}}, fmt.Sprint("redis://h:", i, "/0")}
		}
		b, err := New([]driver.Backend{node(1), node(2), node(3)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = b.Close() }()
		l, err := b.Acquire(t.Context(), request1("k", "me", time.Second))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond) // the third node has answered
		broken = true
		_, err = l.Renew(t.Context(), &driver.Renewal{TTL: time.Second})
		const want = "a majority did not confirm the renewal (1 of 3 nodes confirmed, 2 needed: redis://h:2/0: connection refused)"
		if err == nil || err.Error() != want {
			t.Errorf("got  %v\nwant %s", err, want)
		}
		_ = l.Release(t.Context())
	})
}

// breakable is a lease whose node, the second, refuses renewals while broken.
type breakable struct {
	driver.Lease
	broken *bool
	node   int
}

func (l breakable) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	if l.node == 2 && *l.broken {
		time.Sleep(10 * time.Millisecond) // after the third has joined
		return driver.Grant{}, errors.New("connection refused")
	}
	return l.Lease.Renew(ctx, r)
}

// A finding names its node only once, in Node.
func TestASummaryLeavesItsNodesNameOut(t *testing.T) {
	n := &node{name: "redis://h:1/0"}
	for said, want := range map[string]string{
		"redis://h:1/0 cannot be reached: EOF": "cannot be reached: EOF",
		"redis://h:1/0: restart guard":         "restart guard",
		"redis://h:1/01: EOF":                  "redis://h:1/01: EOF",
		"EOF":                                  "EOF",
	} {
		if got := n.nameless(errors.New(said)); got != want {
			t.Errorf("%q: %q, want %q", said, got, want)
		}
	}
}

// A quorum's lock is reserved if a majority of its nodes is, and for as long; the longest queue
// counts.
func TestLookupMergesWhoWaits(t *testing.T) {
	b := newSpaces(3).quorum(t, nil)
	state := func(waiters int, kept time.Duration) *driver.State {
		return &driver.State{Waiters: waiters, ReservedFor: kept}
	}
	for _, c := range []struct {
		states  []*driver.State
		waiters int
		kept    time.Duration
	}{
		{[]*driver.State{state(1, 10), state(3, 30), state(2, 20)}, 3, 20},
		{[]*driver.State{state(1, 10), nil, state(2, 20)}, 2, 10},
		{[]*driver.State{state(1, 10), state(0, 0), nil}, 1, 0},
	} {
		nodes := b.nodeStates()
		for i, s := range c.states {
			nodes[i].State = s
		}
		if s := b.merge("k", nodes); s.Waiters != c.waiters || s.ReservedFor != c.kept {
			t.Errorf("%d wait, and it is kept for %v, want %d and %v", s.Waiters, s.ReservedFor, c.waiters, c.kept)
		}
	}
}

// A node that hangs costs List a part of the caller's time, but not the answers of the others.
func TestListReadsAnotherNodeBesideOneThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSpaces(3)
		for hanging := range s {
			nodes := make([]driver.Backend, len(s))
			for i := range s {
				nodes[i] = s[i].Peer()
			}
			b, err := New(nodes, nil)
			if err != nil {
				t.Fatal(err)
			}
			key := fmt.Sprint("hangs ", hanging)
			l, err := b.Acquire(t.Context(), request1(key, "web", 20*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			nodes[hanging] = hangingList{nodes[hanging].(*memory.Backend)}
			b2, err := New(nodes, nil)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			var found []string
			err = b2.List(ctx, key, func(st *driver.State) bool { found = append(found, st.Key); return true })
			cancel()
			if err != nil || !slices.Equal(found, []string{key}) {
				t.Errorf("node %d hangs: List yields %q, %v", hanging, found, err)
			}
			if err := l.Release(t.Context()); err != nil {
				t.Error(err)
			}
			if err := errors.Join(b2.Close(), b.Close()); err != nil {
				t.Error(err)
			}
		}
	})
}

// hangingList is a node whose inspection calls hang until the caller's context ends.
type hangingList struct{ *memory.Backend }

func (h hangingList) List(ctx context.Context, _ string, _ func(*driver.State) bool) error {
	<-ctx.Done()
	return ctx.Err()
}

func (h hangingList) Lookup(ctx context.Context, _ string) (*driver.State, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}
