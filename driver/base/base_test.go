package base_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

var errUnknown = errors.New("connection reset")

func begin(t *testing.T, c *base.Calls, ctx context.Context) *base.Call {
	t.Helper()
	call, err := c.Begin(ctx, c.Bound(0))
	if err != nil {
		t.Fatal(err)
	}
	return call
}

// The error of a call says why it ended: the caller, Close, or the driver's own time limit; whether it
// waits on its context or without one.
func TestACallSaysWhyItEnded(t *testing.T) {
	for name, wait := range map[string]func(*base.Call) error{
		"context": func(call *base.Call) error { <-call.Done(); return call.Failed(errUnknown) },
		"await":   func(call *base.Call) error { return call.Await(nil) }, // which is never ready
	} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { endCalls(t, wait) }) })
	}
}

func endCalls(t *testing.T, wait func(*base.Call) error) {
	c := &base.Calls{Name: "kv"}
	type key struct{}
	ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, 7), 10*time.Millisecond)
	defer cancel()
	call, ready := begin(t, c, ctx), make(chan struct{})
	close(ready)
	if err := call.Await(ready); err != nil || call.Over() != nil {
		t.Errorf("ready: %v; the call: %v", err, call.Over())
	}
	if err := wait(call); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the caller's deadline: %v", err)
	}
	call.End()
	if <-call.Done(); call.Value(key{}) != 7 {
		t.Error("the value of the caller's context is gone")
	}
	if _, err := c.Begin(ctx, time.Second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the caller's deadline: %v", err)
	}

	start := time.Now()
	call = begin(t, c, t.Context())
	if err := call.Failed(call.Failed(errUnknown)); !errors.Is(err, errUnknown) || strings.Count(err.Error(), "kv: ") != 1 {
		t.Errorf("in time: %v", err)
	}
	if err := call.Failed(context.DeadlineExceeded); errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the client library's own timeout: %v", err)
	}
	err := wait(call)
	if took := time.Since(start); took != time.Second {
		t.Errorf("a call of a second waited for %v", took)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errUnknown) || !reflect.DeepEqual(call.Failed(err), err) || call.Err() == nil {
		t.Errorf("the driver's own timeout: %v", err)
	}
	held := &driver.HeldError{Holder: "other"}
	if err := call.Failed(held); !errors.Is(err, held) {
		t.Errorf("a verdict: %v", err)
	}
	call.End()

	call = begin(t, c, t.Context())
	go func() {
		if err := wait(call); !errors.Is(err, driver.ErrClosed) || call.Err() == nil {
			t.Errorf("closed: %v", err)
		}
		call.End()
	}()
	synctest.Wait()
	if !c.Close() || c.Close() {
		t.Error("Close does not tell the first from the second")
	}
	if _, err := c.Begin(t.Context(), time.Second); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if c.Go(func(context.Context) { t.Error("a goroutine after Close") }) {
		t.Error("Go after Close")
	}
}

// Who gave up hears who had the lock; an outage and Close are no contention.
func TestOnlyTheCallersContextMakesAWaitAContention(t *testing.T) {
	seen := &driver.HeldError{Holder: "other"}
	for _, err := range []error{context.Canceled, fmt.Errorf("kv: %w", context.DeadlineExceeded)} {
		if got := base.Waited(err, seen); !errors.Is(got, err) || !errors.Is(got, driver.ErrHeld) {
			t.Errorf("%v: %v", err, got)
		}
		if got := base.Waited(err, nil); !reflect.DeepEqual(got, err) {
			t.Errorf("%v, nobody seen: %v", err, got)
		}
	}
	for _, err := range []error{errUnknown, driver.ErrClosed, seen, nil} {
		if got := base.Waited(err, seen); !reflect.DeepEqual(got, err) {
			t.Errorf("%v: %v", err, got)
		}
	}
}

