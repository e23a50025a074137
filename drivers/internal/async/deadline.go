package async

import (
	"context"
	"time"
)

// bounded is a context with a deadline but no timer, which costs less where most calls end long
// before. Its Done is the parent's, so code that waits uses Await.
type bounded struct {
	context.Context
	deadline time.Time
}

// Until returns ctx with a deadline. The deadline does not close its Done: wait with Await.
func Until(ctx context.Context, deadline time.Time) context.Context { return &bounded{ctx, deadline} }

// Within bounds ctx to d from now, like Until. A context that ends earlier is returned unchanged.
func Within(ctx context.Context, d time.Duration) context.Context {
	deadline := time.Now().Add(d)
	if t, ok := ctx.Deadline(); ok && t.Before(deadline) {
		return ctx
	}
	return &bounded{ctx, deadline}
}

func (b *bounded) Deadline() (time.Time, bool) { return b.deadline, true }

func (b *bounded) Err() error {
	if err := b.Context.Err(); err != nil {
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
