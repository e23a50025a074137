package pipeline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/drivers/internal/async"
	"github.com/redlock-go/redlock/drivers/internal/redisnode/fakelib"
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

func (l library) pipelines(t *testing.T, most int, direct bool) *Pipelines {
	return pipelinesTo(t, l.exec, most, direct)
}

func pipelinesTo(t *testing.T, exec func(context.Context, []*Call), most int, direct bool) *Pipelines {
	l := New(&Config{
		Exec: exec, Connections: most, Direct: Direct{Heeds: direct}, CallTimeout: second,
		Calls: &async.Tracker{}, Goroutines: &async.Tracker{},
	})
	t.Cleanup(l.Close) // ends its workers
	return l
}

// try makes one call and returns its error.
func try(l *Pipelines, timeout time.Duration) error {
	return l.Do(async.Within(context.Background(), timeout), &Call{})
}

// try100 makes a hundred calls at once.
func try100(t *testing.T, l *Pipelines) {
	t.Helper()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			if err := try(l, second); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestCallsGatherBehindThoseUnderWay(t *testing.T) {
	for _, direct := range []bool{true, false} {
		t.Run(fmt.Sprintf("direct=%v", direct), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lib := newLibrary(time.Millisecond, direct)
				l := lib.pipelines(t, 2, direct)
				try100(t, l)
				if n := lib.Batches.Load(); n != 2 {
					t.Errorf("the first 100 calls took %d round trips, want 2: one, and the rest together", n)
				}
				<-l.cfg.Goroutines.Idle()
				l.proven, l.most = 2, 0
				lib.Batches.Store(0)
				try100(t, l)
				if n := lib.Most.Load(); n != 2 {
					t.Errorf("%d calls were under way at once, want 2", n)
				}
				if n := lib.Batches.Load(); n != 3 {
					t.Errorf("100 calls took %d round trips, want 3: two alone, and the rest together", n)
				}
				<-l.cfg.Calls.Idle()
				<-l.cfg.Goroutines.Idle()
			})
		})
	}
}

// With a short round trip many callers share few pipelines, so that more calls are gathered;
// with a long one they use all pipelines.
func TestManyCallersShareFewPipelines(t *testing.T) {
	for _, c := range []struct {
		takes         time.Duration
		callers, most int64
	}{{time.Millisecond, 4, 4}, {time.Millisecond, 16, 2}, {time.Millisecond, 64, 1}, {10 * time.Millisecond, 64, 4}} {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(c.takes, true)
			l := lib.pipelines(t, 4, true)
			var wg sync.WaitGroup
			callers := func(calls int) {
				for i := range c.callers {
					wg.Go(func() {
						time.Sleep(time.Duration(i) * time.Microsecond)
						for range calls {
							if err := try(l, second); err != nil {
								t.Error(err)
							}
							time.Sleep(time.Duration(i) * time.Microsecond)
						}
					})
				}
				wg.Wait()
				<-l.cfg.Goroutines.Idle()
			}
			callers(50)
			lib.Most.Store(0)
			lib.Batches.Store(0)
			callers(50)
			if n := lib.Most.Load(); n != c.most {
				t.Errorf("%d callers, round trips of %v: %d calls were under way at once, want %d", c.callers, c.takes, n, c.most)
			}
			if l.calling != 0 {
				t.Errorf("%d calls are under way when all are over", l.calling)
			}
		})
	}
}

// Over a slow link, what one batch does not take goes at once in other pipelines.
func TestABatchLeavesNothingThatAnotherPipelineCanSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, trip = 3000, 10 * time.Millisecond
		lib := newLibrary(trip, true)
		l := lib.pipelines(t, 4, true)
		if err := try(l, second); err != nil { // tells how long a round trip takes
			t.Fatal(err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for range calls {
			wg.Go(func() {
				if err := try(l, second); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took != 2*trip {
			t.Errorf("%d calls took %v, want two round trips: one alone, and the rest together", calls, took)
		}
		<-l.cfg.Goroutines.Idle()
		if n := lib.Batches.Load(); n != 5 || l.calling != 0 || l.busy != 0 {
			t.Errorf("%d round trips, want 5; %d calls and %d pipelines are left", n, l.calling, l.busy)
		}
	})
}

// Callers that keep coming get all the pipelines, each of which connects first.
func TestAllPipelinesComeIntoUse(t *testing.T) {
	for _, direct := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(time.Millisecond, direct)
			l := lib.pipelines(t, 4, direct)
			var wg sync.WaitGroup
			for i := range 16 {
				wg.Go(func() {
					for range 50 {
						time.Sleep(time.Duration(i) * 100 * time.Microsecond)
						if err := try(l, second); err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			<-l.cfg.Goroutines.Idle()
			if n := lib.Most.Load(); n != 4 || l.proven != 4 {
				t.Errorf("direct=%v: at most %d calls were under way at once, and %d proven, want 4", direct, n, l.proven)
			}
		})
	}
}

// If a library ignores deadlines, its callers still return at theirs. The calls under way are
// bounded, and while these are overdue later callers fail at once.
func TestDeadlinesHoldWhateverTheLibraryDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Hour, false)
		l := lib.pipelines(t, 4, false)
		l.proven = 4
		start := time.Now()
		var sent, unsent atomic.Int64
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				err := try(l, second)
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("got %v", err)
				}
				if errors.Is(err, ErrNotSent) {
					unsent.Add(1)
				} else {
					sent.Add(1)
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); d != second {
			t.Errorf("the callers came back after %v", d)
		}
		if sent.Load() != 4 || unsent.Load() != 46 || lib.Sent.Load() != 4 {
			t.Errorf("%d were sent, %d were not; the library had %d", sent.Load(), unsent.Load(), lib.Sent.Load())
		}
		time.Sleep(time.Second)
		start = time.Now()
		if err := try(l, second); !errors.Is(err, ErrNotSent) || errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 0 {
			t.Errorf("behind a server that hangs: %v after %v", err, time.Since(start))
		}
		<-l.cfg.Goroutines.Idle()
		if lib.Sent.Load() != 4 {
			t.Errorf("calls whose callers had left were sent: %d", lib.Sent.Load())
		}
		if err := try(l, 2*time.Hour); err != nil {
			t.Errorf("when it answers again: %v", err)
		}
	})
}