// The shell of a call that its server answers costs the call and the lease, and no timer or context.
func TestTheShellAllocatesLittle(t *testing.T) {
	c := &base.Calls{Name: "kv"}
	defer c.Close()
	if n := testing.AllocsPerRun(100, func() {
		call := begin(t, c, t.Context())
		_, _ = call.Deadline()
		if err := call.Failed(nil); err != nil {
			t.Error(err)
		}
		call.End()
	}); n > 1 {
		t.Errorf("a call makes %v allocations", n)
	}
	release := func(*base.Call) error { return nil }
	if n := testing.AllocsPerRun(100, func() {
		if err := base.NewLease(c, driver.Info{}, driver.Grant{}, nil, release).Release(context.Background()); err != nil {
			t.Error(err)
		}
	}); n > 2 {
		t.Errorf("a lease and its release make %v allocations", n)
	}
}

// A backend lives long: nothing of a call that has ended stays with it.
func TestACallThatHasEndedIsForgotten(t *testing.T) {
	calls := &base.Calls{Name: "kv"}
	defer calls.Close()
	type value struct{ _ [64]byte }
	end := func() weak.Pointer[value] {
		v := new(value)
		call := begin(t, calls, context.WithValue(t.Context(), value{}, v))
		call.Done()
		call.End()
		return weak.Make(v)
	}
	p := end()
	for start := time.Now(); p.Value() != nil; time.Sleep(time.Millisecond) { // a timer that was stopped stays for a moment
		if time.Since(start) > 20*time.Second {
			t.Fatal("a call that has ended is kept")
		}
		runtime.GC()
	}
}

func TestBoundFollowsTheTTL(t *testing.T) {
	c := &base.Calls{Timeout: 1}
	if got := c.Bound(0); got != 1 {
		t.Errorf("Bound(0) = %v of a timeout of 1ns", got)
	}
	c = &base.Calls{}
	for ttl, want := range map[time.Duration]time.Duration{0: time.Second, 1: 50 * time.Millisecond, time.Minute: time.Second, time.Second: time.Second / 2, time.Millisecond: 50 * time.Millisecond} {
		if got := c.Bound(ttl); got != want {
			t.Errorf("Bound(%v) = %v, want %v", ttl, got, want)
		}
	}
}

func TestSetupChecksTheTimeout(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: time.Second, 10 * time.Millisecond: 10 * time.Millisecond, 10*time.Millisecond - 1: 0, -1: 0} {
		var c base.Calls
		timeout := given
		if err := c.Setup("kv", "app:", &timeout); err == nil && (c.Timeout != want || timeout != want) || errors.Is(err, driver.ErrInvalid) != (want == 0) {
			t.Errorf("%v: %v, %v; %v", given, c.Timeout, timeout, err)
		}
	}
}

// An attempt lasts as its TTL says, one that waits as its context says, and a bad one is none.
func TestForHowLongAnAttemptLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c base.Calls
		defer c.Close()
		info := driver.Info{Name: "kv", Features: driver.FeatureQueueing, MinTTL: driver.MinTTL, MaxTTL: time.Hour}
		for _, wait := range []bool{false, true} {
			call, err := c.BeginAcquire(t.Context(), info, "app:", &driver.Request{Key: "k", Owner: "o/1", TTL: time.Second, Wait: wait})
			if err != nil {
				t.Fatal(err)
			}
			if by, _ := call.Deadline(); time.Until(by) == time.Second/2 == wait || wait && time.Until(by) < time.Hour {
				t.Errorf("waits %t: %v", wait, time.Until(by))
			}
			done := call.Done()
			call.End()
			<-done
		}
		if _, err := c.BeginAcquire(t.Context(), info, "app:", &driver.Request{Owner: "o/1", TTL: time.Second}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("without a key: %v", err)
		}
		if unused := new(base.Calls); !unused.Close() {
			t.Error("Close of what was never used")
		}
		other, ended := new(base.Calls), false
		other.Go(func(ctx context.Context) { <-ctx.Done(); time.Sleep(time.Second); ended = true })
		if other.Close(); !ended {
			t.Error("Close has not waited for a goroutine")
		}
	})
}

