//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package file

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// A Break takes the key from its target and from nobody else, also while its file is removed whenever
// the key is free: of the other holders, there is one at most at any time, nobody is refused, and
// tokens rise.
func TestABreakMakesNoTwoHolders(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	breaks := 60
	if server.IsDeep() {
		breaks = 2000
	}
	var (
		mu      sync.Mutex
		targets = map[uint64]bool{} // tokens that a Break is taking away, or has taken away
		inside  = map[uint64]bool{} // tokens of the holders that are inside
		refused atomic.Int64
		removed atomic.Int64
		last    atomic.Uint64 // the highest token so far
		over    atomic.Bool
		users   sync.WaitGroup
	)
	patient := func() *Backend { // on a busy machine a look may take long
		b := open(t, folder)
		b.patience = time.Minute
		return b
	}
	for range 5 {
		b := patient()
		users.Go(func() {
			for !over.Load() {
				before := last.Load()
				l, err := b.Acquire(t.Context(), request("k"))
				if errors.Is(err, driver.ErrHeld) {
					refused.Add(1)
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				fence := l.Grant().Fence
				mu.Lock()
				if fence <= before {
					t.Errorf("token %d follows %d", fence, before)
				}
				last.Store(max(last.Load(), fence))
				for other := range inside {
					if !targets[other] && !targets[fence] {
						t.Errorf("%d is granted beside %d, which no Break has taken away", fence, other)
					}
				}
				inside[fence] = true
				mu.Unlock()
				for before := refused.Load(); refused.Load() < before+4 && !over.Load(); {
					if _, err := l.Renew(t.Context(), &driver.Renewal{}); err != nil {
						break
					}
				}
				mu.Lock()
				delete(inside, fence)
				mu.Unlock()
				if err := l.Release(t.Context()); err != nil && !errors.Is(err, driver.ErrLost) {
					t.Error(err)
				}
			}
		})
	}
	b := patient()
	users.Go(func() {
		for !over.Load() {
			_, n := b.clean(time.Now().Add(time.Minute)) // as if much time had passed since each use
			removed.Add(int64(n))
		}
	})
	for n := 0; (n < breaks || removed.Load() == 0) && !t.Failed(); {
		s, err := b.Lookup(t.Context(), "k")
		if err != nil {
			t.Error(err)
			break
		}
		if len(s.Holders) == 0 || s.Holders[0].Fence == 0 {
			continue
		}
		fence := s.Holders[0].Fence
		mu.Lock()
		targets[fence] = true
		mu.Unlock()
		err = b.Break(t.Context(), "k", driver.Holder{Fence: fence})
		if errors.Is(err, driver.ErrLost) {
			mu.Lock()
			delete(targets, fence)
			mu.Unlock()
		} else if err != nil {
			t.Error(err)
			break
		}
		n++
	}
	over.Store(true)
	users.Wait()
	t.Logf("%d files were removed", removed.Load())
}