// A caller with little time leaves at its deadline, but its call goes on: otherwise the library
// would close the connection, and the next caller would have to wait for a new one.
func TestAShortDeadlineEndsNoCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(20*time.Millisecond, true)
		l := lib.pipelines(t, 2, true)
		for range 10 {
			start := time.Now()
			if err := try(l, 15*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 15*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			time.Sleep(5 * time.Millisecond)
		}
		<-l.cfg.Goroutines.Idle()
		if l.proven == 0 || lib.Sent.Load() != 10 {
			t.Errorf("of %d calls the last was broken off", lib.Sent.Load())
		}
	})
}

// A call runs on its caller's goroutine if its answer is expected long before its deadline,
// unless it may have to connect, or another call runs there.
func TestACallerCarriesItsCallWhereTheAnswerIsNear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, true)
		l := lib.pipelines(t, 2, true)
		enter := func(left time.Duration) (int, mode) {
			c := &Call{Deadline: time.Now().Add(left)}
			conn, m, err := l.enter(c)
			if err != nil {
				t.Fatal(err)
			}
			return conn, m
		}
		leave := func(conn int, took time.Duration) {
			if b := l.next(conn, took, false, nil); b != nil {
				t.Fatalf("%d calls are left", len(b))
			}
		}
		a, m := enter(second)
		if m != connecting {
			t.Errorf("the first call goes in mode %v", m)
		}
		if conn, _ := enter(second); conn >= 0 {
			t.Error("a second call goes before a first one was answered")
		}
		l.queue = nil
		leave(a, time.Millisecond)
		if a, m = enter(second); m != onCaller {
			t.Errorf("a call goes in mode %v when the last was answered at once", m)
		}
		if conn, _ := enter(second); conn >= 0 {
			t.Error("a call connects beside one that may wait for that on its caller's goroutine")
		}
		l.queue = nil
		leave(a, time.Millisecond)
		if a, m = enter(promptly*time.Millisecond - 1); m != passed {
			t.Errorf("a call with little time goes in mode %v", m)
		}
		b, m := enter(second)
		if m != connecting {
			t.Errorf("a call for which no connection was proven goes in mode %v", m)
		}
		leave(a, time.Millisecond)
		if a, m = enter(second); m != passed {
			t.Errorf("a call beside one that connects goes in mode %v", m)
		}
		leave(b, time.Millisecond)
		if b, m = enter(second); m != passed {
			t.Errorf("a call beside another goes in mode %v: the two that were answered may have had one connection", m)
		}
		leave(b, 0)
		leave(a, 0)
		if _, m = enter(second); m != connecting {
			t.Errorf("a call goes in mode %v when the last was not answered", m)
		}
	})
}

// If another server replaces one that hangs, calls reach it soon.
func TestCallsFindTheNextServerSoon(t *testing.T) {
	for at := 1100 * time.Millisecond; at < 7*time.Second; at += 37 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(time.Millisecond, true)
			l := lib.pipelines(t, 4, true)
			if err := try(l, second); err != nil {
				t.Fatal(err)
			}
			lib.Takes.Store(int64(time.Hour))
			serves := time.Now().Add(at)
			time.AfterFunc(at, func() { lib.Takes.Store(int64(time.Millisecond)) })
			for try(l, second) != nil {
				time.Sleep(20 * time.Millisecond)
			}
			if late := time.Since(serves); late > second/4+30*time.Millisecond {
				t.Errorf("a server that takes the place of another after %v is found %v later", at, late)
			}
			<-l.cfg.Goroutines.Idle()
		})
	}
}