// What is in doubt is tried until it is certain or ended, one at a time, and Close waits for it.
func TestUndoGoesOnUntilItIsCertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &base.Calls{Name: "kv"}
		tries, under := map[string]int{}, 0
		undo := func(name string, until time.Duration, needed int) {
			c.Undo(time.Now().Add(until), func(call *base.Call) error {
				if under++; under != 1 {
					t.Error("two at a time")
				}
				defer func() { under-- }()
				tries[name]++
				if tries[name] < needed {
					<-call.Done()
					return call.Failed(call.Err())
				}
				return nil
			})
		}
		undo("at once", time.Minute, 1)
		undo("after an outage", time.Minute, 5)
		undo("ended", 3*time.Second, 1000)
		time.Sleep(time.Minute)
		synctest.Wait()
		if tries["at once"] != 1 || tries["after an outage"] != 5 || tries["ended"] < 2 || tries["ended"] > 5 {
			t.Errorf("tries: %v", tries)
		}
		undo("never", time.Hour, 1000)
		before := time.Now()
		c.Close()
		if took := time.Since(before); took > 2*time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}

// A store has a lock, whose lease it renews and releases.
type store struct {
	t        *testing.T
	calls    base.Calls
	takes    time.Duration // each request
	under    int           // requests
	down     atomic.Bool
	releases atomic.Int64
}

// request is one request at a time.
func (s *store) request() error {
	if s.under++; s.under != 1 {
		s.t.Error("two requests at a time")
	}
	defer func() { s.under-- }()
	if time.Sleep(s.takes); s.down.Load() {
		return errUnknown
	}
	return nil
}

// lease returns a lease for a minute. Each renewal gives the error lost, if there is one.
func (s *store) lease(lost error) *base.Lease {
	s.releases.Store(0)
	info := driver.Info{Name: "kv", MinTTL: driver.MinTTL, MaxTTL: time.Hour}
	return base.NewLease(&s.calls, info, driver.Grant{Expires: time.Now().Add(time.Minute)}, func(_ *base.Call, r *driver.Renewal) (driver.Grant, error) {
		err := cmp.Or(s.request(), lost)
		return driver.Grant{Expires: time.Now().Add(r.TTL)}, err
	}, func(*base.Call) error {
		s.releases.Add(1)
		return s.request()
	})
}

// A lease lets one call go on at a time. What is lost is lost, and an unknown release is repeated.
func TestALeaseRepeatsAnUnknownRelease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{t: t, takes: time.Millisecond}
		defer s.calls.Close()
		l := s.lease(nil)
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Millisecond}); !errors.Is(err, driver.ErrInvalid) {
			t.Errorf("Renew by too little: %v", err)
		}
		go l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}) //nolint:errcheck // only to be in the way
		synctest.Wait()
		short, stop := context.WithTimeout(t.Context(), s.takes/2)
		defer stop()
		if _, err := l.Renew(short, &driver.Renewal{TTL: time.Hour}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Renew behind another: %v", err)
		}
		if g, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Hour}); err != nil || !g.Expires.Equal(l.Grant().Expires) || time.Until(g.Expires) != time.Hour {
			t.Errorf("Renew: %v, %v", g, err)
		}
		synctest.Wait()
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		s.down.Store(true)
		if err := l.Release(ended); !errors.Is(err, errUnknown) {
			t.Errorf("Release without an answer: %v", err)
		}
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Hour}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Renew after Release: %v", err)
		}
		s.down.Store(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		before := s.releases.Load()
		time.Sleep(time.Minute)
		if s.releases.Load() != before {
			t.Error("it is released again")
		}

		synctest.Wait()
		l = s.lease(driver.ErrLost)
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Hour}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Renew of a lost lease: %v", err)
		}
		for _, want := range []error{driver.ErrLost, nil} {
			if err := l.Release(t.Context()); !errors.Is(err, want) || s.releases.Load() != 0 {
				t.Errorf("Release of a lost lease: %v, %d requests", err, s.releases.Load())
			}
		}
	})
}

