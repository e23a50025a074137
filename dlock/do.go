package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// Do waits for the lock named key, calls fn under the lease's context, and releases the
// lock afterwards, also if fn panics. ctx bounds the waiting, and fn's context derives
// from it. The lease renews itself until fn has returned.
//
// Before fn is called the errors are those of Client.Lock. Afterwards Do returns fn's error,
// unchanged if the lease lasted. If the lease was lost, fn's context is cancelled with a cause that
// is ErrLost; Do waits for fn all the same, and joins fn's error to an *Error with Op "unlock" and
// the key, which says why. It does the same if the release failed, or the client was closed
// meanwhile. Every error is one line.
func Do(ctx context.Context, l Locker, key string, fn func(context.Context) error, opts ...LockOption) (err error) {
	lease, err := l.Lock(ctx, key, opts...)
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
			err = &doError{end: end, fn: err}
		}
	}()
	return fn(ctx)
}

// DoAll is Do with the locks of several keys: it calls fn when it has all of them, and the first
// loss ends fn's context. Keys are sorted and duplicates dropped. They are taken one after the
// other in that order, so that callers with the same keys cannot block each other for ever, and
// the first ones are held and renewed while the others are waited for. If one is lost before fn is
// called, DoAll begins again. Without keys the error is ErrInvalid.
//
// Callers that take the same locks in another order, by Do within Do, can still deadlock: give
// ctx a deadline then.
func DoAll(ctx context.Context, l Locker, keys []string, fn func(context.Context) error, opts ...LockOption) error {
	keys = slices.Compact(slices.Sorted(slices.Values(keys)))
	if len(keys) == 0 {
		return fmt.Errorf("dlock: lock all: %w", driver.Invalid("keys", "are none"))
	}
	for {
		called := false
		err := doAll(ctx, l, keys, func(ctx context.Context) error { called = true; return fn(ctx) }, opts)
		if called || !errors.Is(err, ErrLost) || ctx.Err() != nil {
			return err
		}
	}
}

func doAll(ctx context.Context, l Locker, keys []string, fn func(context.Context) error, opts []LockOption) error {
	if len(keys) == 0 {
		return fn(ctx)
	}
	return Do(ctx, l, keys[0], func(ctx context.Context) error { return doAll(ctx, l, keys[1:], fn, opts) }, opts...)
}

// doError is the error of Do's lease, together with the error of its function.
type doError struct{ end, fn error }

// Error returns one line and states each fact once: a function that its context ended usually
// returns that context's cause.
func (e *doError) Error() string {
	end, fn := e.end.Error(), printable.Line(e.fn.Error())
	if strings.Contains(end, fn) {
		return end
	}
	return fmt.Sprintf("%s (the function returned: %s)", end, fn)
}

func (e *doError) Unwrap() []error { return []error{e.end, e.fn} }

// Elect runs lead while it leads: it waits for the lock named key, calls lead under the lease's
// context, and releases the lock when lead returns. Any number of candidates may call it; at
// any time at most one leads, by its lease's Deadline. The others wait as Client.Lock does, in
// the backend's queue if it has one, so that the end of a leader wakes one of them.
//
// lead must return soon after its context ends, because the lease was lost or ctx ended. If the
// lease was lost, Elect waits for lead, drops its error, and campaigns again. In every other
// case the return of lead resigns, and Elect returns lead's error, as Do does. LeaseFor finds
// the lease in lead's context: send its token along with everything that the leader writes.
//
// ctx bounds the campaign and the leadership. If ctx ends the campaign, or the campaign cannot
// succeed (ErrInvalid, ErrClosed, a permanent refusal), Elect returns the error of Client.Lock.
//
// Every option of Do is accepted but WithShared, with which all candidates would lead. WithMaxHold
// makes leaders take turns: a leader loses the lease after that time and campaigns again, behind the
// candidates that wait.
func Elect(ctx context.Context, l Locker, key string, lead func(context.Context) error, opts ...LockOption) error {
	opts = append(slices.Clone(opts), lockOption(func(l *lockConfig) {
		if l.mode == driver.Shared {
			l.bad("WithShared", "makes every candidate a leader: leave it out of Elect")
		}
	}))
	for {
		var lease *Lease
		err := Do(ctx, l, key, func(ctx context.Context) error {
			lease, _ = LeaseFor(ctx, key)
			return lead(ctx)
		}, opts...)
		if lease == nil || ctx.Err() != nil || !errors.Is(lease.Err(), ErrLost) {
			return err
		}
	}
}
