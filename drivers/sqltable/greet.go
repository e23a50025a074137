package sqltable

import (
	"database/sql"
	"errors"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// greetingLife is how long the answer to the first question stays valid.
const greetingLife = time.Minute

// greet asks the first question, unless its answer is known: the server's time, the layout of
// the table, and whether the server can keep locks. One caller asks, and the others wait for
// its answer.
func (c *call) greet() error {
	b := c.b
	if b.greetedAlready() {
		return nil
	}
	select {
	case b.greeting <- struct{}{}:
		defer func() { <-b.greeting }()
	case <-c.Done():
		return c.Over()
	}
	if b.greetedAlready() {
		return nil
	}
	start := time.Now()
	var err error
	if b.dialect == MySQL {
		err = c.helloMySQL()
	}
	if err == nil {
		err = c.hello()
	}
	if b.opt.Setup && errors.Is(err, errMissing) {
		if err = c.setup(); err == nil {
			err = c.hello()
		}
	}
	if err == nil {
		b.greeted.Store(&start)
	}
	return err
}

func (b *Backend) greetedAlready() bool {
	at := b.greeted.Load()
	return at != nil && time.Since(*at) < greetingLife
}

// forget makes the next call ask the first question again.
func (b *Backend) forget() { b.greeted.Store(nil) }

// hello reads the mark, and makes it if there is none.
func (c *call) hello() error {
	for range 2 {
		mark, err := c.look([]byte{})
		if err != nil {
			return err
		}
		switch {
		case mark.owner == layout && mark.fence >= driver.MaxFence:
			return &driver.RefusedError{Reason: c.b.info.Name + ": the fencing tokens of the table " + c.b.opt.Table + " are at their end: name another table"}
		case mark.owner == layout:
			return nil
		case mark.exists:
			return &driver.RefusedError{Reason: c.b.info.Name + ": the table " + c.b.opt.Table + " has the layout of another release: upgrade, or name another table"}
		}
		if err := c.ensure(c.b.sql.begin, []byte(layout)); err != nil {
			return err
		}
	}
	return &driver.RefusedError{RetryAfter: time.Second, Reason: c.b.info.Name + ": the first row of the table " + c.b.opt.Table + " does not stay there"}
}

// helloMySQL refuses settings under which a table keeps no locks, and clusters in which every node
// takes writes.
func (c *call) helloMySQL() error {
	var autocommit, wait, keys int64
	var mode, engine string
	schema, table, found := strings.Cut(c.b.opt.Table, ".")
	if found {
		schema = "'" + schema + "'"
	} else {
		schema, table = "DATABASE()", schema
	}
	where := " WHERE TABLE_SCHEMA = " + schema + " AND TABLE_NAME = '" + table + "'"
	err := c.query(`SELECT @@autocommit, @@sql_mode, @@innodb_lock_wait_timeout,
		(SELECT COALESCE(MAX(ENGINE), '') FROM information_schema.TABLES`+where+`),
		(SELECT COUNT(*) FROM (SELECT MAX(COLUMN_NAME) AS name FROM information_schema.STATISTICS`+where+` AND NON_UNIQUE = 0
			GROUP BY INDEX_NAME HAVING COUNT(*) = 1) AS i WHERE i.name = 'name')`, nil,
		func(r *sql.Rows) error { return r.Scan(&autocommit, &mode, &wait, &engine, &keys) })
	if err != nil {
		return err
	}
	no := ""
	switch {
	case autocommit != 1:
		no = "autocommit is off, so that no lock would be committed: set autocommit=1 in the client"
	case strings.Contains(mode, "EMPTY_STRING_IS_NULL"):
		no = "sql_mode has EMPTY_STRING_IS_NULL, so that no key could be free: set another sql_mode in the client"
	case engine != "" && !strings.EqualFold(engine, "InnoDB"): // empty: this user may not see it
		no = "the table " + c.b.opt.Table + " has the engine " + engine + ", which has no transactions: ALTER TABLE " + c.b.dialect.quote(c.b.opt.Table) + " ENGINE=InnoDB"
	case engine != "" && keys == 0:
		no = "the table " + c.b.opt.Table + " has no primary key, so that a lock could have two rows: drop it, and make it by: " + c.b.SetupSQL("")
	}
	if no != "" {
		return &driver.RefusedError{Reason: "mysql: " + no}
	}
	// The server looks for waits that are over once a second.
	c.b.rowWait.Store(int64(min(time.Duration(wait)*time.Second+time.Second, time.Minute)))
	if c.b.opt.SingleWriter {
		return nil
	}
	many := ""
	err = c.query(`SHOW GLOBAL VARIABLES WHERE Variable_name IN ('wsrep_on', 'group_replication_single_primary_mode')`, nil, func(r *sql.Rows) error {
		var name, value string
		if err := r.Scan(&name, &value); err != nil {
			return err
		}
		switch on := strings.EqualFold(value, "on"); {
		case name == "wsrep_on" && on:
			many = "Galera"
		case name == "group_replication_single_primary_mode" && !on:
			many = "group replication"
		}
		return nil
	})
	if err == nil && many != "" {
		err = &driver.RefusedError{Reason: "mysql: every node of this cluster takes writes (" + many + "), and their clocks differ: let all clients reach the same node, and say so by single_writer=true"}
	}
	return err
}

// SetupSQL returns the statement that makes the table. On PostgreSQL a second one grants role
// what a backend needs, if role is not empty.
func (b *Backend) SetupSQL(role string) string {
	s := b.dialect.createTable(b.opt.Table)
	if role != "" && b.dialect == Postgres {
		s += "; GRANT SELECT, INSERT, UPDATE, DELETE ON " + b.dialect.quote(b.opt.Table) + ` TO "` + strings.ReplaceAll(role, `"`, `""`) + `"`
	}
	return s
}

// setup makes the table.
func (c *call) setup() error {
	err := c.ensure(c.b.dialect.createTable(c.b.opt.Table))
	var refused *driver.RefusedError
	if err == nil || c.hello() == nil { // two made it at the same time
		return nil
	}
	if errors.As(err, &refused) && refused.RetryAfter == 0 {
		refused.Reason += "; an administrator must run: " + c.b.SetupSQL("")
	}
	return err
}