// A lease that is neither renewed nor released in time frees its lock itself, if it must.
func TestALeaseFreesItsLockAtItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{t: t}
		defer s.calls.Close()
		l := s.lease(nil).FreeAtEnd()
		time.Sleep(time.Minute - 1)
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}); err != nil || s.releases.Load() != 0 {
			t.Errorf("Renew at the end: %v, freed %d times", err, s.releases.Load())
		}
		time.Sleep(time.Second - 1)
		if s.releases.Load() != 0 {
			t.Error("freed before its end")
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait() // freed
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}); !errors.Is(err, driver.ErrLost) {
			t.Errorf("Renew after the end: %v", err)
		}
		if err := l.Release(t.Context()); err != nil || s.releases.Load() != 1 {
			t.Errorf("Release after the end: %v, freed %d times", err, s.releases.Load())
		}

		l = s.lease(nil).FreeAtEnd()
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}); err != nil { // less than it had
			t.Error(err)
		}
		time.Sleep(time.Second)
		if synctest.Wait(); s.releases.Load() != 1 {
			t.Errorf("freed %d times at the new end", s.releases.Load())
		}
	})
}

// A release that has no answer is repeated until ten seconds after the lease's end, for a minute if it has
// none, and for ever if the server does not end the lock.
func TestForHowLongAReleaseIsRepeated(t *testing.T) {
	const ever = time.Hour
	for want, end := range map[time.Duration]time.Duration{11 * time.Second: time.Second, time.Minute: 0, ever: -1} {
		synctest.Test(t, func(t *testing.T) {
			s := &store{t: t}
			defer s.calls.Close()
			begun := time.Now()
			var last time.Time
			grant := driver.Grant{Expires: begun.Add(end.Abs())}
			if end == 0 {
				grant.Expires = time.Time{}
			}
			l := base.NewLease(&s.calls, driver.Info{}, grant, nil, func(*base.Call) error { last = time.Now(); return errUnknown })
			if end < 0 {
				l = l.FreeAtEnd()
			}
			for range 50 { // which is no work of 50
				if err := l.Release(t.Context()); !errors.Is(err, errUnknown) {
					t.Error(err)
				}
			}
			var other time.Time
			s.calls.Undo(time.Time{}, func(*base.Call) error { other = time.Now(); return nil })
			time.Sleep(ever)
			if took := last.Sub(begun); took < want-time.Second || took >= want+time.Second {
				t.Errorf("it was repeated for %v, want %v", took, want)
			}
			if took := other.Sub(begun); took > time.Second {
				t.Errorf("what was to undo beside it took %v", took)
			}
		})
	}
}

// Close waits as long as there is progress.
func TestCloseWaitsWhileSomethingIsUndone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &base.Calls{Name: "kv"}
		undone := 0
		var before *base.Call
		for range 10 {
			c.Undo(time.Time{}, func(call *base.Call) error {
				if before != nil && before.Err() == nil {
					t.Error("a try has not ended")
				}
				before = call
				time.Sleep(900 * time.Millisecond)
				undone++
				return nil
			})
		}
		go c.Close()
		synctest.Wait()
		if c.Close(); undone != 10 {
			t.Errorf("%d of 10 were undone", undone)
		}
	})
}

// What may still arrive keeps nobody from undoing the rest, and Close waits for it: the server answers.
func TestUndoOfWhatMayStillArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &base.Calls{Name: "kv"}
		begun := time.Now()
		settled := begun.Add(1500 * time.Millisecond) // Timeout is a second
		tries, undone := 0, 0
		for range 20 {
			c.Undo(time.Time{}, func(*base.Call) error {
				if tries++; time.Now().Before(settled) {
					return base.ErrUnsettled
				}
				undone++
				return nil
			})
		}
		var first, late time.Time
		time.AfterFunc(time.Second/2, func() {
			c.Undo(time.Time{}, func(*base.Call) error { late = time.Now(); return nil })
		})
		c.Undo(time.Time{}, func(*base.Call) error { first = time.Now(); return nil })
		if c.Close(); undone != 20 {
			t.Errorf("%d of 20 were undone", undone)
		}
		if !first.Equal(begun) {
			t.Errorf("the last was undone %v before the others were settled", settled.Sub(first))
		}
		if took := late.Sub(begun) - time.Second/2; took < 0 || took > 200*time.Millisecond || time.Since(settled) > 100*time.Millisecond {
			t.Errorf("a later one took %v, and all were undone %v after they could be", took, time.Since(settled))
		}
		if tries > 20*25 {
			t.Errorf("%d tries", tries)
		}
	})
}

