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

func (l library) pipelines(t *testing.T, direct bool) *Pipelines {
	return pipelinesTo(t, l.exec, direct)
}

func pipelinesTo(t *testing.T, exec func(context.Context, []*Call), direct bool) *Pipelines {
	cfg := &Config{Exec: exec, CallTimeout: second, Calls: &async.Tracker{}, Goroutines: &async.Tracker{}}
	if direct {
		cfg.Abandon = func(time.Time) {}
	}
	l := New(cfg)
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
				l := lib.pipelines(t, direct)
				for range 2 { // the second time it is known that many call
					lib.Batches.Store(0)
					try100(t, l)
					<-l.cfg.Goroutines.Idle()
					if n := lib.Batches.Load(); n < 2 || n > 3 {
						t.Errorf("100 calls took %d round trips, want 2: one, and the rest together; or two alone, and the rest", n)
					}
				}
				if n := lib.Most.Load(); n > most {
					t.Errorf("%d round trips were under way at once", n)
				}
				<-l.cfg.Calls.Idle()
			})
		})
	}
}

// To a near server many callers share one round trip at a time, so that more calls are gathered. To a
// far server, and where calls are few, there are two.
func TestManyCallersShareOneRoundTrip(t *testing.T) {
	for _, c := range []struct {
		takes         time.Duration
		callers, most int64
	}{{time.Millisecond, 4, 2}, {time.Millisecond, 64, 1}, {10 * time.Millisecond, 64, 2}} {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(c.takes, true)
			l := lib.pipelines(t, true)
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
			callers(50)
			if n := lib.Most.Load(); n != c.most {
				t.Errorf("%d callers, round trips of %v: %d were under way at once, want %d", c.callers, c.takes, n, c.most)
			}
			if l.calling != 0 || l.busy != 0 {
				t.Errorf("%d calls and %d round trips are under way when all are over", l.calling, l.busy)
			}
		})
	}
}

// Over a slow link, what one batch does not take goes at once in another.
func TestABatchLeavesNothingThatAnotherPipelineCanSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const calls, trip = 1500, 10 * time.Millisecond
		lib := newLibrary(trip, true)
		l := lib.pipelines(t, true)
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
			t.Errorf("%d calls took %v, want two round trips: two alone, and the rest together", calls, took)
		}
		<-l.cfg.Goroutines.Idle()
		if n := lib.Batches.Load(); n != 5 || l.calling != 0 || l.busy != 0 {
			t.Errorf("%d round trips, want 5; %d calls and %d round trips are left", n, l.calling, l.busy)
		}
	})
}

// If a library ignores deadlines, its callers still return at theirs. The calls under way are
// bounded, and none is sent whose caller has left.
func TestDeadlinesHoldWhateverTheLibraryDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Hour, false)
		l := lib.pipelines(t, false)
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
		<-l.cfg.Goroutines.Idle()
		if sent.Load() != most || unsent.Load() != 50-most || lib.Sent.Load() != most {
			t.Errorf("%d were sent, %d were not; the library had %d", sent.Load(), unsent.Load(), lib.Sent.Load())
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
		l := lib.pipelines(t, true)
		for range 10 {
			start := time.Now()
			if err := try(l, 15*time.Millisecond); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 15*time.Millisecond {
				t.Errorf("%v after %v", err, time.Since(start))
			}
			time.Sleep(5 * time.Millisecond)
		}
		<-l.cfg.Goroutines.Idle()
		if l.missed > 0 || lib.Sent.Load() != 10 {
			t.Errorf("of %d calls the last was broken off", lib.Sent.Load())
		}
	})
}

