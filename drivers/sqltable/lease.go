package sqltable

import (
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// lease is one row with one owner and one token.
type lease struct {
	*base.Lease
	b           *Backend
	name, owner []byte
	fence       int64
	settled     int64 // until then, by the server's clock, another statement of the attempt may arrive; zero: none can
}

// renew extends the lease by one statement. If that changed no row, renew reads the row: the
// lease may be lost; the estimate of the server's clock may be wrong; or, on MySQL, the row may
// have the new values already.
func (l *lease) renew(call *base.Call, r *driver.Renewal) (driver.Grant, error) {
	b, c := l.b, l.b.newCall(call)
	for {
		if err := c.Over(); err != nil {
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
			g := l.Grant()
			if r.TTL > 0 {
				g.Expires = driver.Expires(start, r.TTL)
			}
			return g, nil
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

// release frees the row, if this lease still has it. It also undoes a statement of the attempt that
// arrives only after the release.
func (l *lease) release(call *base.Call) error {
	c := l.b.newCall(call)
	n, err := c.exec(l.b.sql.release, l.name, l.owner, l.fence)
	sure := !c.repeated
	if err != nil && !nothingHappened(err) && c.Over() == nil { // perhaps only an old connection broke
		sure = false // the first statement may have taken effect
		n, err = c.exec(l.b.sql.release, l.name, l.owner, l.fence)
	}
	if err != nil {
		return err
	}
	if l.settled > 0 {
		l.b.undoLater(l.Grant().Expires.Add(time.Second), pendingUndo{name: l.name, owner: l.owner, settled: l.settled})
	}
	if n == 0 && sure {
		return driver.ErrLost
	}
	return nil
}
