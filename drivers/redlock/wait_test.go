package redlock

import (
	"sync"
	"testing"
	"testing/synctest"
)

// A caller whose time is over looks again at once. (Under the race detector, timers that are due
// at once crash a bubble of synctest.)
func TestAWaitWhoseTimeIsOverEndsAtOnce(t *testing.T) {
	waits := 5000
	if testing.Short() {
		waits = 1000
	}
	synctest.Test(t, func(t *testing.T) {
		b, _ := starting(t, &Options{Guard: -1})
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				for range waits {
					l := b.newLease(t.Context(), request1("k", "web/x", 0))
					if err := l.wait(t.Context(), &pause{}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	})
}
