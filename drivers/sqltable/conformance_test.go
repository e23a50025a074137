package sqltable_test

import (
	"context"
	"database/sql"
	"flag"
	"strings"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/redlocktest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

var full = flag.Bool("full", false, "run the conformance suite with all its repetitions on every database, and not on MariaDB alone")

// TestConformance is not parallel: while a suite runs nothing else may.
func TestConformance(t *testing.T) {
	for _, name := range []string{"mariadb", "sqlite", "postgres", "bouncer"} {
		if testing.Short() && name != "sqlite" || name == "postgres" && !server.IsDeep() { // the pooler's includes it
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

var stressFor = flag.Duration("long", 0, "stress each database for this `long`, instead of for some thousand calls")

// TestStress also kills the servers and processes of clients. -long=10m sets how long it takes.
func TestStress(t *testing.T) {
	if testing.Short() {
		t.Skip("takes too long for -short")
	}
	t.Parallel() // it mostly waits
	for name, operations := range map[string]int64{"mariadb": 1000, "postgres": 0} {
		if server.IsDeep() {
			operations = 4000
		}
		if operations == 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := redlocktest.StressOptions{Operations: operations}
			if *stressFor > 0 {
				o = redlocktest.StressOptions{Duration: *stressFor}
			}
			redlocktest.Stress(t, places[name](t).harness(t), o)
		})
	}
}

func (p *place) harness(t testing.TB) redlocktest.Harness {
	const secret = "pw-s3cr3t"
	cfg := driver.Config{DSN: p.url}
	var h redlocktest.Harness
	if p.server == nil {
		h.Open = func() (driver.Backend, error) { return p.driver.Open(&cfg) }
	} else {
		h = fault.Harness(p.server.Addr(), func(addr string) (driver.Backend, error) {
			through := cfg
			through.DSN = strings.Replace(cfg.DSN, p.server.Addr(), addr, 1)
			return p.driver.Open(&through)
		})
	}
	h.Driver, h.URL, h.FutureLayout = p.driver, p.url, p.layoutOfTomorrow
	// For a machine that is very busy.
	h.Timeout = 5 * time.Minute
	// Of the plain client.
	h.IgnoreGoroutines = []string{"database/sql.(*DB).connectionOpener"}
	h.Process = func() (*redlocktest.Client, error) { return redlocktest.StartClient(h.URL) }
	if p.server == nil {
		h.LocalClock = true // SQLite's clock is that of the client's machine
		return h
	}
	cfg.DSN = withPassword(p.url, secret)
	if p.behind.Kind() == server.KindMariaDB {
		p.do(t, "CREATE USER alice@'%' IDENTIFIED BY 'pw-s3cr3t'")
		p.do(t, "GRANT SELECT, INSERT, UPDATE, DELETE, CREATE ON test.* TO alice@'%'")
		cfg.DSN = withPassword(p.server.URLFor("alice", "")+"?setup=on", secret)
	}
	h.URL, h.Secret = cfg.DSN, secret
	h.Faults.DropReply = fault.DropAnswer(fault.ProtocolPostgres)
	if p.behind.Kind() == server.KindMariaDB {
		h.Faults.DropReply = fault.DropAnswer(fault.ProtocolMySQL)
	}
	h.Faults.Kill = p.behind.Kill
	h.Faults.Restart = func(bool) error { return p.behind.Start() } // what was committed is on the disk
	h.Faults.Pause, h.Faults.Resume = p.server.Pause, p.server.Resume
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
