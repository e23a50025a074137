package redlock

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// A node to which no more can be sent, since as much as is allowed waits for it, is a node
// that is away, whichever it is, and keeps the others from nothing.
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
