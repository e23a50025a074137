package redlock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/drivers/memory"
)

// While this process does not run, the nodes' timeout does not run either, up to a bound, and
// never beyond the caller's time.
func TestTheNodesTimeStandsStillWithThisProcess(t *testing.T) {
	const timeout, never = 100 * time.Millisecond, boot.Instant(1<<62 - 1)
	type look struct {
		now, stalled time.Duration
		over         bool
	}
	for name, c := range map[string]struct {
		until boot.Instant
		looks []look
	}{
		"no stall": {never, []look{{now: timeout - 1}, {now: timeout, over: true}}},
		"one":      {never, []look{{now: 300, stalled: 250}, {now: 349}, {now: 350, over: true}}},
		"two":      {never, []look{{now: 300, stalled: 250}, {now: 400, stalled: 90}, {now: 439}, {now: 440, over: true}}},
		"bound":    {never, []look{{now: mostTimeouts*timeout - 1, stalled: time.Hour}, {now: mostTimeouts * timeout, stalled: time.Hour, over: true}}},
		"caller":   {boot.Instant(timeout * 3 / 2), []look{{now: timeout, stalled: timeout}, {now: timeout * 3 / 2, stalled: timeout, over: true}}},
	} {
		b := bid{n: 3, q: 2, drift: 1, ttl: 10 * time.Second, timeout: timeout}
		b.step(&event{kind: begins, until: c.until})
		for _, l := range c.looks {
			if l.now < timeout/50 {
				l.now, l.stalled = l.now*time.Millisecond, l.stalled*time.Millisecond
			}
			out := b.step(&event{kind: looks, now: boot.Instant(l.now), until: c.until, stalled: l.stalled})
			if (out.verdict != open) != l.over {
				t.Errorf("%s: at %v the verdict is %d, want one: %v", name, l.now, out.verdict, l.over)
			}
		}
	}
}

// If this process runs, a silent node is given up after the node timeout. If the process sleeps
// for longer than is excused, the error says so.
func TestASilentNodeIsGivenUpInItsTime(t *testing.T) {
	for name, sleeps := range map[string]time.Duration{"awake": 0, "asleep": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ended atomic.Int64
				silent := func() driver.Backend {
					return script{memory.New(), func(ctx context.Context, _ *driver.Request) (driver.Lease, error) {
						<-ctx.Done()
						ended.Add(1)
						return nil, ctx.Err()
					}}
				}
				b, err := New([]driver.Backend{silent(), silent(), silent()}, nil)
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = b.Close() }()
				var slept atomic.Int64
				b.clock = boot.New(boot.Source{Suspended: func() time.Duration { return time.Duration(slept.Load()) }})
				time.AfterFunc(time.Millisecond, func() { slept.Store(int64(sleeps)) })
				const ttl = 10 * time.Second
				start := time.Now()
				_, err = b.Acquire(t.Context(), request1("k", "web/x", ttl))
				took, timeout := time.Since(start), b.timeout(ttl)
				if err == nil || errors.Is(err, context.DeadlineExceeded) || took > timeout*11/10 || sleeps == 0 && took < timeout {
					t.Errorf("after %v: %v", took, err)
				}
				if said := strings.Contains(err.Error(), "did not run"); said != (sleeps > 0) {
					t.Errorf("it said that this process did not run: %v, with %v of sleep: %v", said, sleeps, err)
				}
				time.Sleep(timeout)
				synctest.Wait()
				if ended.Load() < 3 {
					t.Errorf("%d of 3 calls have ended", ended.Load())
				}
			})
		})
	}
}
