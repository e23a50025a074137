package redlock

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/memory"
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

// The error says that a node did not answer only if the bid waited for it.
func TestAVerdictBeforeAnAnswerBlamesNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		say := func(acquire func() error) driver.Backend {
			return script{memory.New(), func(context.Context, *driver.Request) (driver.Lease, error) { return nil, acquire() }}
		}
		hung := make(chan struct{})
		silent := func() error { <-hung; return errors.New("too late") }
		down := func() error { return errors.New("connection refused") }
		for _, tt := range []struct {
			first  func() error
			blamed bool
		}{{down, false}, {silent, true}} {
			b, err := New([]driver.Backend{say(tt.first), say(down), say(silent)}, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, err = b.Acquire(t.Context(), request1("k", "web/x", time.Second))
			var q *quorum.Error
			if !errors.As(err, &q) {
				t.Fatal(err)
			}
			if (q.Votes[2].Err != nil) != tt.blamed || strings.Contains(err.Error(), "no answer") != tt.blamed {
				t.Errorf("the vote is %v, the error %v", q.Votes[2].Err, err)
			}
			defer func() { _ = b.Close() }()
		}
		close(hung)
	})
}
