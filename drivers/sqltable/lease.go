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

// Renew extends the lease by one statement. Where that changed no row, the row is looked at: it
// may be another's or over, which is ErrLost; the server's clock may be another than it was
// thought to be; or, on MySQL, what would be stored is what is there.
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

// Release frees the row, if it is this lease's still. If the server cannot be reached it is tried
// again in the background until the TTL is over.
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
	if err != nil && !nothingHappened(err) && c.over() == nil { // the connection may just have been an old one
		sure = false // the first one may have taken effect
		n, err = c.exec(b.sql.release, l.name, l.owner, l.fence)
	}
	if err != nil {
		b.doubt(l.name, l.owner, 0, l.Grant().Expires.Add(time.Second))
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
