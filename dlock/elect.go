package dlock

import (
	"context"
	"errors"
)

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
// Every option of Do is accepted. WithMaxHold makes leaders take turns: a leader loses the
// lease after that time and campaigns again, behind the candidates that wait.
func Elect(ctx context.Context, l Locker, key string, lead func(context.Context) error, opts ...LockOption) error {
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
