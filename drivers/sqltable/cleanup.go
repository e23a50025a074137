package sqltable

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// A pendingUndo is a failed attempt, or a release, whose effect is unknown, or a released attempt
// of which a statement may still arrive.
type pendingUndo struct {
	name, owner []byte
	settled     int64     // by the server's clock: the server refuses statements that arrive later
	once        bool      // the statement was sent once: when it is undone no other can arrive
	until       time.Time // when the lock has ended by itself
}

// undoQueue has what must be undone: one after the other, by one goroutine while there is any.
type undoQueue struct {
	mu      sync.Mutex
	list    []pendingUndo
	running chan struct{} // closed when the goroutine ends; nil: there is none
}

// await returns when nothing is left to undo, or after d.
func (q *undoQueue) await(most time.Duration) {
	q.mu.Lock()
	running := q.running
	q.mu.Unlock()
	if running == nil {
		return
	}
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-running:
	case <-t.C:
	}
}

// undoLater undoes an attempt in the background: at once, and again when its statement can no
// longer arrive. If that takes effect meanwhile, the lock ends by itself at until.
func (b *Backend) undoLater(x pendingUndo) {
	q := &b.undos
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = append(q.list, x)
	if q.running != nil {
		return
	}
	done := make(chan struct{})
	if b.goroutine(func() { defer close(done); b.settle() }) {
		q.running = done
	}
}

// next returns what is first, or ends the goroutine.
func (q *undoQueue) next() (pendingUndo, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.list) == 0 {
		q.running = nil
		return pendingUndo{}, false
	}
	x := q.list[0]
	q.list = q.list[1:]
	return x, true
}

// settle empties the queue. While the server cannot be reached it tries again after growing
// pauses, until the locks in question have ended by themselves.
func (b *Backend) settle() {
	for pause := 10 * time.Millisecond; ; {
		x, ok := b.undos.next()
		if !ok {
			return
		}
		settled, err := b.undo(x)
		switch {
		case b.ctx.Err() != nil || err != nil && time.Now().After(x.until):
			continue
		case settled:
			pause = 10 * time.Millisecond
			continue
		case err == nil:
			pause = 10 * time.Millisecond
		default:
			pause = min(2*pause, time.Second)
		}
		b.undos.mu.Lock()
		b.undos.list = append(b.undos.list, x)
		b.undos.mu.Unlock()
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-b.ctx.Done():
			t.Stop()
		}
	}
}

// undo frees the lock that an attempt may have taken. settled says that no more is to be done: the
// attempt's statement has taken effect, or could no longer arrive before that.
func (b *Backend) undo(x pendingUndo) (settled bool, err error) {
	c := b.newCall(b.ctx, b.opt.CallTimeout)
	defer c.end()
	r, err := c.look(x.name) // to learn the clock
	if err != nil {
		return false, err
	}
	n, err := c.exec(b.sql.undo, x.name, x.owner)
	return err == nil && (n > 0 && x.once || r.now > x.settled), err
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
		b.goroutine(func() {
			c := b.newCall(b.ctx, 10*b.opt.CallTimeout)
			defer c.end()
			if err := c.clean(cleanInterval, keptFree); err != nil && b.ctx.Err() == nil {
				b.report(driver.Notice{Kind: driver.NoticeDegraded, Node: b.String(), Err: err, Detail: "rows of keys that are no longer used could not be deleted; another try follows"})
			}
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

// Clean deletes the rows of keys that have been free for longer than this, at least two minutes
// by default (free is zero). A backend in use does this by itself, once a minute for all
// clients together.
func (b *Backend) Clean(ctx context.Context, free time.Duration) error {
	end, err := b.begin()
	if err != nil {
		return err
	}
	defer end()
	if free == 0 {
		free = keptFree
	}
	c := b.newCall(ctx, 10*b.opt.CallTimeout)
	defer c.end()
	if err := c.greet(); err != nil {
		return err
	}
	return c.clean(time.Microsecond, free)
}
