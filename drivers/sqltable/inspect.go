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

// inspect runs an operator's request.
func (b *Backend) inspect(ctx context.Context, f func(*call) error) error {
	return b.calls.Do(ctx, b.calls.Bound(0), func(call *base.Call) error {
		c := b.newCall(call)
		if err := c.greet(); err != nil {
			return err
		}
		return f(c)
	})
}

// Lookup returns the state of key. Its Fence is the counter, for as long as the key's row stays.
func (b *Backend) Lookup(ctx context.Context, key string) (*driver.State, error) {
	if key == "" {
		return nil, driver.Invalid("key", "is empty")
	}
	var r row
	err := b.inspect(ctx, func(c *call) (err error) {
		r, err = c.look([]byte(b.opt.Prefix + key))
		return err
	})
	if err != nil {
		return nil, err
	}
	return r.state(key), nil
}

func (r *row) state(key string) *driver.State {
	s := &driver.State{Key: key, Fence: r.fence}
	switch {
	case r.kept():
		s.ReservedFor = r.left()
	case r.shared():
		for i := range r.readers {
			e := &r.readers[i]
			one := row{exists: true, owner: e.owner, fence: uint64(max(0, e.fence)), granted: e.since, expires: e.end, now: r.now}
			s.Holders = append(s.Holders, one.state(key).Holders...)
		}
		if len(s.Holders) > 0 {
			s.Mode = driver.Shared
		}
	case r.held():
		h := driver.Holder{Fence: r.fence, Since: time.UnixMicro(r.granted), TTL: r.left()}
		h.Owner, h.Tokens = base.Unranged(r.owner)
		s.Holders = []driver.Holder{h}
	}
	return s
}

// page is how many rows List asks for at once.
const page = 200

// List yields the held keys that begin with prefix.
func (b *Backend) List(ctx context.Context, prefix string, yield func(*driver.State) bool) error {
	whole := b.opt.Prefix + prefix
	last := []byte{}
	for {
		var rows []row
		err := b.inspect(ctx, func(c *call) error {
			rows = nil
			return c.query(b.sql.list, []any{last, []byte(whole), after(whole), int64(page)}, func(s *sql.Rows) error {
				r, err := b.dialect.row(s.Scan)
				rows = append(rows, r)
				return err
			})
		})
		if err != nil {
			return err
		}
		for i := range rows {
			if s := rows[i].state(strings.TrimPrefix(rows[i].name, b.opt.Prefix)); len(s.Holders) > 0 && !yield(s) {
				return nil
			}
		}
		if len(rows) < page {
			return nil
		}
		last = []byte(rows[len(rows)-1].name)
	}
}

// Break frees key if its holder has this token, or takes it from the reader with this token.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	switch {
	case key == "":
		return driver.Invalid("key", "is empty")
	case h.Fence > driver.MaxFence:
		return driver.ErrLost
	}
	return b.inspect(ctx, func(c *call) error {
		r, err := c.look([]byte(b.opt.Prefix + key))
		if err != nil {
			return err
		}
		if r.shared() { // whose row has the token of the last reader
			return c.part([]byte(r.name), nil, int64(h.Fence))
		}
		n, err := c.exec(b.sql.takeAway, []byte(b.opt.Prefix+key), int64(h.Fence))
		switch {
		case err == nil && n == 0 && c.repeated:
			err = errors.New("the connection broke: it is not known whether the lock was taken away")
		case err == nil && n == 0:
			err = driver.ErrLost
		}
		return err
	})
}

// Check examines the server and the table.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	f := &base.Findings{Node: b.String()}
	err := b.inspect(ctx, func(c *call) error {
		sent := time.Now()
		r, err := c.look([]byte{})
		if err != nil || b.dialect == SQLite {
			return err
		}
		f.Clock(time.UnixMicro(r.now), sent)
		var names []string
		for _, d := range settings[b.dialect] {
			names = append(names, "'"+d.name+"'")
		}
		query := `SHOW GLOBAL VARIABLES WHERE Variable_name`
		if b.dialect == Postgres {
			query = `SELECT name, setting FROM pg_settings WHERE name`
		}
		return c.query(query+" IN ("+strings.Join(names, ", ")+")", nil, func(s *sql.Rows) error {
			var name, value string
			err := s.Scan(&name, &value)
			for _, d := range settings[b.dialect] {
				if d.name == name && (value == d.bad || d.bad == "" && value != d.good) {
					f.Add(d.code, d.severity, d.remedy, "%s is %s: %s", name, value, d.summary)
				}
			}
			return err
		})
	})
	return f.Result(err)
}

const (
	forgets = "a crash of the server forgets the last locks"
	oneNode = "locks are safe only while all clients reach the same node of this Galera cluster"
)

// settings are those of the dialects that matter: a good value, or a bad one.
var settings = map[Dialect][]struct {
	name, good, bad string
	code            string
	severity        driver.Severity
	remedy, summary string
}{
	MySQL: {
		{"innodb_flush_log_at_trx_commit", "1", "", "innodb-flush-log", driver.SeverityUnsafe, "set innodb_flush_log_at_trx_commit = 1", forgets},
		{"wsrep_on", "", "ON", "galera", driver.SeverityWarning, "let all clients reach the same node, by an address that leads to it alone", oneNode},
	},
	Postgres: {
		{"fsync", "", "off", "fsync", driver.SeverityUnsafe, "turn fsync on", forgets},
		{"synchronous_commit", "", "off", "synchronous-commit", driver.SeverityUnsafe, "turn synchronous_commit on", forgets},
	},
}
