package nats

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

const (
	// reserve is how long a free lock is kept for the first waiter.
	reserve = 500 * time.Millisecond
	// entryTTL is how long the place of a waiter in the queue is kept if nobody removes it.
	entryTTL = 10 * time.Minute
	// A waiter looks by itself, ever more seldom, should the server's news not reach it.
	firstLook  = 234375 * time.Microsecond // 15 s / 64
	seldomLook = 15 * time.Second
)

// Acquire takes the lock, or waits for it in the order of the queue.
func (b *Backend) Acquire(ctx context.Context, req *driver.Request) (driver.Lease, error) {
	call, err := b.calls.BeginAcquire(ctx, b.about, b.opt.Prefix, req)
	if err != nil {
		return nil, err
	}
	defer call.End()
	l := &lease{b: b, lock: name(b.opt.Prefix + req.Key), owner: req.Owner, ttl: req.TTL}
	err = l.attempt(call, nil)
	if held := (*driver.HeldError)(nil); req.Wait && errors.As(err, &held) {
		err = l.wait(call, held)
	}
	if err != nil {
		return nil, call.Failed(err)
	}
	return base.NewLease(&b.calls, b.about, l.grant, l.renew, l.release), nil
}

// attempt makes one attempt, for a waiter if w is not nil. What is in doubt is undone.
func (l *lease) attempt(ctx context.Context, w *waiter) error {
	ctx, cancel := context.WithTimeout(ctx, l.b.calls.Bound(l.ttl))
	defer cancel()
	k, err := l.b.bucket(ctx)
	if err != nil {
		return err
	}
	if w != nil && k.root != l.k.root {
		return fmt.Errorf("the bucket %s was deleted and made anew", strconv.Quote(l.b.opt.Bucket))
	}
	l.k = k
	expected := l.b.guess(k.subject("k", l.lock))
	if w != nil {
		expected, err = l.look(ctx, w)
	}
	for ; ; expected, err = l.look(ctx, w) {
		if err == nil {
			err = l.take(ctx, expected)
		}
		if !errors.Is(err, errConflict) {
			return err
		}
	}
}

// take takes the lock if its last message has this number.
func (l *lease) take(ctx context.Context, expected uint64) error {
	start := time.Now()
	seq, err := l.b.put(ctx, l.k, l.k.subject("k", l.lock), expected, l.ttl, record{Owner: l.owner})
	switch {
	case err == nil:
		l.granted(seq, start)
	case !noEffect(err): // it may have taken effect, or may yet
		k, owner := l.k, l.owner
		l.b.calls.Undo(start.Add(2*l.ttl), func(call *base.Call) error {
			return l.b.free(call, k, l.lock, func(r record) bool { return r.Owner == owner || r.seq == expected })
		})
		l.owner += again // so that it leaves the next attempt alone
	}
	return err
}

// again is the end of the owner of an attempt after one that is in doubt.
const again = "/again"

// free frees a lock for its first waiter as long as its last message is one of those. That has another
// number than an attempt expects, which then does nothing should it arrive later.
func (b *Backend) free(ctx context.Context, k *bucket, lock string, these func(record) bool) error {
	for {
		if b.gone(ctx, k) {
			return nil
		}
		r, err := b.agreed(ctx, k, lock)
		if err != nil || !these(r) {
			return err
		}
		next, _, err := b.first(ctx, k, lock, 1)
		if err == nil {
			_, err = b.put(ctx, k, k.subject("k", lock), r.seq, markerTTL, record{Next: next})
		}
		if !errors.Is(err, errConflict) {
			return err
		}
	}
}

// look returns the number of the last message of a lock that is free for this caller, or an error
// that it is not.
func (l *lease) look(ctx context.Context, w *waiter) (uint64, error) {
	r, err := l.b.last(ctx, l.k, l.lock)
	if err == nil {
		err = l.refusal(ctx, w, r)
	}
	// A leader that was cut off answers from old data. A waiter heard from a majority before.
	if w == nil && l.k.replicas > 1 && errors.Is(err, driver.ErrHeld) {
		err = cmp.Or(l.b.confirm(ctx, l.k, l.lock, r.seq), err)
	}
	return r.seq, err
}

// refusal returns nil if the lock with this last record is free for this caller.
func (l *lease) refusal(ctx context.Context, w *waiter, r record) error {
	switch {
	case r.Owner != "":
		return &driver.HeldError{Holder: r.Owner, RetryAfter: r.left(l.k)}
	case w == nil && r.Next == "" && !r.expired, w != nil && r.Next == w.id:
		return nil
	}
	first := r.Next
	if first == "" {
		var err error
		if first, _, err = l.b.first(ctx, l.k, l.lock, 1); err != nil {
			return err
		}
	}
	kept := r.keptFor(l.k)
	switch {
	case first == "" || w != nil && first == w.id:
	case kept > 0:
		return &driver.HeldError{ReservedForWaiter: true, RetryAfter: kept}
	default: // it did not come
		l.b.skip(l.k, l.lock, first)
	}
	return nil
}

// first returns the first waiter of a lock whose place has this number or a larger one.
func (b *Backend) first(ctx context.Context, k *bucket, lock string, from uint64) (id string, seq uint64, err error) {
	root := k.subject("w", lock) + "."
	subject, r, err := b.get(ctx, k, root+">", from)
	return strings.TrimPrefix(subject, root), r.seq, err
}

