package dlock

import (
	"context"
	"errors"
	"iter"
	mathrand "math/rand/v2"
	"time"

	"github.com/redlock-go/redlock/driver"
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

// Observe returns an iterator over the holders of key: the present one, and then each new
// one, told apart by owner and token. The zero Holder says that nobody holds the key. Of several
// holders of a shared lock it is the one with the smallest token.
//
// A change is seen at once if the backend signals it (driver.Watcher), and otherwise within
// about a second, by one Lookup a second. Holders that came and went in between are not seen.
// An error, as of Lookup, is yielded when the backend becomes unreachable; the iteration goes
// on, and yields again when the holder is known. After a permanent error (ErrInvalid,
// errors.ErrUnsupported, ErrClosed) it ends. It ends without an error when ctx does.
func (c *Client) Observe(ctx context.Context, key string) iter.Seq2[Holder, error] {
	return func(yield func(Holder, error) bool) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		o := observer{c: c, key: key}
		for {
			h, err := o.look(ctx)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && permanent(err):
				yield(Holder{}, err)
				return
			case o.news(h, err) && !yield(h, err):
				return
			}
			if !o.pause(ctx, h, err) {
				return
			}
		}
	}
}

// observer is the state of one call of Observe.
type observer struct {
	c       *Client
	key     string
	signal  <-chan struct{}
	known   bool // last was yielded
	failing bool // an error was yielded, and nothing since
	last    Holder
	quick   time.Duration // the pause after a release, until the next holder is seen
}

// look returns the holder. It watches first, so that no change falls in between.
func (o *observer) look(ctx context.Context) (Holder, error) {
	if w, ok := o.c.backend.(driver.Watcher); ok && o.signal == nil && o.c.beginWith(o.key) == nil {
		o.signal, _ = w.Watch(ctx, o.key) // without a watch, poll
		o.c.calls.Done()
	}
	s, err := o.c.Lookup(ctx, o.key)
	if err != nil || len(s.Holders) == 0 {
		return Holder{}, err
	}
	h := s.Holders[0]
	for _, other := range s.Holders[1:] {
		if other.Fence < h.Fence {
			h = other
		}
	}
	return h, nil
}

// news reports whether the holder or the error differs from the last one yielded, and notes it.
func (o *observer) news(h Holder, err error) bool {
	if err != nil {
		news := !o.failing
		o.failing = true
		return news
	}
	news := !o.known || o.failing || h.Owner != o.last.Owner || h.Fence != o.last.Fence
	o.known, o.failing, o.last = true, false, h
	return news
}

// pause waits for a reason to look again. It reports false if ctx or the client ended.
func (o *observer) pause(ctx context.Context, h Holder, err error) bool {
	d := watchedPoll
	if o.quick > 0 && err == nil && h.Owner == "" && o.quick < watchedPoll {
		d = o.quick
		o.quick *= 2
	} else {
		o.quick = 0
	}
	t := time.NewTimer(d/2 + mathrand.N(d/2))
	defer t.Stop()
	select {
	case <-t.C:
	case <-o.signal:
		o.quick = DefaultMinBackoff // another holder will follow soon
	case <-ctx.Done():
		return false
	case <-o.c.life.Done():
	}
	return true
}
