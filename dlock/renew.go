package dlock

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/printable"
)

// step starts what is due. It does not block.
func (l *Lease) step(now boot.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.kept && now >= l.keep:
		if l.c.begin() == nil { // otherwise Close does it
			l.kept = false
			l.c.drop(l)
			go l.releaseKept()
		}
		return
	case !l.kept && l.look(now) != nil:
		return
	case !l.renewing && now >= l.renewAt:
		l.renewing = true
		l.c.renewals.start(l)
	}
	l.schedule()
}

// schedule sets when the next step is due. l.mu is held.
func (l *Lease) schedule() {
	next := l.endsAt()
	if l.kept {
		next = l.keep
	}
	if !l.renewing {
		next = min(next, l.renewAt)
	}
	l.c.move(l, next)
}

// nextRenewal returns when to renew a lease that was granted or renewed now: after a random
// time between a quarter and a third of its TTL, so that leases that were taken together do not
// stay together. For the shortest TTLs, of which drift and margin leave little, it is before
// half of the time to the lease's end. It is a multiple of a fraction of the TTL, so that
// drivers find several renewals to send together.
func (l *Lease) nextRenewal() boot.Instant {
	from := l.expires.Add(driver.Drift(l.ttl) - l.ttl)
	latest := min(l.ttl/3, l.expires.Add(-l.margin).Sub(from)/2)
	at := from.Add(latest - mathrand.N(latest/4+1))
	return max(at-at%boot.Instant(l.ttl/128), from)
}

// renewal returns the next renewal: for the lease's TTL and with the rest of WithMinHold, so
// that the server keeps the lock even if this process ends. After the lease's end it is for the
// rest of WithMinHold alone.
func (l *Lease) renewal(now boot.Instant) *driver.Renewal {
	r := &driver.Renewal{TTL: l.ttl}
	if l.c.keeps() {
		r.Keep = max(l.keep.Sub(now), 0)
		if l.kept {
			r.TTL, r.Keep = 0, max(r.Keep, time.Millisecond)
		}
	}
	return r
}

// renew makes one request, within d.
func (l *Lease) renew(d time.Duration) error {
	c := l.c
	if c.begin() != nil {
		return ErrClosed
	}
	defer c.calls.Done()
	ctx, cancel := context.WithTimeout(l.ctx, d)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	at, start := c.clock.Now(), time.Now()
	l.mu.Lock()
	if l.err != nil && !l.kept {
		err := l.err
		l.mu.Unlock()
		return err
	}
	r := l.renewal(at)
	l.mu.Unlock()
	g, err := l.held.Renew(ctx, r)
	took, now := time.Since(start), c.clock.Fresh()
	c.renewals.note(err, took)

	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewing = false
	left := l.expires.Sub(now)
	if l.look(now) == nil || l.kept { // otherwise it revives nothing
		l.failure = err
		if err == nil {
			c.count.renewed.Add(1)
			l.expires = max(l.expires, at.Add(g.Expires.Sub(start)))
			l.renewAt = l.nextRenewal()
		} else {
			c.count.renewalFailed.Add(1)
			if !errors.Is(err, ErrLost) {
				c.unavailable(l.ctx, l.key, err)
			}
			pause := max(l.ttl/20, time.Millisecond)
			l.renewAt = now.Add(pause/2 + mathrand.N(pause))
		}
		if err == nil && r.TTL == 0 {
			l.renewAt = never // the server keeps the lock until the end of WithMinHold
		}
	}
	c.tellLater(l, Event{Op: "renew", Err: err, Latency: took, Left: max(left, 0), Votes: g.Votes}, err == nil)
	switch {
	case !errors.Is(err, ErrLost):
	case l.kept:
		c.drop(l) // the lock is gone: there is nothing to keep
	case l.err == nil:
		l.finish(lost("%v", err))
	}
	l.schedule()
	return err
}

// renewals runs the renewals that are due, a bounded number at a time, on goroutines that
// exist while there are any.
type renewals struct {
	mu      sync.Mutex
	due     []*Lease // in the order in which they became due
	running int
	usual   time.Duration // how long a renewal takes that succeeds
	failed  int           // how many failed since the last success
	workers sync.WaitGroup
}

