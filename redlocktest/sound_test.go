package redlocktest

import (
	"context"
	"math/rand/v2"
	"path"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// soundHarnesses are the harnesses in which bugs are planted, here without a bug.
var soundHarnesses = map[string]func() Harness{
	"memory":   func() Harness { return overMemory(func(*broken) {}) },
	"link":     func() Harness { return overLinks(func(*broken) {}) },
	"toy":      func() Harness { return overToy(func(*toyDriver) {})(nil) },
	"shown":    func() Harness { return overShown("toy://host", "toy")(nil) },
	"watching": func() Harness { return overUnqueuing(func(*broken) {}) },
	// The first answer to a request with a short deadline comes too late, later answers at once.
	"slow link": func() Harness {
		return overUnqueuing(func(b *broken) {
			var slow sync.Once
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= 50*time.Millisecond {
					slow.Do(func() { <-ctx.Done() })
				}
				return b.Backend.Acquire(ctx, req)
			}
		})
	},
	// Some answers are late: their attempts are in doubt, and undone in the background.
	"in doubt": func() Harness {
		return overMemory(func(b *broken) {
			var late atomic.Int64
			var undoing sync.WaitGroup
			var mu sync.Mutex // guards closing: once Close waits, nothing is added to undoing
			closing := false
			b.close = func() error {
				mu.Lock()
				closing = true
				mu.Unlock()
				undoing.Wait()
				return b.Backend.Close()
			}
			b.acquire = func(ctx context.Context, req *driver.Request) (driver.Lease, error) {
				l, err := b.Backend.Acquire(ctx, req)
				if err != nil || req.Wait || late.Add(1)%7 != 1 {
					return l, err
				}
				mu.Lock()
				defer mu.Unlock()
				if closing {
					return l, nil
				}
				undoing.Go(func() {
					<-time.After(20 * time.Millisecond)
					_ = l.Release(context.WithoutCancel(ctx))
				})
				return nil, context.DeadlineExceeded
			}
			b.renew = func(ctx context.Context, l *brokenLease, r *driver.Renewal) (driver.Grant, error) {
				g, err := l.Lease.Renew(ctx, r)
				if err == nil && late.Add(1)%7 == 1 {
					err = context.DeadlineExceeded
				}
				return g, err
			}
			b.release = func(ctx context.Context, l *brokenLease) error {
				err := l.Lease.Release(ctx)
				if err == nil && late.Add(1)%7 == 1 {
					err = context.DeadlineExceeded
				}
				return err
			}
		})
	},
	// Close waits for a server that answers late, gives up, and leaves a lock, once.
	"late Close": func() Harness {
		var once sync.Once
		return overMemory(func(b *broken) {
			var closing atomic.Bool
			b.close = func() error {
				closing.Store(true)
				time.Sleep(time.Second)
				return b.Backend.Close()
			}
			b.answers(func(_ context.Context, _ *driver.Request, l driver.Lease, err error) (driver.Lease, error) {
				if time.Sleep(rand.N(100 * time.Microsecond)); err == nil && closing.Load() {
					once.Do(func() { l, err = nil, driver.ErrClosed })
				}
				return l, err
			})
		})
	},
	// A node of a quorum does not answer the first Lookup of a case, and the others cannot tell the holder.
	"silent node": func() Harness {
		var asked sync.Map
		return inView(func(v *viewed) {
			v.state = func(s *driver.State) {
				if _, again := asked.LoadOrStore(path.Dir(s.Key), true); len(s.Holders) > 0 && !again {
					s.Holders, s.Nodes = nil, []driver.NodeState{{Node: "silent", Err: "did not answer in time"}}
				}
			}
		})(nil)
	},
	"counters": func() Harness {
		return oneCounter(false, false)(nil)
	},
	"connections": func() Harness {
		return overConnections(func(*broken, *atomic.Int64) {})(nil)
	},
	// A watch that resumes where it broke does not signal the break.
	"resuming watch": func() Harness {
		return overLinks(func(b *broken) {
			b.watch = func(ctx context.Context, key string) (<-chan struct{}, error) {
				return b.filtered(ctx, key, func() bool {
					s, err := b.Lookup(ctx, key)
					return err != nil || len(s.Holders) == 0
				})
			}
		})
	},
	// A store that refuses data of an unknown layout.
	"layouts": func() Harness {
		return overLayouts(&driver.RefusedError{Reason: "was written by another release"})(nil)
	},
}

// oddities are the groups of cases that a sound harness skips, with the reasons.
var oddities = map[string]map[string]string{
	"toy":      {"fence": "its tokens are those of another backend"},
	"counters": {"node": "its counters are not those of the backend behind", "operator": "its counters are not those of the backend behind"},
}

// TestSoundBackendsPass: the whole suite finds no bug in a sound backend.
func TestSoundBackendsPass(t *testing.T) {
	t.Parallel()
	for name, make := range soundHarnesses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := make()
				h.quiet, h.Timeout, h.Short, h.Skip = true, 20*time.Second, !deep(), oddities[name]
				if err := Check(h); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}
