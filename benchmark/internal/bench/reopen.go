package bench

import (
	"context"
	"sync"
	"time"
)

// reopened is a server that a client library would not open, since it is down: it is
// tried again now and then, so that a quorum's limit can begin without it.
type reopened struct {
	open func() (commands, error)

	mu    sync.Mutex
	c     commands
	tried time.Time
}

func (r *reopened) do(ctx context.Context, args []string) (any, error) {
	r.mu.Lock()
	c := r.c
	if c == nil && time.Since(r.tried) > 100*time.Millisecond {
		r.tried = time.Now()
		c, _ = r.open() // down still: errBroken says so
		r.c = c
	}
	r.mu.Unlock()
	if c == nil {
		return nil, errBroken
	}
	return c.do(ctx, args)
}

func (r *reopened) close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.c == nil {
		return nil
	}
	return r.c.close()
}
