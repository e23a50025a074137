package dlock

import (
	"context"
	"errors"
	mathrand "math/rand/v2"
	"strconv"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// WithSlots lets n holders have the key at the same time, 1 to 1024: a bound on how many do
// something at once. Each slot is a lock of its own, with its token and its loss; Lease.Slot
// tells which one it is. Slot 0 is the lock named key itself, and slot i the lock named "key#i".
//
// Lock takes any free slot. It waits on several at a time, so that it takes a freed slot at
// once, or within about a second if there are more than 16 slots. The calls of one client for
// one key wait in order. Clients with different numbers of slots exclude each other in the
// slots that both have: while n is changed there are at most as many holders as the larger of
// the numbers.
//
// Tokens rise from one holder of a slot to the next, and tokens of different slots cannot be
// compared: a store that checks them needs one resource for each slot. Shared mode has no
// slots: WithShared beside it is ErrInvalid.
func WithSlots(n int) LockOption {
	return lockOption(func(l *lockConfig) {
		l.slots = n
		if n < 1 || n > mostSlots {
			l.bad("WithSlots", "%d must be 1 to %d", n, mostSlots)
		}
	})
}

const mostSlots = 1024

// Slot returns which slot of WithSlots the lease has: 0 to n−1, and 0 without WithSlots.
func (l *Lease) Slot() int { return l.slot }

// slotKey returns the name of a slot's lock.
func slotKey(key string, slot int) string {
	if slot == 0 {
		return key
	}
	return key + "#" + strconv.Itoa(slot)
}

// ofSlot returns the request for one slot.
func (r *request) ofSlot(slot int) *request {
	q := *r
	q.Key, q.slot, q.attempts = slotKey(r.name, slot), slot, 0
	return &q
}

// took adds the attempts and the verdict of a slot's request to those of the call.
func (r *request) took(q *request, l *Lease, err error) {
	r.attempts += q.attempts
	if l != nil {
		r.verdict = nil
	} else if q.verdict != nil {
		r.verdict = sooner(r.verdict, q.verdict)
	}
}

// sooner returns the verdict that promises a slot sooner; an outage promises none.
func sooner(a, b error) error {
	var x, y *driver.HeldError
	if errors.As(a, &x) && errors.As(b, &y) && x.RetryAfter > 0 && (y.RetryAfter == 0 || x.RetryAfter < y.RetryAfter) {
		return a
	}
	return b
}

const (
	// watchedSlots is the number of slots on which a call waits at a time, each with a request
	// of its own; it asks for the other slots every slotsPause.
	watchedSlots = 16
	slotsPause   = 700 * time.Millisecond
)

// takeSlot takes any free slot, and waits for one if r is a Lock.
func (c *Client) takeSlot(ctx context.Context, r *request) (*Lease, error) {
	if r.op != "lock" {
		return c.tryASlot(ctx, r, mathrand.Perm(r.slots))
	}
	c.count.waiting.Add(1)
	defer c.count.waiting.Add(-1)
	q, _, verdict, err := c.queues.enter(ctx, r.name+"\x00slots")
	if verdict != nil {
		r.verdict = verdict
	}
	if err != nil {
		return nil, err
	}
	defer func() { c.queues.leave(q, r.verdict) }()
	for order := mathrand.Perm(r.slots); ; order = mathrand.Perm(r.slots) {
		l, err := c.tryASlot(ctx, r, order)
		if err == nil || !errors.Is(err, ErrHeld) && !c.again(ctx, r, err) {
			return l, err
		}
		q.note(r.verdict)
		l, err = c.awaitASlot(ctx, r, order[:min(len(order), watchedSlots)])
		if l != nil || err != nil {
			return l, err
		}
	}
}

// tryASlot makes one attempt at each slot, in this order, until one succeeds.
func (c *Client) tryASlot(ctx context.Context, r *request, order []int) (l *Lease, err error) {
	var held error
	for _, slot := range order {
		q := r.ofSlot(slot)
		l, err = c.attempt(ctx, q, false)
		r.took(q, l, err)
		if !errors.Is(err, ErrHeld) {
			return l, err
		}
		held = sooner(held, err)
	}
	return nil, held
}

// awaitASlot waits on several slots until one is granted. It returns neither a lease nor an
// error if it is time to try the other slots. A second grant is given back at once.
func (c *Client) awaitASlot(ctx context.Context, r *request, slots []int) (*Lease, error) {
	var wait context.Context
	var cancel context.CancelFunc
	if len(slots) < r.slots {
		wait, cancel = context.WithTimeout(ctx, slotsPause)
	} else {
		wait, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	type outcome struct {
		q   *request
		l   *Lease
		err error
	}
	outcomes := make(chan outcome, len(slots))
	for _, slot := range slots {
		q := r.ofSlot(slot)
		go func() {
			l, err := c.lock(wait, q)
			outcomes <- outcome{q, l, err}
		}()
	}
	var failed error
	for left := len(slots); left > 0; left-- {
		o := <-outcomes
		r.took(o.q, o.l, o.err)
		if o.l != nil {
			cancel()
			go func() {
				for ; left > 1; left-- {
					if o := <-outcomes; o.l != nil {
						o.l.discard()
					}
				}
			}()
			return o.l, nil
		}
		if permanent(o.err) && failed == nil {
			failed = o.err // every slot would return this error
			cancel()
		}
	}
	if failed == nil && driver.ContextErr(ctx) != nil {
		failed = c.ended(ctx)
	}
	return nil, failed
}

// discard releases a lease that no caller got, and ignores its WithMinHold.
func (l *Lease) discard() {
	l.mu.Lock()
	l.keep = 0
	l.mu.Unlock()
	_ = l.Unlock() // if this fails the lock ends with its TTL
}
