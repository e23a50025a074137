package sqltable

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A call has the statements of one call of the user, and their deadline.
type call struct {
	b        *Backend
	outer    context.Context
	ctx      context.Context
	cancel   func()
	deadline time.Time
	repeated bool // the last statement may have taken effect before it was sent again
}

func (b *Backend) newCall(ctx context.Context, patience time.Duration) *call {
	c := &call{b: b, outer: ctx, deadline: time.Now().Add(patience)}
	if d, ok := ctx.Deadline(); ok && d.Before(c.deadline) {
		c.deadline = d
	}
	inner, cancel := context.WithDeadline(ctx, c.deadline)
	stop := context.AfterFunc(b.ctx, cancel)
	c.ctx, c.cancel = inner, func() { stop(); cancel() }
	return c
}

func (c *call) end() { c.cancel() }

// over is the error of a call whose time is over.
func (c *call) over() error {
	end, bounded := c.outer.Deadline()
	switch {
	case c.ctx.Err() == nil:
		return nil
	case c.outer.Err() != nil:
		return fmt.Errorf("%s: %w", c.b.info.Name, c.outer.Err())
	case c.b.ctx.Err() != nil:
		return driver.ErrClosed
	case bounded && !c.deadline.Before(end): // two timers have the same deadline, and ours fired first
		return fmt.Errorf("%s: %w", c.b.info.Name, context.DeadlineExceeded)
	}
	return fmt.Errorf("%s: %w", c.b.info.Name, errTimeout)
}

// do runs f on a connection, and again while its error says that it did nothing and may succeed
// soon: a deadlock, a serialization failure, a busy SQLite. Any other error is translated.
//
// database/sql itself repeats what fails with driver.ErrBadConn, which is to mean that nothing
// was sent. Not all clients keep to that (pgx over the simple protocol does not), so it is
// repeated here, where repeated then says that f may have taken effect before.
func (c *call) do(f func(ctx context.Context, conn *sql.Conn) error) error {
	c.repeated = false
	bad := 0
	for pause := time.Millisecond; ; pause = min(2*pause, 16*time.Millisecond) {
		conn, err := c.b.db.Conn(c.ctx)
		if err == nil {
			err = f(c.ctx, conn)
			_ = conn.Close() // gives it back
			if err == nil {
				return nil
			}
			if errors.Is(err, sqldriver.ErrBadConn) && bad < 3 {
				bad++
				c.repeated = true
				continue
			}
		}
		v := c.b.dialect.verdictOf(err)
		if v.kind == again && c.ctx.Err() == nil {
			t := time.NewTimer(pause/2 + rand.N(pause))
			select {
			case <-t.C:
				continue
			case <-c.ctx.Done():
				t.Stop()
			}
		}
		return c.translate(v, err)
	}
}

// fence runs a statement that takes a lock, and returns its token, if it took one.
func (c *call) fence(text string, args ...any) (fence int64, ok bool, err error) {
	q, rest := c.b.dialect.bind(text, args)
	err = c.do(func(ctx context.Context, conn *sql.Conn) error {
		if c.b.dialect == MySQL {
			r, err := conn.ExecContext(ctx, q, rest...)
			switch {
			case err != nil && c.b.dialect.verdictOf(err).kind == duplicate:
				return nil
			case err != nil:
				return err
			}
			// The number of rows is of no use: it also counts those that were found and not
			// changed, if the client is set so. The token comes from LAST_INSERT_ID.
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
	err = c.do(func(ctx context.Context, conn *sql.Conn) error {
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
		defer rows.Close() //nolint:errcheck // Err tells it
		for rows.Next() {
			if err := scan(rows); err != nil {
				return err
			}
		}
		return rows.Err()
	})
}

// A row is a key as the server has it.
type row struct {
	name             string // in lists
	exists           bool
	owner            string
	fence            uint64
	now              int64 // by the server's clock, in microseconds since 1970, as the others
	granted, expires int64
}

// held reports whether somebody has the key.
func (r *row) held() bool { return r.exists && r.owner != "" && r.expires > r.now }

func (r *row) heldError() error {
	return &driver.HeldError{
		Holder: r.owner, RetryAfter: time.Duration(r.expires-r.now) * time.Microsecond,
		Since: time.UnixMicro(r.granted), Clock: time.UnixMicro(r.now),
	}
}

// look asks for a key's row.
func (c *call) look(name []byte) (r row, err error) {
	var owner []byte
	var fence, granted, expires sql.NullInt64
	var sent time.Time
	q, args := c.b.dialect.bind(c.b.sql.look, []any{name})
	err = c.do(func(ctx context.Context, conn *sql.Conn) error {
		sent = time.Now()
		return conn.QueryRowContext(ctx, q, args...).Scan(&r.now, &owner, &fence, &granted, &expires)
	})
	if err != nil {
		return r, err
	}
	c.b.clock.learn(r.now, sent)
	r.exists, r.owner, r.fence = fence.Valid, string(owner), uint64(max(0, fence.Int64))
	r.granted, r.expires = granted.Int64, expires.Int64
	return r, nil
}

// notAfter is the call's deadline by the server's clock.
func (c *call) notAfter() int64 { return c.b.clock.at(c.deadline) }

// micros is a duration in microseconds, rounded up.
func micros(d time.Duration) int64 { return int64((d + time.Microsecond - 1) / time.Microsecond) }

// A clock knows the server's, in relation to this process' monotonic one.
type clock struct {
	base time.Time // an instant of this process

	mu    sync.Mutex
	known bool
	ahead int64 // the most that the server's clock may say at base, in microseconds
}

// learn notes what the server's clock said to a question that was sent at this instant. Until
// the answer the clock went on, so it says no more later on.
func (k *clock) learn(now int64, sent time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.known, k.ahead = true, now-sent.Sub(k.base).Microseconds()
}

// at is the most that the server's clock says at an instant.
func (k *clock) at(t time.Time) int64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.known {
		return math.MaxInt64
	}
	return k.ahead + t.Sub(k.base).Microseconds() + 1
}
