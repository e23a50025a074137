package sqltable_test

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/sqltable"
)

// A foreign row is what somebody else writes to the row of a key, or to the mark.
type foreign struct {
	mark           bool
	owner          []byte
	fence, granted int64
	left           int64 // microseconds until it expires
}

const hour = int64(time.Hour / time.Microsecond)

// foreignRows are the rows that the tests begin with.
var foreignRows = func() (rows []foreign) {
	for i, fence := range []int64{0, 1, -1, math.MinInt64, math.MaxInt64, driver.MaxFence - 1, driver.MaxFence, driver.MaxFence + 1} {
		for k, left := range []int64{-hour, hour, math.MinInt64, math.MaxInt64} {
			if (i+k)%2 == 0 {
				rows = append(rows, foreign{false, [][]byte{nil, []byte("web|1"), {0xff}}[i%3], fence, left, left})
			}
		}
		rows = append(rows, foreign{true, []byte("dlock1"), fence, 0, []int64{-hour, math.MaxInt64}[i%2]})
	}
	for _, owner := range []string{"|readers|", "|kept|"} {
		rows = append(rows, foreign{owner: []byte(owner), fence: 5, granted: hour, left: hour}, foreign{owner: []byte(owner), left: -hour})
	}
	return append(rows, foreign{owner: []byte("web|1"), fence: -1, left: hour}, foreign{mark: true}, foreign{mark: true, owner: []byte("dlock2")}, foreign{mark: true, owner: []byte("dlock1 "), fence: -1})
}()

var foreignKeys atomic.Int64

// try writes the row, and checks every call: a key is free or held by its row alone, tokens
// rise over every number that is stored, and a layout that is not the driver's is refused.
func (r foreign) try(t *testing.T, p *place) {
	a, b := p.open(t), p.open(t)
	n := foreignKeys.Add(1)
	key := fmt.Sprint("f", n)
	before := must(t, a, request(key))
	now := time.Now().UnixMicro()
	expires := r.left
	if expires < math.MaxInt64-now {
		expires += now
	}
	r.owner = r.owner[:min(len(r.owner), 1024)]
	write := func(key string, owner []byte, fence, granted, expires int64) {
		set := "owner = ?, fence = ?, granted = ?, expires = ?"
		if p.dialect == sqltable.Postgres {
			set = "owner = $1, fence = $2, granted = $3, expires = $4"
		}
		p.do(t, "UPDATE "+p.table+" SET "+set+" WHERE name = "+p.key(key), append([]byte{}, owner...), fence, granted, expires)
	}
	if r.mark {
		write("", r.owner, r.fence, r.granted, expires)
		defer write("", []byte("dlock1"), 0, 0, 0)
		r.tryMark(t, p, fmt.Sprint("g", n))
		return
	}
	write(key, r.owner, r.fence, r.granted, expires)
	const unsure = 30 * int64(time.Second/time.Microsecond) // how long a call may take
	held, free := len(r.owner) > 0 && r.left > unsure, len(r.owner) == 0 || r.left < 0
	s, err := b.Lookup(t.Context(), key)
	seen := held && string(r.owner) != "|readers|" && string(r.owner) != "|kept|" // by their column, and by nobody
	if err != nil || seen && (len(s.Holders) != 1 || s.Holders[0].TTL <= 0) || free && len(s.Holders) > 0 || s.Fence > math.MaxInt64 {
		t.Errorf("Lookup: %+v, %v", s, err)
	}
	if err := b.List(t.Context(), "f", func(*driver.State) bool { return true }); err != nil {
		t.Errorf("List: %v", err)
	}
	one, err := b.Acquire(t.Context(), request(key))
	var no *driver.HeldError
	switch {
	case err == nil && held && string(r.owner) != "|kept|":
		t.Errorf("granted beside the owner %q", r.owner)
	case errors.As(err, &no) && (free || no.RetryAfter < 0), err != nil && no == nil && !errors.Is(err, driver.ErrRefused):
		t.Errorf("Acquire gives %v", err)
	}
	last := max(r.fence, 0)
	rising := func(l driver.Lease) {
		if f := int64(l.Grant().Fence); f <= last || f > driver.MaxFence {
			t.Errorf("token %d after %d", f, last)
		} else {
			last = f
		}
	}
	if _, err := before.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); !errors.Is(err, driver.ErrLost) {
		t.Errorf("Renew of a lease whose row was overwritten: %v", err)
	}
	if one != nil {
		rising(one)
		drivertest.Renew(t, one, time.Minute)
		drivertest.Release(t, one)
	}
	write(key, nil, max(last, 0), 0, now-hour)
	if err := b.Clean(t.Context(), time.Second); err != nil {
		t.Errorf("Clean: %v", err)
	}
	switch l, err := b.Acquire(t.Context(), request(key)); {
	case err == nil:
		rising(l)
		drivertest.Release(t, l)
	case last < driver.MaxFence || !errors.Is(err, driver.ErrRefused):
		t.Errorf("Acquire after a clean-up: %v", err)
	}
}

// tryMark takes a key without a row by a client that has not seen the mark.
func (r foreign) tryMark(t *testing.T, p *place, key string) {
	b := p.open(t)
	for range 2 {
		l, err := b.Acquire(t.Context(), request(key))
		switch {
		case err != nil && !errors.Is(err, driver.ErrRefused):
			t.Errorf("Acquire: %v", err)
		case err == nil && (string(r.owner) != "dlock1" || l.Grant().Fence <= uint64(max(r.fence, 0)) || l.Grant().Fence > driver.MaxFence):
			t.Errorf("token %d in the layout %q, and the mark has %d", l.Grant().Fence, r.owner, r.fence)
		}
		if err == nil {
			drivertest.Release(t, l)
		}
	}
}

// foreignValues writes foreign rows to every database.
func foreignValues(t *testing.T, p *place) {
	for i, r := range foreignRows {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			r.try(t, p)
			if t.Failed() {
				t.Logf("the row was %+v", r)
			}
		})
	}
}

// texts: in SQLite somebody may write a text where the driver writes bytes. It means the same.
func texts(t *testing.T, p *place) {
	b := p.open(t)
	_ = must(t, b, request("k")).Release(t.Context())
	p.do(t, "UPDATE "+p.table+" SET owner = '', expires = ? WHERE name = "+p.key("k"), time.Now().UnixMicro()+hour)
	_ = must(t, b, request("k")).Release(t.Context())
	p.do(t, "UPDATE "+p.table+" SET owner = CAST(owner AS TEXT) WHERE name = "+p.key(""))
	l := must(t, b, request("new"))
	p.do(t, "UPDATE "+p.table+" SET owner = 'web' WHERE name = "+p.key("new"))
	listed := 0
	if err := b.List(t.Context(), "", func(*driver.State) bool { listed++; return true }); err != nil || listed != 1 {
		t.Errorf("List has %d keys: %v", listed, err)
	}
	if err := b.Break(t.Context(), "new", driver.Holder{Fence: l.Grant().Fence}); err != nil {
		t.Errorf("Break: %v", err)
	}
}

// FuzzRows writes any row to a table of SQLite, whose columns take any type.
func FuzzRows(f *testing.F) {
	for _, r := range foreignRows {
		f.Add(r.mark, r.owner, r.fence, r.granted, r.left)
	}
	p := sqlitePlace(f)
	p.table = sqltable.DefaultTable
	f.Fuzz(func(t *testing.T, mark bool, owner []byte, fence, granted, left int64) {
		foreign{mark, owner, fence, granted, left}.try(t, p)
	})
}