// A server that hangs again is noticed as soon as when it hung first.
func TestASecondHangIsNoticedLikeTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, true)
		l := lib.pipelines(t, 4, true)
		for hang := range 3 {
			lib.Takes.Store(int64(time.Millisecond))
			for range 2 { // the first may have to connect, and the second goes on its caller's goroutine
				if err := try(l, second); err != nil {
					t.Fatal(err)
				}
				<-l.cfg.Goroutines.Idle()
			}
			lib.Takes.Store(int64(time.Hour))
			for miss, want := range []time.Duration{second, second / 4, second / 4} {
				start := time.Now()
				if try(l, second) == nil {
					t.Fatal("an answer")
				}
				<-l.cfg.Goroutines.Idle()
				if d := time.Since(start); d != want || l.proven != 0 {
					t.Errorf("hang %d: call %d had %v, want %v, and %d were proven", hang, miss, d, want, l.proven)
				}
			}
		}
	})
}

// A server that hung and has become slow is used, though most calls give it less time.
func TestASlowServerIsUsedAfterItHung(t *testing.T) {
	for most := range 4 {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(time.Millisecond, true)
			l := lib.pipelines(t, most+1, true)
			if err := try(l, second); err != nil {
				t.Fatal(err)
			}
			lib.Takes.Store(int64(time.Hour))
			for range 3 {
				if try(l, second) == nil {
					t.Error("an answer")
				}
			}
			lib.Takes.Store(int64(second * 3 / 5))
			for range 20 {
				if try(l, second) == nil {
					<-l.cfg.Goroutines.Idle()
					return
				}
			}
			t.Errorf("%d connections: none of 20 calls is answered by a slow server", most+1)
		})
	}
}

// Only one call at a time, and one probe beside it, find out whether a server answers again;
// when it does, waiting calls are sent at once.
func TestOneCallWaitsForAServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Hour, true)
		l := lib.pipelines(t, 4, true)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				for range 5 {
					if err := try(l, 300*time.Millisecond); err == nil {
						t.Error("an answer")
					}
				}
			})
		}
		wg.Wait()
		if n := lib.Most.Load(); n > 2 {
			t.Errorf("%d calls were under way at once", n)
		}
		<-l.cfg.Goroutines.Idle()
		lib.Takes.Store(int64(time.Millisecond))
		start := time.Now()
		try100(t, l)
		if d := time.Since(start); d != 2*time.Millisecond {
			t.Errorf("100 calls took %v when it answers again", d)
		}
	})
}

// ending is a receiver.
type ending func(error)

func (f ending) Finished(err error) { f(err) }

// term is a term that no deadline of a test outlasts.
type term struct{ context.Context }

func (term) Due() time.Time { return time.Now().Add(time.Hour) }

// While a server does not answer, few calls go together, however far away it was: each of them is
// in doubt. Once it answers, many do again.
func TestFewCallsGoTogetherToAServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const far, callers = 20 * time.Millisecond, 2000
		lib := newLibrary(far, true)
		var mu sync.Mutex
		largest := 0 // batch
		l := pipelinesTo(t, func(ctx context.Context, calls []*Call) {
			mu.Lock()
			largest = max(largest, len(calls))
			mu.Unlock()
			lib.exec(ctx, calls)
		}, 4, true)
		if err := try(l, second); err != nil {
			t.Fatal(err)
		}
		<-l.cfg.Goroutines.Idle()
		crowd := func(answers bool) {
			var wg sync.WaitGroup
			for range callers {
				wg.Add(1)
				if !l.Start(&Call{}, term{t.Context()}, time.Now().Add(second), ending(func(err error) {
					defer wg.Done()
					if (err == nil) != answers {
						t.Errorf("a call ended with %v", err)
					}
				})) {
					t.Fatal("not started")
				}
			}
			wg.Wait()
			<-l.cfg.Goroutines.Idle()
		}
		lib.Takes.Store(int64(time.Hour))
		for range 3 {
			crowd(false)
		}
		if largest != MaxBatch {
			t.Errorf("%d calls went together to a server that hangs, want %d", largest, MaxBatch)
		}
		lib.Takes.Store(int64(far))
		crowd(true)
		if largest != mostBatch {
			t.Errorf("%d calls went together when it answered again, want %d", largest, mostBatch)
		}
	})
}

// A call runs on its caller's goroutine only if the client returns in time by itself.
func TestDirectGoesByTheClientsTimeouts(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		direct      Direct
		left, usual time.Duration
		want        bool
	}{
		{Direct{}, time.Hour, 0, false},
		{Direct{Heeds: true}, second, ms, true},
		{Direct{Heeds: true}, MinTimeout - 1, ms, false},
		{Direct{Heeds: true}, second, second / 10, false},
		{Direct{Longest: 900 * ms}, second, ms, true},
		{Direct{Longest: 900 * ms}, 800 * ms, ms, false},
		{Direct{Longest: 900 * ms, Attempt: 200 * ms}, second, 12 * ms, true},
		{Direct{Longest: 900 * ms, Attempt: 200 * ms}, second, 13 * ms, false},
	} {
		if got := c.direct.permits(c.left, c.usual); got != c.want {
			t.Errorf("%+v, %v left, %v a round trip: %v", c.direct, c.left, c.usual, got)
		}
	}
}
