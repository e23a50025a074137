package sqltable

import (
	"errors"
	"fmt"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A lease is one row with one owner and one token, or one reader in a row.
type lease struct {
	*base.Lease
	claim
	b     *Backend
	fence int64
}

// renew extends the lease by one statement, again if that changed no row and the lease is not lost.
func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	c, extend := l.b.newCall(call), l.extend
	if l.shares {
		extend = l.extendReader
	}
	for {
		if err := c.Over(); err != nil {
			return driver.Grant{}, err
		}
		if err := c.greet(); err != nil {
			return driver.Grant{}, err
		}
		start := time.Now()
		done, err := extend(c, max(r.TTL, r.Keep))
		if err != nil {
			return driver.Grant{}, err
		}
		if done {
			g := l.Grant()
			if r.TTL > 0 {
				g.Expires = driver.Expires(start, r.TTL)
			}
			return g, nil
		}
	}
}

// extend reads the row if its statement changed none: the lease may be lost; the estimate of the
// server's clock may be wrong; or, on MySQL, the row may have the new values already.
func (l *lease) extend(c *call, ttl time.Duration) (done bool, err error) {
	n, err := c.exec(l.b.sql.renew, l.name, l.owner, l.fence, micros(ttl), c.notAfter())
	if n > 0 || err != nil {
		return err == nil, err
	}
	row, err := c.look(l.name)
	if err == nil && (!row.held() || row.owner != string(l.owner) || row.fence != uint64(l.fence)) {
		err = driver.ErrLost
	}
	return false, err
}

func (l *lease) extendReader(c *call, ttl time.Duration) (done bool, err error) {
	row, err := c.look(l.name)
	if err != nil {
		return false, err
	}
	old := row.reader(l.owner, l.fence)
	if old == nil {
		return false, driver.ErrLost
	}
	end := row.now + micros(ttl)
	text := fmt.Appendf(nil, "%s %d %d %d|", old.owner, old.since, end, old.fence)
	n, err := c.exec(l.b.sql.edit, l.name, []byte(old.text), text, end, c.notAfter(), old.end)
	if n > 0 && err == nil && end < old.end {
		_, _ = c.settleRest(l.name)
	}
	return n > 0, err
}

// release frees the row, or takes the reader away, if this lease still has it. It also undoes a
// statement of the attempt that arrives only after the release.
func (l *lease) release(call *base.Call) error {
	c := l.b.newCall(call)
	var err error
	if l.shares {
		err = c.part(l.name, l.owner, l.fence)
	} else {
		err = l.free(c)
	}
	if l.again && (err == nil || errors.Is(err, driver.ErrLost)) {
		l.b.undoLater(l.Grant().Expires.Add(time.Second), l.claim)
	}
	return err
}

func (l *lease) free(c *call) error {
	n, err := c.exec(l.b.sql.release, l.name, l.owner, l.fence)
	sure := !c.repeated
	if err != nil && !nothingHappened(err) && c.Over() == nil { // perhaps only an old connection broke
		sure = false // the first statement may have taken effect
		n, err = c.exec(l.b.sql.release, l.name, l.owner, l.fence)
	}
	if err == nil && n == 0 && sure {
		err = driver.ErrLost
	}
	return err
}
