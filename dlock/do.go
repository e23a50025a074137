package dlock

import (
	"context"
	"errors"
)

// Do waits for the lock named key, calls fn under the lease's context, and releases the
// lock afterwards, if fn panics too. ctx bounds the waiting, and fn's context derives
// from it. The work's own life bounds the hold: there is no WithMaxHold unless it is set
// in opts.
//
// If nothing else fails, fn's error is returned as it is.
//
// If the lease is lost, fn's context is cancelled with a cause that is ErrLost; Do waits
// for fn all the same, and returns the loss joined with fn's error. A release that
// failed is joined as well. The errors before fn is called are those of Client.Lock.
func Do(ctx context.Context, l Locker, key string, fn func(context.Context) error, opts ...LockOption) (err error) {
	lease, err := l.Lock(ctx, key, append([]LockOption{workBound}, opts...)...)
	if err != nil {
		return err
	}
	ctx, cancel := lease.Context(ctx)
	defer cancel()
	defer func() {
		switch end := lease.Unlock(); {
		case err == nil:
			err = end
		case end != nil:
			err = errors.Join(err, end)
		}
	}()
	return fn(ctx)
}

// LeaseFrom returns the lease under whose Context the caller runs, inside Do above all:
// a repository reads its Fence without any plumbing.
func LeaseFrom(ctx context.Context) (*Lease, bool) {
	l, ok := ctx.Value(leaseKey{}).(*Lease)
	return l, ok
}
