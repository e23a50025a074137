package sqltable

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

// inspect runs an operator's request.
func (b *Backend) inspect(ctx context.Context, f func(*call) error) error {
	call, err := b.calls.Begin(ctx, b.calls.Bound(0))
	if err != nil {
		return err
	}
	defer call.End()
	c := b.newCall(call)
	c.looks = true
	if err := c.greet(); err != nil {
		return err
	}
	return f(c)
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
	if _, ok := b.toMake(err); ok {
		return &driver.State{Key: key}, nil
	}
	if err != nil {
		return nil, err
	}
	return r.state(key), nil
}

func (r *row) state(key string) *driver.State {
	s := &driver.State{Key: key, Fence: r.fence}
	if r.held() {
		s.Holders = []driver.Holder{{
			Owner: r.owner, Fence: r.fence, Since: time.UnixMicro(r.granted),
			TTL: r.left(),
		}}
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
				var name, owner []byte
				var fence int64
				r := row{exists: true}
				err := s.Scan(&r.now, &name, &owner, &fence, &r.granted, &r.expires)
				if err == nil {
					name, err = b.dialect.decode(name)
				}
				if err == nil {
					owner, err = b.dialect.decode(owner)
				}
				r.name, r.owner, r.fence = string(name), string(owner), uint64(max(0, fence))
				rows = append(rows, r)
				return err
			})
		})
		if _, ok := b.toMake(err); ok {
			return nil
		}
		if err != nil {
			return err
		}
		for i := range rows {
			if !yield(rows[i].state(strings.TrimPrefix(rows[i].name, b.opt.Prefix))) {
				return nil
			}
		}
		if len(rows) < page {
			return nil
		}
		last = []byte(rows[len(rows)-1].name)
	}
}

// Break frees key if its holder has this token.
func (b *Backend) Break(ctx context.Context, key string, h driver.Holder) error {
	switch {
	case key == "":
		return driver.Invalid("key", "is empty")
	case h.Fence > driver.MaxFence:
		return driver.ErrLost
	}
	err := b.inspect(ctx, func(c *call) error {
		n, err := c.exec(b.sql.takeAway, []byte(b.opt.Prefix+key), int64(h.Fence))
		switch {
		case err == nil && n == 0 && c.repeated:
			err = fmt.Errorf("%s: the connection broke: it is not known whether the lock was taken away", b.info.Name)
		case err == nil && n == 0:
			err = driver.ErrLost
		}
		return err
	})
	if _, ok := b.toMake(err); ok {
		return driver.ErrLost
	}
	return err
}

// Check examines the server and the table.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	k := &checkup{b: b}
	k.Node = b.String()
	err := b.inspect(ctx, k.run)
	if no, ok := b.toMake(err); ok {
		k.Add("no-table", driver.SeverityNote, "check again after that", "there is no %s: the first lock makes it", no.what)
		err = nil
	}
	return k.Result(err)
}

type checkup struct {
	base.Findings
	b *Backend
}

// questions are the dialects' settings that matter: a query of names and values.
var questions = map[Dialect]string{
	MySQL:    `SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'innodb_flush_log_at_trx_commit', 'sync_binlog', 'log_bin', 'wsrep_on')`,
	Postgres: `SELECT name, setting FROM pg_settings WHERE name IN ('server_version', 'fsync', 'synchronous_commit')`,
	SQLite:   `SELECT 'version', sqlite_version()`,
}

func (k *checkup) run(c *call) error {
	sent := time.Now()
	r, err := c.look([]byte{})
	if err != nil {
		return err
	}
	k.Clock(time.UnixMicro(r.now), sent)
	settings := map[string]string{}
	err = c.query(questions[k.b.dialect], nil, func(s *sql.Rows) error {
		var name, value string
		err := s.Scan(&name, &value)
		settings[name] = value
		return err
	})
	if err != nil {
		return err
	}
	k.Add("version", driver.SeverityNote, "", "version %s", settings["version"]+settings["server_version"])
	switch k.b.dialect {
	case MySQL:
		if v := settings["innodb_flush_log_at_trx_commit"]; v != "1" {
			k.Add("innodb-flush-log", driver.SeverityUnsafe, "set innodb_flush_log_at_trx_commit = 1", "innodb_flush_log_at_trx_commit is %s: a crash of the server's machine forgets the locks of the last second", v)
		}
		if settings["log_bin"] == "ON" {
			k.Add("replica", driver.SeverityNote, "", "a replica that is promoted may lack the last locks, unless replication is synchronous")
		}
		if settings["wsrep_on"] == "ON" {
			k.Add("galera", driver.SeverityWarning, "let all clients reach the same node, by an address that leads to it alone", "this is a node of a Galera cluster: locks are safe only while all clients reach the same node")
		}
	case Postgres:
		for _, name := range []string{"fsync", "synchronous_commit"} {
			if settings[name] == "off" {
				k.Add(strings.ReplaceAll(name, "_", "-"), driver.SeverityUnsafe, "turn "+name+" on", "%s is off: a crash of the server forgets the last locks", name)
			}
		}
	}
	rows := int64(0)
	err = c.query("SELECT count(*) FROM "+k.b.dialect.quote(k.b.opt.Table), nil, func(s *sql.Rows) error { return s.Scan(&rows) })
	if err == nil {
		k.Add("rows", driver.SeverityNote, "", "the table %s has %d keys; unused keys are deleted after %v", k.b.opt.Table, rows-1, keptFree)
	}
	return err
}
