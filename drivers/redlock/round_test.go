package redlock

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A node with too many blocking calls under way counts as a node that is down.
func TestANodeWithTooManyCallsIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newSpaces(3).quorum(t, nil)
		b.nodes[1].blocking.Store(mostCalls)
		l, err := b.Acquire(t.Context(), request1("k", "web/x", time.Second))
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := l.Grant().Votes[1].Err; !errors.Is(err, errBusy) {
			t.Errorf("its vote is %v", err)
		}
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}); err != nil {
			t.Error(err)
		}
		if err := l.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
