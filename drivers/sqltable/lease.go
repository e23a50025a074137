package sqltable

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// lease is one row with one owner and one token.
type lease struct {
	b           *Backend
	name, owner []byte
	fence       int64
	settled     int64 // until then, by the server's clock, another statement of the attempt may arrive; zero: none can

	mu       sync.Mutex
	grant    driver.Grant
	released bool
}

// Grant returns the grant as of the last success.
func (l *lease) Grant() driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.grant
}

func (l *lease) isReleased() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.released
}

// Renew extends the lease by one statement. If that changed no row, Renew reads the row: the
// lease may be lost; the estimate of the server's clock may be wrong; or, on MySQL, the row may
// have the new values already.
func (l *lease) Renew(ctx context.Context, r *driver.Renewal) (driver.Grant, error) {
	b := l.b
	if err := b.info.CheckRenewal(r); err != nil {
		return driver.Grant{}, err
	}
	end, err := b.begin()
	if err != nil {
		return driver.Grant{}, err
	}
	defer end()
	if l.isReleased() {
		return driver.Grant{}, driver.ErrLost
	}
	c := b.newCall(ctx, b.patience(max(r.TTL, r.Keep)))
	defer c.end()
	for {
		if err := c.over(); err != nil {
			return driver.Grant{}, err
		}
		if err := c.greet(); err != nil {
			return driver.Grant{}, err
		}
		start := time.Now()
		n, err := c.exec(b.sql.renew, l.name, l.owner, l.fence, micros(max(r.TTL, r.Keep)), c.notAfter())
		if err != nil {
			return driver.Grant{}, err
		}
		if n > 0 {
			return l.renewed(start, r.TTL), nil
		}
		row, err := c.look(l.name)
		if err != nil {
			return driver.Grant{}, err
		}
		if !row.held() || row.owner != string(l.owner) || row.fence != uint64(l.fence) {
			return driver.Grant{}, driver.ErrLost
		}
	}
}

func (l *lease) renewed(start time.Time, ttl time.Duration) driver.Grant {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := driver.Expires(start, ttl); ttl > 0 {
		l.grant.Expires = e
	}
	return l.grant
}

// Release frees the row, if this lease still has it. If the server cannot be reached, the
// backend tries again in the background until the TTL is over. It also undoes a statement of the
// attempt that arrives only after the release.
func (l *lease) Release(ctx context.Context) error {
	b := l.b
	end, err := b.begin()
	if err != nil {
		return err
	}
	defer end()
	if l.isReleased() {
		return nil
	}
	c := b.newCall(context.WithoutCancel(ctx), b.opt.CallTimeout)
	defer c.end()
	n, err := c.exec(b.sql.release, l.name, l.owner, l.fence)
	sure := !c.repeated
	if err != nil && !nothingHappened(err) && c.over() == nil { // perhaps only an old connection broke
		sure = false // the first statement may have taken effect
		n, err = c.exec(b.sql.release, l.name, l.owner, l.fence)
	}
	if err != nil || l.settled > 0 {
		b.undoLater(pendingUndo{name: l.name, owner: l.owner, settled: l.settled, until: l.Grant().Expires.Add(time.Second)})
	}
	if err != nil {
		if errors.Is(err, driver.ErrClosed) {
			return err
		}
		return fmt.Errorf("%w (the lock stays until its TTL, unless it can be released meanwhile)", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.released = true
	if n == 0 && sure {
		return driver.ErrLost
	}
	return nil
}
