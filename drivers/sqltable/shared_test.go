package sqltable_test

import (
	"context"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/drivers/sqltable"
)

// shared is a request in the shared mode.
func shared(key string, ttl time.Duration) *driver.Request {
	r := drivertest.NewRequest(key, ttl)
	r.Mode = driver.Shared
	return r
}

// Readers cost who shares nothing nothing: a lock and its release are two statements, and neither reads
// or writes the column of readers.
func loneUser(t *testing.T, p *place) {
	ready(t, p.open(t)) // the table
	var mu sync.Mutex
	var sent []string
	b := p.on(t, p.breaking(t, func(query string, _ []sqldriver.NamedValue) (bool, error) {
		mu.Lock()
		defer mu.Unlock()
		sent = append(sent, query)
		return false, nil
	}), &sqltable.Options{Table: p.table, CallTimeout: 30 * time.Second})
	eventually(t, "two statements alone", func() bool { // the first question and a clean-up come between
		mu.Lock()
		sent = nil
		mu.Unlock()
		drivertest.Release(t, must(t, b, request("lone")))
		mu.Lock()
		defer mu.Unlock()
		return len(sent) == 2 && !strings.Contains(fmt.Sprint(sent), "readers")
	})
}

// Every reader is seen, with its own token and time. What somebody else writes into the column is no
// reader.
func readersAreSeen(t *testing.T, p *place) {
	b := p.open(t)
	var leases []driver.Lease
	ttls := []time.Duration{time.Minute, time.Hour, 2 * time.Minute}
	for _, ttl := range ttls {
		leases = append(leases, must(t, b, shared("k", ttl)))
	}
	text := "x|1 2|a b c d|web 1 99999999999999999999 3|"
	p.do(t, "UPDATE "+p.table+" SET readers = "+map[sqltable.Dialect]string{
		sqltable.MySQL: "CONCAT('" + text + "', readers)", sqltable.Postgres: "convert_to('" + text + "', 'UTF8') || readers", sqltable.SQLite: "CAST('" + text + "' AS BLOB) || readers",
	}[p.dialect]+" WHERE name = "+p.key("k"))
	s, err := b.Lookup(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	for i, l := range leases {
		if h := s.Holders; s.Mode != driver.Shared || len(h) != 3 || h[i].Fence != l.Grant().Fence || h[i].TTL <= ttls[i]-time.Minute || h[i].TTL > ttls[i] || time.Since(h[i].Since) > time.Minute {
			t.Fatalf("readers with TTLs of %v are seen as %+v", ttls, s)
		}
	}
	told := func(least, most time.Duration) {
		t.Helper()
		var held *driver.HeldError
		if _, err := p.open(t).Acquire(t.Context(), request("k")); !errors.As(err, &held) || held.Mode != driver.Shared || held.Holder != "" || held.RetryAfter < least || held.RetryAfter > most {
			t.Errorf("a writer beside readers: %v", err)
		}
	}
	told(59*time.Minute, time.Hour)
	if err := b.Break(t.Context(), "k", driver.Holder{Fence: leases[1].Grant().Fence}); err != nil {
		t.Errorf("Break: %v", err)
	}
	told(0, 2*time.Minute)
	drivertest.Release(t, leases[0])
	drivertest.Release(t, leases[2])
}

// Readers that share a key without a gap starve no writer.
func writersAreServed(t *testing.T, p *place) {
	const many, starved = 6, 1000
	client := func() *dlock.Client {
		c, err := dlock.New(p.open(t))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var overtook atomic.Int64
	var readers sync.WaitGroup
	for range many {
		c := client()
		readers.Go(func() {
			for ctx.Err() == nil {
				l, err := c.Lock(ctx, "k", dlock.WithShared())
				if err != nil {
					continue
				}
				if overtook.Add(1) == starved {
					t.Errorf("%d readers overtook a writer", starved)
					cancel()
				}
				time.Sleep(20 * time.Millisecond) // longer than the pause between two
				_ = l.Unlock()
			}
		})
	}
	eventually(t, "readers have the key", func() bool { return overtook.Load() > many })
	if l, err := client().Lock(ctx, "k"); err != nil {
		t.Errorf("a writer beside readers: %v", err)
	} else {
		_ = l.Unlock()
	}
	cancel()
	readers.Wait()
}

// A reader whose statement has no answer, or comes twice, or late, is there once or not at all.
func readersInDoubt(t *testing.T, p *place) {
	other := p.open(t)
	drivertest.Release(t, must(t, other, request("k"))) // the row
	var joins atomic.Int64
	var late func() int64
	var fails func(n int64) (after bool, err error)
	b := p.on(t, p.breaking(t, func(query string, args []sqldriver.NamedValue) (bool, error) {
		if !strings.Contains(query, "granted = CASE") {
			return false, nil
		}
		late = p.again(t, query, args)
		return fails(joins.Add(1))
	}), &sqltable.Options{Table: p.table, CallTimeout: time.Second})
	free := func() bool {
		s, err := other.Lookup(t.Context(), "k")
		return err == nil && len(s.Holders) == 0
	}
	// The connection breaks after the effect, and the client repeats the statement.
	fails = func(n int64) (bool, error) {
		if n == 1 {
			return true, sqldriver.ErrBadConn
		}
		return false, nil
	}
	drivertest.Release(t, must(t, b, shared("k", time.Hour)))
	eventually(t, "it is there once", free)
	// No answer.
	fails = func(int64) (bool, error) { return true, errors.New("no answer") }
	if _, err := b.Acquire(t.Context(), shared("k", time.Hour)); drivertest.Verdict(err) != "unknown" {
		t.Errorf("without an answer Acquire gives %v", err)
	}
	eventually(t, "it is undone", free)
	// The statement arrives after its repeat and the release.
	eventually(t, "the statement arrives in time", func() bool {
		joins.Store(0)
		fails = func(n int64) (bool, error) {
			if n == 1 {
				return false, sqldriver.ErrBadConn
			}
			return false, nil
		}
		l := drivertest.Grant(t, b, shared("k", time.Hour))
		arrives := late
		drivertest.Release(t, l)
		return arrives() > 0
	})
	eventually(t, "it is undone, though it was released", free)
}
