package async

import (
	"context"
	"sync/atomic"
	"time"
)

// bounded is a context with a deadline but no timer, which costs less where most calls end long
// before. Its Done is the parent's, so code that waits uses Await.
type bounded struct {
	context.Context
	deadline time.Time
	detached bool // it does not end with Context
	common   atomic.Value
}

// Common returns a place for what calls with the same term have in common, so that a quorum's nodes
// make it once. It is nil if the term has none.
func Common(t Term) *atomic.Value {
	if b, ok := t.(*bounded); ok {
		return &b.common
	}
	return nil
}

// Until returns ctx with a deadline. The deadline does not close its Done: wait with Await.
func Until(ctx context.Context, deadline time.Time) context.Context {
	return &bounded{Context: ctx, deadline: deadline}
}

// Within bounds ctx to d from now, like Until. A context that ends earlier is returned unchanged.
func Within(ctx context.Context, d time.Duration) context.Context {
	deadline := time.Now().Add(d)
	if t, ok := ctx.Deadline(); ok && t.Before(deadline) {
		return ctx
	}
	return &bounded{Context: ctx, deadline: deadline}
}

// Detached returns a context with the values of ctx that ends d from now, and not with ctx.
func Detached(ctx context.Context, d time.Duration) context.Context {
	return &bounded{Context: ctx, deadline: time.Now().Add(d), detached: true}
}

func (b *bounded) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *bounded) Done() <-chan struct{} {
	if b.detached {
		return nil
	}
	return b.Context.Done()
}

func (b *bounded) Err() error {
	if err := b.Context.Err(); err != nil && !b.detached {
		return err
	}
	if !time.Now().Before(b.deadline) {
		return context.DeadlineExceeded
	}
	return nil
}

// Await waits for done, at most until ctx ends.
func Await(ctx context.Context, done <-chan struct{}) error {
	var end <-chan time.Time
	if b, ok := ctx.(*bounded); ok {
		left := time.Until(b.deadline)
		if left <= 0 { // timers that are due at once crash the race detector in bubbles of synctest
			select {
			case <-done:
				return nil
			default:
				return b.Err()
			}
		}
		t := time.NewTimer(left)
		defer t.Stop()
		end = t.C
	}
	select {
	case <-done:
		return nil
	case <-end:
		return context.DeadlineExceeded
	case <-ctx.Done():
		return ctx.Err()
	}
}
