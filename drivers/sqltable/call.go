package sqltable

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// A call is one call: its statements and their deadline.
type call struct {
	*base.Call
	b        *Backend
	asked    bool          // the last statement had a connection: it may have reached the server
	slots    chan struct{} // bounds its statements and others
	repeated bool          // the last statement was repeated, and the first try may have taken effect
}

func (b *Backend) newCall(c *base.Call) *call { return &call{Call: c, b: b, slots: b.others} }

// do runs f on a connection. It repeats f while the error says that it had no effect and may
// succeed soon: a deadlock, a serialization failure, a busy SQLite. It translates any other
// error.
//
// database/sql itself would repeat a call that fails with driver.ErrBadConn, which should mean
// that nothing was sent. Not all clients keep to that (pgx with the simple protocol does not),
// so do repeats it here, and repeated then says that f may have taken effect before.
func (c *call) do(f func(ctx context.Context, conn *sql.Conn) error) error {
	c.asked, c.repeated = false, false
	bad := 0
	for pause := time.Millisecond; ; pause = min(2*pause, 16*time.Millisecond) {
		err := c.try(f)
		if err == nil {
			return nil
		}
		if errors.Is(err, sqldriver.ErrBadConn) && bad < 3 {
			bad++
			c.repeated = c.asked
			continue
		}
		kind, reason := c.b.dialect.verdictOf(err)
		if kind == again && base.Pause(c, pause/2+rand.N(pause)) {
			continue
		}
		return c.translate(kind, reason, err)
	}
}

// try runs f on a connection. It takes a slot, and so bounds the statements that the server has to
// do, those included that nobody waits for any more.
func (c *call) try(f func(ctx context.Context, conn *sql.Conn) error) (err error) {
	asked := false
	select {
	case c.slots <- struct{}{}:
	case <-c.Done():
		return c.Err()
	}
	defer func() { c.leaveSlot(asked && err != nil && c.Err() != nil) }()
	conn, err := c.b.db.Conn(c)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it gives the connection back
	asked, c.asked = true, true
	defer func() {
		if r := recover(); r != nil { // clients may panic if the server sends nonsense
			err = fmt.Errorf("the client cannot read the server's answer: %v", r)
			_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // closes the connection
		}
	}()
	return f(c, conn)
}

// leaveSlot frees the slot of a statement. If its caller abandoned it, its connection is closed, but
// the server does not notice that while it waits for a row. The slot is then freed when that wait
// is certainly over.
func (c *call) leaveSlot(abandoned bool) {
	if !abandoned || c.b.dialect == SQLite {
		<-c.slots
		return
	}
	time.AfterFunc(time.Duration(c.b.rowWait.Load()), func() { <-c.slots })
}

// change is do for a statement that may change a row. If an earlier try may have taken effect, the
// refusal of a later one is no verdict.
func (c *call) change(f func(ctx context.Context, conn *sql.Conn) error) error {
	err := c.do(f)
	if refusal := (*driver.RefusedError)(nil); c.repeated && errors.As(err, &refusal) {
		why := strings.TrimPrefix(refusal.Reason, c.b.info.Name+": ")
		return c.Failed(fmt.Errorf("%s: %w; before, the connection broke under the same statement, which may have taken effect", why, refusal.Err))
	}
	return err
}

// ensure runs a statement that makes something if it is missing: repeats do not matter.
func (c *call) ensure(text string, args ...any) error {
	q, rest := c.b.dialect.bind(text, args)
	return c.do(func(ctx context.Context, conn *sql.Conn) error {
		_, err := conn.ExecContext(ctx, q, rest...)
		return err
	})
}

// fence runs a statement that takes a lock, and returns its token, if it took one.
func (c *call) fence(text string, args ...any) (fence int64, ok bool, err error) {
	q, rest := c.b.dialect.bind(text, args)
	err = c.change(func(ctx context.Context, conn *sql.Conn) error {
		if c.b.dialect == MySQL {
			r, err := conn.ExecContext(ctx, q, rest...)
			if err != nil {
				if kind, _ := c.b.dialect.verdictOf(err); kind == duplicate {
					return nil
				}
				return err
			}
			// The number of rows proves nothing: with some settings of the client it also
			// counts rows that were found and not changed. The token comes from LAST_INSERT_ID.
			fence, err = r.LastInsertId()
			ok = fence > 0
			return err
		}
		var now int64
		sent := time.Now()
		err := conn.QueryRowContext(ctx, q, rest...).Scan(&fence, &now)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if ok = err == nil; ok {
			c.b.clock.learn(now, sent)
		}
		return err
	})
	return fence, ok && err == nil, err
}

