//go:build !linux

package fault

import (
	"context"
	"time"
)

// A clock sleeps as precisely as Go's timers do, which is well below a millisecond
// on macOS.
type clock struct{}

// sleepUntil returns at t, or with ctx's error when it ends before.
func (clock) sleepUntil(ctx context.Context, t time.Time) error {
	timer := time.NewTimer(time.Until(t))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (clock) close() {}