// skip removes a waiter that did not come, with all of its process.
func (b *Backend) skip(k *bucket, lock, id string) {
	process, _, _ := strings.Cut(id, ".")
	if strings.ContainsAny(id, "*> \t\r\n") || process == "" {
		return
	}
	subjects := k.subject("w", lock) + "." + process + ".>"
	if process == b.id || process == id { // this process lives; another program's has one name
		subjects = k.subject("w", lock) + "." + id
	}
	b.calls.Undo(time.Now().Add(entryTTL), func(call *base.Call) error { return b.purge(call, k, subjects) })
}

// A waiter waits for a lock.
type waiter struct {
	id    string             // the end of its subject
	check chan time.Duration // after how long to look; the newest
}

// hear looks at what is told of the lock.
func (w *waiter) hear(r record) {
	d := reserve + rand.N(reserve/4)
	switch {
	case r.Owner != "":
		d = min(r.ttl+time.Second, seldomLook)
	case r.Next == "" || r.Next == w.id:
		d = 0
	}
	select { // only the subscription's goroutine sends
	case <-w.check:
	default:
	}
	w.check <- d
}

// wait takes a place in the queue, and makes an attempt whenever it may be its turn.
func (l *lease) wait(call *base.Call, last *driver.HeldError) error {
	b, k, mine := l.b, l.k, l.owner
	w := &waiter{id: b.id + "." + nuid.Next(), check: make(chan time.Duration, 1)}
	place := k.subject("w", l.lock) + "." + w.id
	news, err := k.nc.Subscribe("$DLOCK."+k.root+"k."+l.lock, func(m *nats.Msg) { w.hear(parse(m.Header, m.Data)) })
	if err != nil {
		return b.explain(err)
	}
	defer func() {
		_ = news.Unsubscribe() // the connection may have ended
		b.calls.Undo(time.Now().Add(entryTTL), func(call *base.Call) error {
			err := b.purge(call, k, place)
			if err == nil && l.place == "" { // it got no lock
				err = b.free(call, k, l.lock, func(r record) bool { return r.Owner == "" && r.Next == w.id })
			}
			return err
		})
	}()
	look := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for patience, queued := firstLook, false; ; {
		select {
		case d := <-w.check:
			timer.Reset(min(d, time.Until(look))) // news may come all the time
			continue
		case <-call.Done():
			return base.Waited(call.Over(), last)
		case <-timer.C:
		}
		if !queued || patience == seldomLook { // somebody may have taken it for dead
			queued = l.queue(call, place) == nil
		}
		err := l.attempt(call, w)
		var held *driver.HeldError
		switch {
		case err == nil:
			l.place = w.id
			return nil
		case errors.As(err, &held):
			if held.Holder != mine && !strings.HasPrefix(held.Holder, mine+again) { // by an attempt without an answer
				last = held
			}
		case errors.Is(err, driver.ErrRefused), b.gone(call, k): // nothing more is told of this bucket
			return err
		}
		next := patience
		if patience = min(2*patience, seldomLook); held != nil && held.ReservedForWaiter {
			next = held.RetryAfter
		}
		next += rand.N(next/8 + time.Millisecond)
		look = time.Now().Add(next)
		timer.Reset(next)
	}
}

// queue takes a place in the queue, unless it is there.
func (l *lease) queue(ctx context.Context, place string) error {
	ctx, cancel := context.WithTimeout(ctx, l.b.opt.CallTimeout)
	defer cancel()
	_, err := l.b.put(ctx, l.k, place, 0, entryTTL, record{Owner: l.owner})
	if errors.Is(err, errConflict) {
		return nil
	}
	return err
}

// A lease is one acquisition. Only one attempt, renewal or release of it goes on at a time.
type lease struct {
	b           *Backend
	k           *bucket
	lock, owner string // lock is the name of the key
	ttl         time.Duration
	grant       driver.Grant
	seq         uint64 // of the message that has the lock
	place       string // that it had in the queue, which may still be there
}

// mostFreed is how many locks a backend remembers that it has freed: it takes one of them again
// without looking.
const mostFreed = 10000

// granted notes that the lock was taken by this message.
func (l *lease) granted(seq uint64, start time.Time) {
	l.seq = seq
	l.grant = driver.Grant{Fence: l.k.base + seq, Expires: driver.Expires(start, l.ttl)}
}

// guess returns the likely number of a lock's last message, if the lock is free.
func (b *Backend) guess(subject string) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	seq := b.freed[subject]
	delete(b.freed, subject)
	return seq
}

// remember notes the number of the message that freed a lock for anybody.
func (b *Backend) remember(subject string, seq uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.freed) >= mostFreed {
		clear(b.freed)
	}
	b.freed[subject] = seq
}

// change replaces the message that has the lock, if this lease still has it.
func (l *lease) change(ctx context.Context, ttl time.Duration, r record) (uint64, error) {
	for {
		seq, err := l.b.put(ctx, l.k, l.k.subject("k", l.lock), l.seq, ttl, r)
		if errors.Is(err, errUnsent) && l.b.gone(ctx, l.k) {
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
	seq, err := l.change(call, r.TTL, record{Owner: l.owner, Token: l.grant.Fence})
	if err != nil {
		return l.grant, err
	}
	l.seq = seq
	l.grant.Expires = driver.Expires(start, r.TTL)
	return l.grant, nil
}

// release frees the lock, and keeps it for the first waiter for a moment if there is one.
func (l *lease) release(call *base.Call) error {
	next, seq, err := l.b.first(call, l.k, l.lock, 1)
	if err == nil && next != "" && next == l.place {
		next, _, err = l.b.first(call, l.k, l.lock, seq+1)
	}
	if err != nil {
		return err
	}
	seq, err = l.change(call, markerTTL, record{Next: next})
	if err == nil && next == "" {
		l.b.remember(l.k.subject("k", l.lock), seq)
	}
	return err
}
