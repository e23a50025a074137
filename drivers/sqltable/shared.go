package sqltable

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// While readers hold a key, the owner in its row is this text, and the row's end is the latest of
// theirs. So every statement for an exclusive lock is the same as without readers. The readers are in a column of their own, which counts only with this
// owner, and granted is the time until which no further reader is let in, because a writer waits.
//
// Each operation remains one statement that commits by itself: no client can die in the middle of a
// transaction and keep the row locked. A statement that adds, renews or takes away one reader works
// on whatever readers there are, and raises the row's end at most. Only settle lowers it, and only
// if the readers are still those that it has seen.
//
// No owner has a '|'.
const readersOwner = "|readers|"

// keptOwner is the owner of a key that the last reader has released while a writer waited. Until the
// row's end only a writer takes it: otherwise the many readers that poll would be first again and
// again.
const keptOwner = "|kept|"

// writerWaits is how long a waiting writer keeps further readers out. It polls every 150 ms or more
// often, and so keeps them out for longer.
const writerWaits = time.Second

// A reader is an entry of the column: "owner since end token|", in which the text of the owner may have
// spaces.
type reader struct {
	text       string
	owner      string
	since, end int64
	fence      int64
}

// readersIn parses the column, without readers whose time is over.
func readersIn(column string, now int64) (all []reader) {
	for text := range strings.SplitAfterSeq(column, "|") {
		f := strings.Split(strings.TrimSuffix(text, "|"), " ")
		if len(f) < 4 {
			continue
		}
		e := reader{text: text, owner: strings.Join(f[:len(f)-3], " ")}
		bad := false
		for i, n := range []*int64{&e.since, &e.end, &e.fence} {
			var err error
			*n, err = strconv.ParseInt(f[len(f)-3+i], 10, 64)
			bad = bad || err != nil
		}
		if !bad && e.end > now {
			all = append(all, e)
		}
	}
	return all
}

// shared reports whether readers have the key.
func (r *row) shared() bool { return r.held() && r.owner == readersOwner }

// kept reports whether the key is kept for a writer.
func (r *row) kept() bool { return r.held() && r.owner == keptOwner }

// reader returns the reader with this owner, and with this token unless it is zero.
func (r *row) reader(owner []byte, fence int64) *reader {
	for i := range r.readers {
		if e := &r.readers[i]; (owner == nil || e.owner == string(owner)) && (fence == 0 || e.fence == fence) {
			return e
		}
	}
	return nil
}

// share is run in the shared mode.
func (a *attempt) share() (driver.Lease, error) {
	if err := a.greet(); err != nil {
		return nil, err
	}
	a.start = time.Now()
	for round := 0; ; round++ {
		r, err := a.settleRest(a.name)
		switch {
		case err != nil:
			return nil, err
		case r.reader(a.owner, 0) != nil: // of a statement that the client repeated
			return a.granted(uint64(r.reader(a.owner, 0).fence)), nil
		case r.held() && (r.owner != readersOwner || r.granted > r.now):
			return nil, r.heldError()
		case r.exists && r.fence >= driver.MaxFence:
			return nil, a.b.tokensEnd()
		case r.exists:
			end := r.now + micros(a.ttl)
			if l, err := a.make(a.b.sql.join, a.name, fmt.Appendf(nil, "%s %d %d ", a.owner, r.now, end), end); l != nil || err != nil {
				return l, err
			}
		default: // make the row of a free key
			if _, _, err := a.fence(a.b.sql.grow, a.name, []byte{}, int64(0), a.notAfter(), a.floor); err != nil {
				return nil, err
			}
			if round > 1 {
				a.b.forget() // the mark is gone, or has another layout
				if err := a.greet(); err != nil {
					return nil, err
				}
			}
		}
		if err := a.Over(); err != nil {
			return nil, err
		}
	}
}

// part takes a key from the reader with this owner, or this token, or returns ErrLost.
func (c *call) part(name, owner []byte, fence int64) error {
	sure := true // false: a statement that takes the reader away may have taken effect
	for {
		r, err := c.look(name)
		if err != nil {
			return err
		}
		e := r.reader(owner, fence)
		switch {
		case e == nil && sure:
			return driver.ErrLost
		case e == nil:
			_, _ = c.settleRest(name)
			return nil
		}
		n, err := c.settle(&r, e)
		if n > 0 && err == nil {
			return nil
		}
		sure = sure && !c.repeated
		if err == nil { // others come and go: take only this one away
			n, err = c.exec(c.b.sql.edit, name, []byte(e.text), []byte{}, int64(0), int64(math.MaxInt64), int64(math.MaxInt64))
			if n > 0 && err == nil {
				_, _ = c.settleRest(name)
				return nil
			}
		}
		sure = sure && !c.repeated && (err == nil || nothingHappened(err))
		if over := c.Over(); over != nil || nothingHappened(err) {
			return cmp.Or(err, over)
		}
	}
}

// settleRest returns a key's row. If readers have the key it first lowers its end to theirs: one of them
// may have gone, or have renewed with a shorter TTL. If it fails, or if others change the readers all the time, the next writer that
// asks does it.
func (c *call) settleRest(name []byte) (r row, err error) {
	for range 3 {
		if r, err = c.look(name); err != nil || !r.unsettled() {
			break
		}
		if _, err = c.settle(&r, nil); err != nil {
			break
		}
	}
	return r, err
}

// unsettled reports whether readers hold the key for longer than the last of them, or entries of
// readers whose time is over are there.
func (r *row) unsettled() bool {
	text, end := join(r.readers, nil)
	return r.shared() && (text != r.column || end != r.expires)
}

// join returns the column for the readers without one of them, and the latest end.
func join(all []reader, without *reader) (column string, end int64) {
	for i := range all {
		if e := &all[i]; e != without {
			column += e.text
			end = max(end, e.end)
		}
	}
	return column, end
}

// settle writes a row that readers have without one of them, and with the end of the last that is
// left, if the row is as it was read.
func (c *call) settle(r *row, without *reader) (int64, error) {
	column, end := join(r.readers, without)
	owner, closed := readersOwner, r.granted
	switch {
	case column != "":
	case closed > r.now:
		owner, end = keptOwner, closed
	default:
		owner, end = "", r.now
	}
	return c.exec(c.b.sql.settle, []byte(r.name), []byte(r.column), []byte(column), []byte(owner), end, r.granted)
}
