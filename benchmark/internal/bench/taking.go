package bench

import (
	"cmp"
	"context"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

const (
	// keysInTurn is how many keys the callers use in turn, so that the next lock does not meet
	// requests on which a slow node still works.
	keysInTurn = 256
	// mostFailures ends a caller, so that a contestant that fails at once does not fill the report.
	mostFailures = 100
)

// These metrics are compared: the time of a lock and its release, and the time of a run divided
// by its locks.
const pair, aLock = "acquire+release", "time per lock"

// Turns are the latencies of locks and of their releases, in seconds, and the failures.
type Turns struct {
	Acquire, Release, Both []float64
	Failed                 int
	Err                    error // the first failure
}

func (t *Turns) add(o *Turns) {
	t.Acquire, t.Release, t.Both = append(t.Acquire, o.Acquire...), append(t.Release, o.Release...), append(t.Both, o.Both...)
	t.Failed, t.Err = t.Failed+o.Failed, cmp.Or(t.Err, o.Err)
}

// TakeTurns lets each goroutine take locks on keys of its own, one after the other, until the
// given time. Each takes one at least.
func TakeTurns(ctx context.Context, c *Client, keys string, goroutines int, end time.Time) (all Turns) {
	var mu sync.Mutex
	var workers sync.WaitGroup
	for g := range goroutines {
		workers.Go(func() {
			keys := keys + strconv.Itoa(g) + "/"
			var t Turns
			for i := 0; (i == 0 || time.Now().Before(end)) && ctx.Err() == nil && t.Failed < mostFailures; i++ {
				start := time.Now()
				unlock, err := c.Lock(ctx, keys+strconv.Itoa(i%max(keysInTurn/goroutines, 16)), false)
				granted := time.Now()
				if err == nil {
					err = unlock()
				}
				if err != nil {
					t.Failed, t.Err = t.Failed+1, cmp.Or(t.Err, err)
					continue
				}
				acquire, both := granted.Sub(start).Seconds(), time.Since(start).Seconds()
				t.Acquire, t.Release, t.Both = append(t.Acquire, acquire), append(t.Release, both-acquire), append(t.Both, both)
			}
			mu.Lock()
			defer mu.Unlock()
			all.add(&t)
		})
	}
	workers.Wait()
	return all
}

// taking measures goroutines that take turns for a slice of time.
func taking(goroutines int) func(context.Context, *Row, time.Duration) {
	return func(ctx context.Context, r *Row, slice time.Duration) {
		m := startMeter(r)
		t := TakeTurns(ctx, r.clients[0], r.keys+"lock/", goroutines, m.at.Add(slice))
		took := time.Since(m.at).Seconds()
		r.fail(t.Failed, t.Err)
		if n := float64(len(t.Both)); n > 0 {
			r.add(pair, figures.Seconds, t.Both...)
			r.add("acquire", figures.Seconds, t.Acquire...)
			r.add("release", figures.Seconds, t.Release...)
			r.add(aLock, figures.Seconds, took/n)
			r.add("locks", figures.PerSecond, n/took)
			m.stop(n)
		}
	}
}

// keepingAll measures a client that holds many locks. The warm-up takes them.
func keepingAll() func(context.Context, *Row, time.Duration) {
	unlocks := make([]func() error, 100_000)
	take := func(ctx context.Context, r *Row, i int) (err error) {
		unlocks[i], err = r.clients[0].Lock(ctx, r.keys+"keeping/"+strconv.Itoa(i), false)
		return err
	}
	return func(ctx context.Context, r *Row, slice time.Duration) {
		if r.round == 0 {
			callers, ctx := errgroup.WithContext(ctx)
			callers.SetLimit(64)
			for i := range unlocks {
				callers.Go(func() error { return take(ctx, r, i) })
			}
			if err := callers.Wait(); err != nil {
				r.fail(mostFailures, err)
			}
			return
		}
		m := startMeter(r)
		select {
		case <-time.After(slice):
		case <-ctx.Done():
		}
		m.stop(time.Since(m.at).Seconds())
		i := r.round % len(unlocks)
		err := unlocks[i]()
		if err == nil {
			err = take(ctx, r, i)
		}
		if err != nil {
			r.fail(1, err)
		}
	}
}
