package nats

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A lease is one acquisition. Only one attempt, renewal or release of it goes on at a time.
type lease struct {
	b           *Backend
	k           *bucket
	lock, owner string // lock is the name of the key
	ttl         time.Duration
	grant       driver.Grant
	seq         uint64 // of the message that has the lock
	since       time.Time
	contended   atomic.Bool // others may wait
	place       string      // that it had in the queue, which may still be there
	asked       time.Time   // when the last one of a row of leases asked for waiters
}

// askAgain is how long a client that takes a lock again and again relies on hearing of waiters: it
// may have missed one while it had no lock, or no connection.
const askAgain = time.Second

// A freed lock is one that this backend freed last.
type freed struct {
	seq   uint64 // of the message
	asked time.Time
}

// granted notes that the lock was taken by this message.
func (l *lease) granted(seq uint64, start time.Time) {
	l.seq, l.since = seq, l.k.now()
	l.grant = driver.Grant{Fence: l.k.base + seq, Expires: driver.Expires(start, l.ttl), Clock: l.since}
	l.b.mu.Lock()
	l.b.held[l.lock] = l
	delete(l.b.freed, l.k.subject("k", l.lock))
	l.b.mu.Unlock()
}

// ended notes that the lease has no lock any more; seq is the number of the message that freed the
// lock for anybody, or 0.
func (l *lease) ended(seq uint64) {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	if l.b.held[l.lock] == l {
		delete(l.b.held, l.lock)
	}
	if seq != 0 {
		if len(l.b.freed) >= mostFreed {
			clear(l.b.freed)
		}
		l.b.freed[l.k.subject("k", l.lock)] = freed{seq, l.asked}
	}
}

// mostFreed is how many locks a backend remembers that it has freed: it takes one of them again
// without looking.
const mostFreed = 10000

// guess returns the likely number of a lock's last message, if the lock is free, and when waiters
// were asked for.
func (b *Backend) guess(k *bucket, lock string) (seq uint64, asked time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if f, ok := b.freed[k.subject("k", lock)]; ok {
		return f.seq, f.asked
	}
	return 0, time.Now()
}

// change replaces the message that has the lock, if this lease still has it.
func (l *lease) change(ctx context.Context, ttl time.Duration, r record) (uint64, error) {
	for {
		seq, err := l.b.put(ctx, l.k, l.k.subject("k", l.lock), l.seq, ttl, r)
		if errors.Is(err, errUnsent) && l.b.gone(ctx, l.k) {
			l.ended(0)
			return 0, driver.ErrLost
		}
		if !errors.Is(err, errConflict) {
			return seq, err
		}
		// An earlier renewal may have taken effect without an answer.
		last, err := l.b.agreed(ctx, l.k, l.lock)
		if err != nil {
			return 0, err
		}
		if last.Owner != l.owner || last.Token != l.grant.Fence {
			l.ended(0)
			return 0, driver.ErrLost
		}
		l.seq = last.seq
	}
}

// gone reports whether a bucket was deleted, and made anew.
func (b *Backend) gone(ctx context.Context, k *bucket) bool {
	now, err := b.bucket(ctx)
	return err == nil && now.root != k.root
}

func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	start := time.Now()
	seq, err := l.change(call, r.TTL, record{Owner: l.owner, Token: l.grant.Fence, Since: l.since.UnixMicro()})
	if err != nil {
		return l.grant, err
	}
	l.seq = seq
	l.grant.Expires, l.grant.Clock = driver.Expires(start, r.TTL), l.k.now()
	return l.grant, nil
}

// release frees the lock, and keeps it for the first waiter for a moment if there is one.
func (l *lease) release(call *base.Call) error {
	var free record
	if l.contended.Load() || time.Since(l.asked) > askAgain {
		l.asked = time.Now()
		next, seq, err := l.b.first(call, l.k, l.lock, 1)
		if err == nil && next != "" && next == l.place {
			next, _, err = l.b.first(call, l.k, l.lock, seq+1)
		}
		if err != nil {
			return err
		}
		free.Next = next
	}
	seq, err := l.change(call, markerTTL, free)
	if err != nil {
		return err
	}
	if free.Next != "" {
		seq = 0
	}
	l.ended(seq)
	return nil
}
