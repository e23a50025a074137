package base

import (
	"context"
	"sync"

	"github.com/redlock-go/redlock/driver"
)

// A Joint is a call that callers share who come while it is under way. The zero Joint is ready.
type Joint struct {
	mu  sync.Mutex
	now *flight // nil: none is under way
}

type flight struct {
	done chan struct{}
	err  error
}

// Do calls f in a goroutine of the driver's, unless a call is under way, and waits for its end, or for
// that of ctx. The call goes on if ctx ends.
func (j *Joint) Do(ctx context.Context, calls *Calls, f func(context.Context) error) error {
	j.mu.Lock()
	x := j.now
	if x == nil {
		x = &flight{done: make(chan struct{})}
		if !calls.Go(func(ctx context.Context) { j.end(x, f(ctx)) }) {
			j.mu.Unlock()
			return driver.ErrClosed
		}
		j.now = x
	}
	j.mu.Unlock()
	select {
	case <-x.done:
		return x.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (j *Joint) end(x *flight, err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.now = nil
	x.err = err
	close(x.done)
}
