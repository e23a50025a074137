package sqltable_test

import (
	"context"
	"database/sql"
	"flag"
	"slices"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
)

var full = flag.Bool("full", false, "run the conformance suite with all its repetitions on every database, and not on MariaDB alone")

// TestConformance is not parallel: while a suite runs nothing else may.
func TestConformance(t *testing.T) {
	for _, name := range []string{"mariadb", "sqlite", "postgres", "bouncer"} {
		if testing.Short() && name != "sqlite" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			p := places[name](t)
			h := p.harness(t)
			h.Short = name != "mariadb" && !*full
			redlocktest.Run(t, h)
		})
	}
}

func (p *place) harness(t testing.TB) redlocktest.Harness {
	var told notices
	cfg := driver.Config{DSN: p.url, Notify: told.add}
	h := redlocktest.Harness{
		Driver: p.driver,
		Notices: func() []driver.Notice {
			told.mu.Lock()
			defer told.mu.Unlock()
			return slices.Clone(told.all)
		},
		FutureLayout: func() (func() error, error) { return p.layoutOfTomorrow() },
		IgnoreGoroutines: []string{
			"github.com/redlock-go/redlock/redlocktest/server.(*process).run", // of a server that was restarted
			"database/sql.(*DB).connectionOpener",                             // of the plain client
		},
	}
	if p.server == nil {
		h.URL = p.url
		h.Open = func() (driver.Backend, error) { return p.driver.Open(&cfg) }
		return h
	}
	h.Secret = "pw-s3cr3t"
	cfg.DSN = withPassword(p.url, h.Secret)
	if p.behind.Kind() == "mariadbd" {
		p.do(t, "CREATE USER alice@'%' IDENTIFIED BY 'pw-s3cr3t'")
		p.do(t, "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON test.* TO alice@'%'")
		cfg.DSN = withPassword(p.server.URLFor("alice", "")+"?setup=on", h.Secret)
	}
	h.URL = cfg.DSN
	h.Open = func() (driver.Backend, error) { return p.openProxied(cfg) }
	via := func(b driver.Backend) *fault.Proxy { return b.(*proxied).proxy }
	h.Faults = &redlocktest.Faults{
		Kill:      p.behind.Kill,
		Restart:   func(bool) error { return p.behind.Start() }, // what was committed is on the disk
		Pause:     p.server.Pause,
		Resume:    p.server.Resume,
		Partition: func(b driver.Backend) error { via(b).Pause(); return nil },
		Heal:      func(b driver.Backend) error { via(b).Resume(); return nil },
		Slow: func(b driver.Backend, d time.Duration) error {
			via(b).Delay(fault.ToClient, d, 0)
			return nil
		},
		DropReply: func(b driver.Backend) error { via(b).CutReplies(1); return nil },
	}
	return h
}

// layoutOfTomorrow changes the mark's layout.
func (p *place) layoutOfTomorrow() (func() error, error) {
	set := func(layout string) error {
		statement := map[string]string{
			"mysql":   "UPDATE dlock SET owner = '" + layout + "' WHERE name = ''",
			"pgtable": "UPDATE dlock SET owner = '" + layout + "' WHERE name = ''",
			"sqlite":  "UPDATE dlock SET owner = CAST('" + layout + "' AS BLOB) WHERE name = x''",
		}[p.dialect.String()]
		db, err := sql.Open(p.dsn[0], p.dsn[1]) // and gone before the case ends
		if err != nil {
			return err
		}
		defer db.Close() //nolint:errcheck // the statement has succeeded or not
		_, err = db.ExecContext(context.Background(), statement)
		return err
	}
	return func() error { return set("dlock1") }, set("dlock2")
}