const (
	// mostRenewals is how many renewals run at a time: 10,000 leases with a TTL of 10 s, each
	// renewed every 3 s, need half as many if a round trip takes 80 ms.
	mostRenewals = 512
	// A renewal that others wait behind may take leastPatience, or manyTimes the usual time if
	// that is more: a slow backend does not hang.
	leastPatience = 250 * time.Millisecond
	manyTimes     = 10
)

// start renews l, at once or after those that are due before it. It does not block.
func (r *renewals) start(l *Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.due = append(r.due, l)
	if r.running < mostRenewals {
		r.running++
		r.workers.Go(r.work)
	}
}

func (r *renewals) work() {
	for {
		r.mu.Lock()
		if len(r.due) == 0 {
			r.due = nil
			r.running--
			r.mu.Unlock()
			return
		}
		l := r.due[0]
		r.due[0], r.due = nil, r.due[1:]
		d := r.patience(l)
		r.mu.Unlock()
		_ = l.renew(d) // its outcome is in the lease
	}
}

// patience is how long a renewal may take: a third of the TTL, so that one that hangs leaves
// time for another. It is shorter if there are more leases than places and some renewals
// succeed, so that each lease is renewed within a third of its TTL, also while one server of
// several hangs. r.mu is held.
func (r *renewals) patience(l *Lease) time.Duration {
	third, held := l.ttl/3, time.Duration(l.c.count.held.Load())
	if held <= mostRenewals || r.failed > mostRenewals {
		return third
	}
	return min(third, max(leastPatience, manyTimes*r.usual, third/held*mostRenewals))
}

// note records the outcome of a renewal.
func (r *renewals) note(err error, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.failed++
		return
	}
	r.failed = 0
	r.usual += (took - r.usual) / 16
}

// bySession reports whether locks end with the process, whatever their TTL.
func (c *Client) bySession() bool { return c.info.Features.Has(driver.FeatureSession) }

// keeps reports whether the server can keep a lock beyond its lease and its process.
func (c *Client) keeps() bool {
	return c.info.Features.Has(driver.FeatureKeep) && !c.bySession()
}

// keepOn keeps the lock of a lease that was unlocked before its WithMinHold is over: the server is
// told to keep it for the rest, even if this process ends. If the server cannot, the lease is
// renewed. In both cases it is released when that time is over.
func (l *Lease) keepOn() error {
	if !l.c.keeps() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.schedule()
		return nil
	}
	if err := l.renew(l.ttl / 3); errors.Is(err, ErrLost) {
		return err
	}
	return nil // if it failed it is tried again
}

// releaseKept releases a lock at the end of its WithMinHold.
func (l *Lease) releaseKept() {
	defer l.c.calls.Done()
	if err := l.release(false); err != nil && !errors.Is(err, ErrLost) {
		l.c.logLine(l.ctx, slog.LevelWarn, "dlock: release after the minimum hold failed",
			slog.String("key", l.key), slog.Any("err", err))
	}
}

// close ends the lease for Close, and reports whether its lock must be given back.
func (l *Lease) close() bool {
	now := l.c.clock.Fresh()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.look(now) == nil {
		l.kept = l.keep > now
		l.finish(errClientClosed)
		return true
	}
	return l.kept
}

// giveBack releases the lock of a lease that close has ended. If WithMinHold keeps the lock, it is
// left to the server, which ends it; where the server cannot keep it, giveBack waits, and renews it
// meanwhile, as long as it is there.
func (l *Lease) giveBack() error {
	c := l.c
	for {
		l.mu.Lock()
		now := c.clock.Fresh()
		kept, left, r := l.kept && !l.gone(), l.keep.Sub(now), l.renewal(now)
		told, lost := l.renewAt == never && c.keeps(), l.lost
		l.mu.Unlock()
		switch {
		case !kept || left <= 0:
			return l.release(false)
		case told:
			return nil
		case c.keeps():
			if _, err := l.held.Renew(l.ctx, r); err != nil {
				return fmt.Errorf("keep it for another %v: %w", printable.Duration(left), err)
			}
			return nil
		case l.ttl != 0:
			if _, err := l.held.Renew(l.ctx, r); errors.Is(err, ErrLost) {
				return err
			} // if it fails otherwise, the next one tries again
			left = min(left, l.ttl/3)
		}
		select {
		case <-lost:
		case <-time.After(left):
		}
	}
}
