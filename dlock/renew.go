package dlock

import (
	"context"
	"errors"
	"log/slog"
	mathrand "math/rand/v2"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
)

// schedule tells the scheduler when the next step is due.
func (l *Lease) schedule() {
	var next boot.Instant
	earliest := func(t boot.Instant) {
		if t != 0 && (next == 0 || t < next) {
			next = t
		}
	}
	if l.kept {
		earliest(l.keep)
	} else {
		earliest(l.endsAt())
		earliest(l.warnAt)
	}
	if !l.renewing {
		earliest(l.renewAt)
	}
	if next != 0 {
		l.c.sched.put(l, next)
	}
}

// step starts the actions that are due. It does not block.
func (l *Lease) step(now boot.Instant) {
	l.mu.Lock()
	var over ending
	switch end := l.endsAt(); {
	case l.kept && now >= l.keep:
		l.kept = false
		go l.releaseKept()
	case l.err != nil && !l.kept:
	case !l.kept && end != 0 && now >= end:
		over = l.over(end)
	default:
		if !l.kept {
			l.warn(now)
		}
		if l.renewAt != 0 && now >= l.renewAt && !l.renewing {
			l.renewing = true
			l.c.renewals.start(l, l.failure != nil)
		}
		l.schedule()
	}
	l.mu.Unlock()
	over.run()
}

// recheck brings the next renewal forward to now: see scheduler.recheck.
func (l *Lease) recheck(now boot.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && l.renewAt > now {
		l.renewAt = now
		l.schedule()
	}
}

// warn logs once that the maximum hold is near.
func (l *Lease) warn(now boot.Instant) {
	if l.warnAt == 0 || now < l.warnAt {
		return
	}
	l.warnAt = 0
	l.c.logLine(l.ctx, slog.LevelWarn, "dlock: lease nears its maximum hold (WithMaxHold)",
		slog.String("key", l.key), slog.Uint64("fence", l.fence),
		slog.Duration("held", now.Sub(l.granted)), slog.Duration("left", l.limit.Sub(now)))
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

// renewOnce renews the lease for the scheduler, within d.
func (l *Lease) renewOnce(d time.Duration) {
	l.mu.Lock()
	over := l.err != nil && !l.kept
	l.mu.Unlock()
	if over {
		return
	}
	life, cancel := context.WithTimeout(l.c.life, d)
	defer cancel()
	l.renew(renewalContext{life, l.ctx})

	l.mu.Lock()
	l.renewing = false
	if l.err == nil || l.kept {
		l.schedule()
	}
	l.mu.Unlock()
}

// renewalContext ends with the embedded context, and also has the values of another one.
type renewalContext struct {
	context.Context
	values context.Context
}

func (c renewalContext) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

// renew makes one request.
func (l *Lease) renew(ctx context.Context) {
	c := l.c
	if c.begin() != nil {
		return
	}
	defer c.calls.Done()
	at := c.clock.Now()
	start := time.Now()
	r := l.send(at)
	g, err := l.held.Renew(ctx, r)
	over := l.renewed(g, err, r, at, start)
	took := time.Since(start)
	c.renewals.note(err, took)
	c.tellRenewed(l, g.Votes, err, took)
	over.run()
}

// send counts a renewal and returns it.
func (l *Lease) send(now boot.Instant) *driver.Renewal {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.underWay++
	return l.renewal(now)
}

// renewal returns the next renewal: for the lease's TTL and with the rest of WithMinHold, so
// that the server keeps the lock even if this process ends. After the lease's end it is for the
// rest of WithMinHold alone.
func (l *Lease) renewal(now boot.Instant) *driver.Renewal {
	r := &driver.Renewal{TTL: l.ttl}
	left := l.keep.Sub(now)
	switch {
	case l.keep == 0 || l.c.bySession():
	case l.c.keeps():
		if l.kept {
			r.TTL = 0
			left = max(left, time.Millisecond)
		}
		r.Keep = max(left, 0)
	case l.kept:
		r.TTL = min(max(left, l.c.info.MinTTL), l.ttl)
	}
	return r
}

// renewed handles the outcome of the renewal r. at and start are the instant of sending, by two
// clocks. A renewal confirmed after the lease's end never revives it.
func (l *Lease) renewed(g driver.Grant, err error, r *driver.Renewal, at boot.Instant, start time.Time) ending {
	l.mu.Lock()
	defer l.mu.Unlock()
	over := l.look()
	l.underWay--
	if err != nil && !errors.Is(err, ErrLost) && (l.err == nil || l.kept) {
		l.c.unavailable(l.ctx, l.key, err)
	}
	if l.kept {
		_ = l.keptOn(err, r, at)
		return over
	}
	if l.err != nil {
		return over
	}
	l.failure = err
	switch {
	case err == nil:
		l.c.count.renewed.Add(1)
		if expires := at.Add(g.Expires.Sub(start)); expires > l.expires {
			l.expires = expires
		}
		l.renewAt = l.nextRenewal()
	case errors.Is(err, ErrLost):
		l.c.count.renewalFailed.Add(1)
		return l.finishLocked(lost("%v", err))
	default:
		l.c.count.renewalFailed.Add(1)
		l.retry()
	}
	return over
}

// retry sets the time of the next renewal after one whose outcome is unknown.
func (l *Lease) retry() {
	if l.renewAt != 0 {
		pause := max(l.ttl/20, time.Millisecond)
		l.renewAt = l.c.clock.Now().Add(pause/2 + mathrand.N(pause))
	}
}
