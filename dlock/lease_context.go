package dlock

import "context"

// Context returns a copy of parent that is cancelled when the lease is over, with the
// lease's Err as its cause. Its own Err looks at the clock, as the lease's does.
// LeaseFor finds the lease in it. Call cancel when it is no longer needed; that does
// not release the lease.
func (l *Lease) Context(parent context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancelCause(parent)
	ctx := &leaseContext{Context: inner, parent: parent, lease: l, cancel: cancel}
	if l.c == nil {
		cancel(ErrReleased)
		return ctx, func() {}
	}
	l.mu.Lock()
	err := l.err
	if err == nil {
		if l.contexts == nil {
			l.contexts = map[*leaseContext]context.CancelCauseFunc{}
		}
		l.contexts[ctx] = cancel
	}
	l.mu.Unlock()
	if err != nil {
		cancel(err)
	}
	return ctx, func() {
		l.mu.Lock()
		delete(l.contexts, ctx)
		l.mu.Unlock()
		cancel(nil)
	}
}

// leaseContext is a context that ends with a lease.
type leaseContext struct {
	context.Context
	parent context.Context
	lease  *Lease
	cancel context.CancelCauseFunc
}

// leaseKey is the context key of a lease: the lock's key.
type leaseKey string

// LeaseFor returns the lease of key whose Context ctx derives from, inside Do for example, so
// that functions deep in the program can read its Fence. It reports false if ctx derives from
// no lease of that key. key is as in Lease.Key. If two clients lock the same key, one inside
// the other, it returns the inner lease.
func LeaseFor(ctx context.Context, key string) (*Lease, bool) {
	l, ok := ctx.Value(leaseKey(key)).(*Lease)
	return l, ok
}

// Err returns the context's error, and ends it first if the lease, or one from which the context
// derives, is over by the clock.
func (c *leaseContext) Err() error {
	_ = c.parent.Err()
	if err := c.Context.Err(); err != nil {
		return err
	}
	err := c.lease.Err()
	if err != nil {
		c.cancel(err) // the goroutine that ended the lease may do so at the same time
	}
	return c.Context.Err()
}

// Value returns the lease for its key.
func (c *leaseContext) Value(key any) any {
	if k, ok := key.(leaseKey); ok && string(k) == c.lease.key {
		return c.lease
	}
	return c.Context.Value(key)
}
