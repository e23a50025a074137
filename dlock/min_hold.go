package dlock

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/boot"
	"github.com/redlock-go/redlock/driver/printable"
)

// bySession reports whether locks end with the process, whatever their TTL.
func (c *Client) bySession() bool { return c.info.Features.Has(driver.FeatureSession) }

// keeps reports whether the server can keep a lock beyond its lease and its process.
func (c *Client) keeps() bool {
	return c.info.Features.Has(driver.FeatureKeep) && !c.bySession()
}

// keepOn keeps the lock of a lease that was unlocked before its WithMinHold is over: the
// server keeps it for the rest, even if this process ends, and a timer releases it. If the
// server cannot keep it that long, the lease is renewed until then.
func (l *Lease) keepOn() error {
	c := l.c
	l.mu.Lock()
	l.kept = true
	l.renewAt = 0
	l.mu.Unlock()
	c.mu.Lock()
	c.leases[l] = struct{}{}
	c.mu.Unlock()

	if l.ttl > 0 {
		at := c.clock.Now()
		r := l.send(at)
		_, err := l.held.Renew(l.ctx, r)
		l.mu.Lock()
		l.underWay--
		err = l.keptOn(err, r, at)
		l.mu.Unlock()
		if errors.Is(err, ErrLost) {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.kept {
		l.schedule()
	}
	return nil
}

// keptOn handles the outcome of the renewal r of a kept lock, sent at the instant at. If
// another renewal is still under way it may set a shorter TTL afterwards, so one more follows.
func (l *Lease) keptOn(err error, r *driver.Renewal, at boot.Instant) error {
	switch {
	case errors.Is(err, ErrLost):
		l.kept = false // the lock is gone: there is nothing to keep
		l.c.sched.drop(l)
		l.c.forget(l)
	case err == nil && l.underWay == 0 && !l.c.bySession() && at.Add(max(r.TTL, r.Keep)) >= l.keep:
		l.covered = true
		l.renewAt = 0
	default:
		l.renewAt = at.Add(l.ttl / 3)
		if err != nil {
			l.retry()
		}
	}
	return err
}

// releaseKept releases a lock at the end of its WithMinHold.
func (l *Lease) releaseKept() {
	if l.c.begin() != nil {
		return // Close does it
	}
	defer l.c.calls.Done()
	l.c.forget(l)
	if err := l.release(); err != nil && !errors.Is(err, ErrLost) {
		l.c.logLine(l.ctx, slog.LevelWarn, "dlock: release after the minimum hold failed",
			slog.String("key", l.key), slog.Any("err", err))
	}
}

// close is called by Close for a lock that WithMinHold still keeps. It leaves the lock to the
// server, which ends it; where the server cannot keep the lock long enough, close waits first.
func (l *Lease) close() error {
	c := l.c
	switch {
	case c.bySession():
		l.awaitMinHold(0)
		return l.release()
	case !c.keeps():
		l.awaitMinHold(l.ttl)
	}
	left := l.keep.Sub(c.clock.Fresh())
	l.mu.Lock()
	covered := l.covered
	l.kept = true
	r := l.renewal(c.clock.Now())
	l.mu.Unlock()
	switch {
	case left <= 0:
		return l.release()
	case covered:
		return nil
	}
	if _, err := l.held.Renew(l.ctx, r); err != nil {
		return fmt.Errorf("keep it for another %v: %w", printable.Duration(left), err)
	}
	return nil
}

// awaitMinHold waits until at most rest is left of WithMinHold. It renews the lease meanwhile.
func (l *Lease) awaitMinHold(rest time.Duration) {
	for {
		left := l.keep.Sub(l.c.clock.Fresh()) - rest
		if left <= 0 {
			return
		}
		if l.ttl > 0 {
			left = min(left, l.ttl/3)
			_, _ = l.held.Renew(l.ctx, &driver.Renewal{TTL: l.ttl}) // if it fails, the next one tries again
		}
		time.Sleep(left)
	}
}
