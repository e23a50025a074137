package base

import (
	"context"
	"time"
)

// Pause waits for this long. It reports false if ctx ends before.
func Pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// Again makes a request, and makes it again for half of ctx's time, as long as unsent reports by its
// error that no server took it: servers that elect a leader have one soon, and callers that fail at
// once would only ask again.
func Again(ctx context.Context, unsent func(error) bool, f func(context.Context) error) error {
	by, _ := ctx.Deadline()
	for by = by.Add(-time.Until(by) / 2); ; {
		err := f(ctx)
		if err == nil || !unsent(err) || !time.Now().Before(by) || !Pause(ctx, 50*time.Millisecond) {
			return err
		}
	}
}
