package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
	"github.com/redlock-go/redlock/drivers/memory"
)

// A node whose queue of requests is full counts as a node that is down, whichever node it is,
// and does not delay the others.
func TestANodeWithAFullQueueIsAway(t *testing.T) {
	for away := range 3 {
		t.Run(fmt.Sprint(away), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				answer := make(chan struct{})
				nodes := []driver.Backend{memory.New(), memory.New(), memory.New()}
				nodes[away] = script{nodes[away], func(context.Context, *driver.Request) (driver.Lease, error) {
					<-answer
					return nil, errors.New("no answer")
				}}
				b, err := New(nodes, &Options{InFlight: 1})
				if err != nil {
					t.Fatal(err)
				}
				defer func() { _ = b.Close() }()
				defer close(answer)
				for i := range 1 + queued + 1 {
					l, err := b.Acquire(t.Context(), request1(fmt.Sprint("k", i), "web/x", time.Second))
					if err != nil {
						t.Fatalf("key %d: %v", i, err)
					}
					if i <= queued {
						continue
					}
					if err := l.Grant().Votes[away].Err; !errors.Is(err, errBusy) {
						t.Fatalf("the node's queue has room: %v", err)
					}
					if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Second}); err != nil {
						t.Errorf("Renew: %v", err)
					}
					if err := l.Release(t.Context()); err != nil {
						t.Errorf("Release: %v", err)
					}
				}
			})
		})
	}
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
