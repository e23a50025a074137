package sqltable

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// undoLater frees the lock that an attempt may have taken, at once and until its statement can no
// longer arrive: if it was sent once, until it is undone. If it takes effect meanwhile, the lock ends by
// itself at until.
func (b *Backend) undoLater(until time.Time, x claim) {
	b.calls.Undo(until, func(call *base.Call) error {
		c := b.newCall(call)
		c.slots = b.undoing
		r, err := c.look(x.name) // to learn the clock
		if err != nil {
			return err
		}
		n := int64(1)
		if !x.shares {
			n, err = c.exec(b.sql.undo, x.name, x.owner)
		} else if err = c.part(x.name, x.owner, 0); errors.Is(err, driver.ErrLost) {
			n, err = 0, nil
		}
		if err == nil && (n == 0 || x.again) && r.now <= x.latest {
			return base.ErrUnsettled
		}
		return err
	})
}

const (
	// cleanInterval is the time between two deletions of old rows, each by one of all clients.
	cleanInterval = time.Minute
	// keptFree is how long the row of a free key stays. Taking a key with a row is one
	// statement, without a row three.
	keptFree = 2 * time.Minute
	// cleanBatch is how many rows one statement deletes, and cleanMost how many one clean-up
	// deletes.
	cleanBatch = 100
	cleanMost  = 5000
)

// cleanUp begins a clean-up in the background if none began in the last interval.
func (b *Backend) cleanUp() {
	b.mu.Lock()
	idle := time.Since(b.cleaned) >= cleanInterval
	if idle {
		b.cleaned = time.Now()
	}
	b.mu.Unlock()
	if idle {
		b.calls.Go(func(ctx context.Context) {
			_ = b.calls.Do(ctx, 10*b.opt.CallTimeout, func(call *base.Call) error { return b.newCall(call).clean(cleanInterval, keptFree) }) // another try follows
		})
	}
}

// clean deletes the rows of keys that have been free for long, if no other client does at this
// time. Their tokens must never be given again, even if the clock falls: so clean first raises
// the mark, above which every new row begins, to the largest of them. A statement that makes a
// row locks the mark until its end, so no such statement has read an older mark.
func (c *call) clean(interval, free time.Duration) error {
	s := &c.b.sql
	if n, err := c.exec(s.due, []byte(layout), micros(interval)); n == 0 || err != nil {
		return err
	}
	for range cleanMost / cleanBatch {
		var names []any
		highest := int64(0)
		err := c.query(s.old, []any{micros(free), int64(cleanBatch)}, func(r *sql.Rows) error {
			var name []byte
			var fence int64
			err := r.Scan(&name, &fence)
			if err == nil {
				name, err = c.b.dialect.decode(name)
			}
			names, highest = append(names, name), max(highest, fence)
			return err
		})
		if err != nil || len(names) == 0 {
			return err
		}
		if _, err := c.exec(s.raise, highest); err != nil {
			return err
		}
		if _, err := c.exec(c.b.removal(len(names)), append([]any{micros(free), highest}, names...)...); err != nil {
			return err
		}
		if len(names) < cleanBatch {
			return nil
		}
	}
	return nil
}

// removal returns the statement that deletes n rows.
func (b *Backend) removal(n int) string {
	marks := make([]string, n)
	for i := range marks {
		marks[i] = b.dialect.placeholder(i + 3)
	}
	return strings.Replace(b.sql.remove, "(NAMES)", "("+strings.Join(marks, ", ")+")", 1)
}