func TestQueueState(t *testing.T) {
	entry := func(owner string, m driver.Mode) base.Entry {
		return base.Entry{Holder: driver.Holder{Owner: owner}, Mode: m}
	}
	const x, s = driver.Exclusive, driver.Shared
	for _, c := range []struct {
		modes          []driver.Mode
		holders, queue string
	}{
		{nil, "", ""},
		{[]driver.Mode{x, s, s}, "a", "bc"},
		{[]driver.Mode{s, s, x, s}, "ab", "cd"},
		{[]driver.Mode{s}, "a", ""},
	} {
		var entries []base.Entry
		for i, m := range c.modes {
			entries = append(entries, entry(string(rune('a'+i)), m))
		}
		got := base.QueueState("k", 7, entries)
		holders, queue := "", ""
		for _, h := range got.Holders {
			holders += h.Owner
		}
		for _, w := range got.Queue {
			queue += w.Owner
		}
		if holders != c.holders || queue != c.queue || got.Waiters != len(queue) || got.Fence != 7 || got.Key != "k" {
			t.Errorf("%v: %+v", c.modes, got)
		}
	}
	many := make([]base.Entry, 151)
	if got := base.QueueState("k", 0, many); got.Waiters != 150 || len(got.Queue) != 100 {
		t.Errorf("150 waiters: %d, and %d named", got.Waiters, len(got.Queue))
	}
}

func TestFindings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := base.Findings{Node: "kv://a"}
		sent := time.Now()
		time.Sleep(2 * time.Second)
		for _, ahead := range []time.Duration{0, -time.Second, time.Second, 3 * time.Second, time.Hour} {
			f.Clock(sent.Add(time.Second+ahead), sent)
		}
		f.Add("version", driver.SeverityNote, "", "version %d", 1)
		got, err := f.Result(&driver.RefusedError{Reason: "no room"})
		var codes []string
		for _, d := range got {
			codes = append(codes, d.Code+" "+d.Node+" "+d.Measured)
		}
		if want := []string{"refused kv://a ", "clock-offset kv://a 3s", "clock-offset kv://a 1h0m0s", "version kv://a "}; err != nil || !reflect.DeepEqual(codes, want) {
			t.Errorf("findings: %q, %v", codes, err)
		}
		if _, err := f.Result(errUnknown); !errors.Is(err, errUnknown) {
			t.Errorf("an examination that failed: %v", err)
		}
	})
	if err := base.CheckPrefix(strings.Repeat("p", driver.MaxKey)); !errors.Is(err, driver.ErrInvalid) {
		t.Errorf("a long prefix: %v", err)
	}
}

// A request goes to the next server after an error, and the servers' clock is known to a second and the
// time of the request.
func TestHosts(t *testing.T) {
	var ahead time.Duration
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Date", time.Now().Add(ahead).UTC().Format(http.TimeFormat))
	}))
	defer s.Close()
	for _, ahead = range []time.Duration{0, time.Hour, -time.Hour} {
		h := &base.Hosts{Names: []string{"127.0.0.1:1", s.Listener.Addr().String()}, Transport: &http.Transport{DisableKeepAlives: true}, Now: time.Now}
		c, from := &http.Client{Transport: h}, time.Now()
		for i, want := range []bool{false, true, true} {
			answer, err := c.Get("http://any/")
			if (err == nil) != want {
				t.Fatalf("request %d: %v", i, err)
			}
			if err == nil && answer.Body.Close() != nil {
				t.Fatal("the body does not close")
			}
		}
		if off := time.Until(h.Clock()) - ahead; off.Abs() > time.Second+time.Since(from) {
			t.Errorf("a clock that is ahead by %v is off by %v", ahead, off)
		}
	}
}
