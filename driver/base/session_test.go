package base_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

type session struct{ base.Session }

// Locks of one class share a session, which is renewed until it has had no users for a minute.
func TestSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var all base.Sessions[*session]
		join := func(class int) *session { return all.Join(class, func() *session { return &session{} }) }
		a, b := join(10), join(20)
		if a == b || join(10) != a {
			t.Error("classes do not tell sessions apart")
		}
		all.Leave(a)
		all.Retire(b)
		if c := join(20); c == b {
			t.Error("a retired session is used")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		run := func(s *session, gone chan struct{}) (used bool, renewed int, took time.Duration) {
			start := time.Now()
			used = all.Run(ctx, s, time.Second, gone, func(context.Context) { renewed++ })
			return used, renewed, time.Since(start)
		}
		gone := make(chan struct{})
		time.AfterFunc(time.Minute/2, func() { close(gone) })
		if used, _, took := run(a, gone); !used || took != time.Minute/2 {
			t.Errorf("a session that has ended: %v, %v", used, took)
		}
		all.Leave(a)
		if used, renewed, took := run(a, nil); used || renewed != 60 || took != time.Minute {
			t.Errorf("a session without users: %v, %d renewals in %v", used, renewed, took)
		}
		if join(10) == a {
			t.Error("a session that was idle is used")
		}
		if used, _, _ := run(b, nil); !used || ctx.Err() == nil {
			t.Errorf("a retired session with a user: %v, %v", used, ctx.Err())
		}
		all.Leave(b)
		if !all.Unused(b) {
			t.Error("a retired session without users is kept")
		}
	})
}

// Calls that meet are one, which goes on when a caller leaves.
func TestJoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c base.Calls
		var j base.Joint
		var calls atomic.Int64
		f := func(context.Context) error { calls.Add(1); time.Sleep(time.Second); return errUnknown }
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		go func() {
			if err := j.Do(ctx, &c, f); !errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
		}()
		synctest.Wait()
		for n := range int64(2) {
			if err := j.Do(t.Context(), &c, f); !errors.Is(err, errUnknown) || calls.Load() != n+1 {
				t.Errorf("%d calls: %v", calls.Load(), err)
			}
		}
		c.Close()
		if err := j.Do(t.Context(), &c, f); !errors.Is(err, driver.ErrClosed) {
			t.Error(err)
		}
	})
}

// The token of the next index is not behind the clock by more than the lag, and hostile numbers give no
// token.
func TestNextBase(t *testing.T) {
	const us, lag = 1_700_000_000_000_000, 200_000
	for i, c := range []struct {
		base, index uint64
		stored      bool
		want        uint64
	}{
		{0, 0, false, us}, {0, 7, false, us - 7}, {us - 7, 7, true, us - 7}, {us + lag, 7, true, us + lag},
		{us - lag - 7, 7, true, us - lag - 7}, {us - lag - 8, 7, true, us - 7},
		{0, us + 1, true, 0}, {0, math.MaxUint64, true, 0}, {driver.MaxFence, driver.MaxFence + 1, true, 0},
	} {
		got, err := base.NextBase(c.base, c.index, c.stored, time.UnixMicro(us), lag*time.Microsecond, 0)
		if got != c.want || errors.Is(err, driver.ErrRefused) != (c.want == 0) {
			t.Errorf("%d: base %d, %v", i, got, err)
		}
	}
	for stored, ok := range map[string]bool{"v1 5": true, "v2 5": false, "v1 -5": false, "v1": false, "v1 9007199254740992": false} {
		if n, err := base.ParseBase(stored, "v1", "/p"); ok != (n == 5 && err == nil) {
			t.Errorf("%q: %d, %v", stored, n, err)
		}
	}
}

// A request that no server took is made again for half of its time.
func TestAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start, calls := time.Now(), 0
		unsent := func(err error) bool { return errors.Is(err, errUnknown) }
		err := base.Again(ctx, unsent, func(context.Context) error { calls++; return errUnknown })
		if took := time.Since(start); !errors.Is(err, errUnknown) || calls != 11 || took != time.Second/2 {
			t.Errorf("%d calls in %v: %v", calls, took, err)
		}
		calls = 0
		for _, end := range []error{nil, driver.ErrHeld} {
			if err := base.Again(ctx, unsent, func(context.Context) error {
				if calls++; calls%2 == 1 {
					return errUnknown
				}
				return end
			}); !errors.Is(err, end) || calls%2 != 0 {
				t.Errorf("%d calls: %v", calls, err)
			}
		}
	})
}
