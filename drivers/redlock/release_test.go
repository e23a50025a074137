package redlock_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/memory"
	"github.com/redlock-go/redlock/drivers/redlock"
)

// unsteady answers a little later or earlier each time.
type unsteady struct{ *memory.Backend }

func (u unsteady) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	l, err := u.Backend.Acquire(ctx, req)
	for range rand.N(30) {
		runtime.Gosched()
	}
	return l, err
}

// TestAReleaseBesideTheLastAnswersIsConfirmed: a majority's answers are enough for a lease, and the
// others may come while it is released.
func TestAReleaseBesideTheLastAnswersIsConfirmed(t *testing.T) {
	t.Parallel()
	var nodes []driver.Backend
	for range 5 {
		nodes = append(nodes, unsteady{memory.New()})
	}
	b, err := redlock.New(nodes, &redlock.Options{Guard: time.Hour, NodeTimeout: time.Minute}) // however busy the machine is
	drivertest.Must(t, err)
	t.Cleanup(func() { _ = b.Close() })
	for i := range 5000 { // some hundred were enough to see it fail
		l, err := b.Acquire(t.Context(), &driver.Request{Key: string(rune('a' + i%16)), Owner: "o/" + time.Now().Format(time.RFC3339Nano), TTL: time.Hour})
		drivertest.Must(t, err)
		if err := l.Release(t.Context()); err != nil {
			t.Fatalf("release %d: %v", i, err)
		}
	}
}