// A call runs on its caller's goroutine if its answer is expected long before its deadline,
// unless it may have to connect, or another call is under way.
func TestACallerMakesItsCallWhereTheAnswerIsNear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, true)
		l := lib.pipelines(t, true)
		enter := func(left time.Duration) (send, alone bool) {
			send, alone, err := l.enter(&Call{Deadline: time.Now().Add(left)})
			if err != nil {
				t.Fatal(err)
			}
			return send, alone
		}
		leave := func(took time.Duration) {
			if b := l.next(1, took, nil); len(b) > 0 {
				t.Fatalf("%d calls are left", len(b))
			}
		}
		if send, alone := enter(second); !send || alone {
			t.Error("the first call may have to connect on its caller's goroutine")
		}
		leave(time.Millisecond)
		if _, alone := enter(second); !alone {
			t.Error("a call does not go on its caller's goroutine when the last was answered at once")
		}
		if send, alone := enter(second); !send || alone {
			t.Error("a call beside another goes on its caller's goroutine: it may have to connect")
		}
		if send, _ := enter(second); send {
			t.Error("a third call goes beside two others")
		}
		l.queue = nil
		leave(time.Millisecond)
		leave(time.Millisecond)
		if _, alone := enter(promptly*time.Millisecond - 1); alone {
			t.Error("a call with little time goes on its caller's goroutine")
		}
		leave(0)
		if _, alone := enter(second); alone {
			t.Error("a call goes on its caller's goroutine when the last was not answered")
		}
	})
}

// A caller whose goroutine makes its call returns soon after its context has ended.
func TestACallerThatMakesItsCallHearsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends chan struct{}
		takes := time.Duration(0)
		l := pipelinesTo(t, func(_ context.Context, calls []*Call) {
			calls[0].Reply = []any{int64(1)}
			select {
			case <-time.After(takes):
			case <-ends:
				calls[0].Reply, calls[0].Err = nil, context.DeadlineExceeded
			}
		}, true)
		l.cfg.Abandon = func(since time.Time) {
			if time.Since(since) < time.Second/2 {
				t.Error("the call has not been under way for so long")
			}
			close(ends)
		}
		for range 3 {
			takes = time.Millisecond
			for range 2 {
				if err := try(l, second); err != nil {
					t.Fatal(err)
				}
			}
			<-l.cfg.Goroutines.Idle()
			takes, ends = time.Hour, make(chan struct{})
			ctx, cancel := context.WithCancel(context.Background())
			start := time.Now()
			time.AfterFunc(time.Second/2, cancel)
			if err := l.Do(async.Within(ctx, second), &Call{}); !errors.Is(err, context.Canceled) {
				t.Errorf("got %v", err)
			}
			if late := time.Since(start) - time.Second/2; late > 100*time.Millisecond {
				t.Errorf("it returns %v after its context has ended", late)
			}
			ends = nil
		}
	})
}

// If another server replaces one that hangs, calls reach it soon, unless the hanging one has all of
// the call timeout at that moment.
func TestCallsFindTheNextServerSoon(t *testing.T) {
	all, late := 0, 0
	for at := 1100 * time.Millisecond; at < 7*time.Second; at += 37 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			lib := newLibrary(time.Millisecond, true)
			l := lib.pipelines(t, true)
			if err := try(l, second); err != nil {
				t.Fatal(err)
			}
			lib.Takes.Store(int64(time.Hour))
			serves := time.Now().Add(at)
			time.AfterFunc(at, func() { lib.Takes.Store(int64(time.Millisecond)) })
			for try(l, second) != nil {
				time.Sleep(20 * time.Millisecond)
			}
			all++
			switch found := time.Since(serves); {
			case found > second+30*time.Millisecond:
				t.Errorf("a server that takes the place of another after %v is found %v later", at, found)
			case found > second/4+30*time.Millisecond:
				late++
			}
			<-l.cfg.Goroutines.Idle()
		})
	}
	if late > all/5 {
		t.Errorf("%d of %d servers were found late", late, all)
	}
}

// A server that hangs again is noticed as soon as when it hung first.
func TestASecondHangIsNoticedLikeTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, true)
		l := lib.pipelines(t, true)
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
				if d := time.Since(start); d != want {
					t.Errorf("hang %d: call %d had %v, want %v", hang, miss, d, want)
				}
			}
		}
	})
}

// A server that hung and has become slow is used, though most calls give it less time.
func TestASlowServerIsUsedAfterItHung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Millisecond, true)
		l := lib.pipelines(t, true)
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
		for range probeEvery {
			if try(l, second) == nil {
				<-l.cfg.Goroutines.Idle()
				return
			}
		}
		t.Errorf("none of %d calls is answered by a slow server", probeEvery)
	})
}

// Only one call at a time finds out whether a server answers again; when it does, waiting calls are sent at once.
func TestOneCallWaitsForAServerThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := newLibrary(time.Hour, true)
		l := lib.pipelines(t, true)
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
		if n := lib.Most.Load(); n > most {
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
		}, true)
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