// exec runs a statement and returns how many rows it changed.
func (c *call) exec(text string, args ...any) (n int64, err error) {
	q, rest := c.b.dialect.bind(text, args)
	err = c.change(func(ctx context.Context, conn *sql.Conn) error {
		r, err := conn.ExecContext(ctx, q, rest...)
		if err != nil {
			return err
		}
		n, err = r.RowsAffected()
		return err
	})
	return n, err
}

// query runs a query and calls scan for each row.
func (c *call) query(text string, args []any, scan func(*sql.Rows) error) error {
	q, rest := c.b.dialect.bind(text, args)
	return c.do(func(ctx context.Context, conn *sql.Conn) error {
		rows, err := conn.QueryContext(ctx, q, rest...)
		if err != nil {
			return err
		}
		defer rows.Close() //nolint:errcheck // Err returns it
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// A row is the stored state of a key.
type row struct {
	name             string
	exists           bool
	owner            string
	fence            uint64
	now              int64 // by the server's clock, in microseconds since 1970, as the others
	granted, expires int64
	column           string   // of the readers, if they are the owner
	readers          []reader // those that have the key
}

// held reports whether the key is held.
func (r *row) held() bool { return r.exists && r.owner != "" && r.expires > r.now }

// left returns for how long the key is held. No lease lasts longer than maxTTL, and the
// difference of the stored numbers may overflow.
func (r *row) left() time.Duration {
	return time.Duration(min(r.expires-r.now, micros(maxTTL))) * time.Microsecond
}

func (r *row) heldError() error {
	owner, _ := base.Unranged(r.owner)
	err := &driver.HeldError{
		Holder: owner, RetryAfter: r.left(),
		Since: time.UnixMicro(r.granted), Clock: time.UnixMicro(r.now), ReservedForWaiter: r.kept(),
	}
	if r.shared() || r.kept() {
		err.Holder, err.Since = "", time.Time{}
	}
	if r.shared() {
		err.Mode = driver.Shared
	}
	return err
}

// look asks for a key's row.
func (c *call) look(name []byte) (r row, err error) {
	var sent time.Time
	q, args := c.b.dialect.bind(c.b.sql.look, []any{name})
	err = c.do(func(ctx context.Context, conn *sql.Conn) (err error) {
		sent = time.Now()
		r, err = c.b.dialect.row(conn.QueryRowContext(ctx, q, args...).Scan)
		return err
	})
	if err == nil {
		c.b.clock.learn(r.now, sent)
	}
	return r, err
}

// row reads what look and list select.
func (d Dialect) row(scan func(...any) error) (r row, err error) {
	var name, owner, readers []byte
	var fence, granted, expires sql.NullInt64
	if err := scan(&r.now, &name, &owner, &readers, &fence, &granted, &expires); err != nil {
		return r, err
	}
	for sent, to := range map[*[]byte]*string{&name: &r.name, &owner: &r.owner, &readers: &r.column} {
		b, err := d.decode(*sent)
		if err != nil {
			return r, err
		}
		*to = string(b)
	}
	r.exists, r.fence, r.granted, r.expires = fence.Valid, uint64(max(0, fence.Int64)), granted.Int64, expires.Int64
	if r.shared() {
		r.readers = readersIn(r.column, r.now)
	}
	return r, nil
}

// notAfter returns the call's deadline by the server's clock.
func (c *call) notAfter() int64 {
	deadline, _ := c.Deadline()
	return c.b.clock.at(deadline)
}

// micros returns a duration in microseconds, rounded up.
func micros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// A clock estimates the server's clock from this process's monotonic clock.
type clock struct {
	base time.Time // an instant of this process

	ahead atomic.Int64 // the highest possible reading of the server's clock at base, in microseconds; zero: unknown
}

// learn stores a reading of the server's clock, from the answer to a question that was sent at
// this instant. The server read its clock after that instant, so the estimate is an upper
// bound.
func (k *clock) learn(now int64, sent time.Time) {
	k.ahead.Store(now - sent.Sub(k.base).Microseconds())
}

// at returns the highest possible reading of the server's clock at an instant.
func (k *clock) at(t time.Time) int64 {
	ahead := k.ahead.Load()
	if ahead == 0 {
		return math.MaxInt64
	}
	return ahead + t.Sub(k.base).Microseconds() + 1
}
