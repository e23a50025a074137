package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/postgres"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

const (
	cutTTL = 300 * time.Millisecond
	slack  = time.Minute // what a slow machine may add
)

// Wherever a connection stops (at a message's end or within one, in either direction, with or
// without a reset), the server frees the lock after the session's timeout and not before the
// lease's end, and nothing is left behind.
func TestAConnectionCutAnywhereFreesItsLocksInTime(t *testing.T) {
	t.Parallel()
	s := database(t)
	watch, err := pgxpool.New(context.Background(), s.URL()+"&pool_max_conns=20")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(watch.Close)
	every := []fault.Action{fault.Freeze, fault.Cut, fault.Mute, fault.End}
	const most = 900 // bytes that a trial sends, or is sent, at the most
	step, first := int64(41), int64(0)
	switch {
	case testing.Short(): // a third of them, by chance
		first, step = step*rand.Int64N(3), 3*step
	case server.IsDeep():
		step = 5
	}
	room := make(chan struct{}, 24)
	var wg sync.WaitGroup
	var trials, freed atomic.Int64
	for n := first; n < most; n += step {
		for d, direction := range []fault.Direction{fault.ToServer, fault.ToClient} {
			action := every[(n/step+int64(d))%int64(len(every))]
			room <- struct{}{}
			wg.Go(func() {
				defer func() { <-room }()
				trials.Add(1)
				c := cutTrial{s: s, watch: watch, direction: direction, after: n, action: action}
				if c.run(t) {
					freed.Add(1)
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d trials; in %d the key was seen free", trials.Load(), freed.Load())
	nothingLeft(t, s)
}

// A cutTrial is one connection that stops.
type cutTrial struct {
	s         testDatabase
	watch     *pgxpool.Pool
	direction fault.Direction
	after     int64
	action    fault.Action
}

// run takes a key and renews it, beside locks of all kinds, until the connection stops, and
// watches when the server frees the key. It reports whether it saw that.
func (c *cutTrial) run(t *testing.T) bool {
	name := fmt.Sprintf("%v %d %d", c.direction, c.after, c.action)
	p, err := fault.Start(shared.s.Addr())
	if err != nil {
		t.Error(err)
		return false
	}
	defer p.Close() //nolint:errcheck // the test's own
	b, err := open(through(c.s.URL(), p.Addr()) + "&max_conns=2")
	if err != nil {
		t.Error(err)
		return false
	}
	defer b.Close() //nolint:errcheck // the test's own
	l, err := b.Acquire(context.Background(), request(name, cutTTL))
	if err != nil {
		return false // a machine so slow that the grant was over
	}
	start := time.Now()
	p.Judge(c.direction, fault.AfterBytes(c.after, c.action))
	ctx, cancel := context.WithTimeout(context.Background(), 2*cutTTL)
	defer cancel()
	var wg sync.WaitGroup
	wg.Go(func() { c.load(ctx, b, l, name) })
	defer wg.Wait()
	id := b.LockID(name)
	bound := start.Add(2*cutTTL + cutTTL + postgres.Grace(cutTTL) + slack)
	for {
		var free bool
		if err := c.watch.QueryRow(context.Background(), "SELECT pg_try_advisory_xact_lock($1)", id).Scan(&free); err != nil {
			t.Error(err)
			return false
		}
		answered := time.Now()
		switch e := l.Grant().Expires; {
		case free && answered.Before(e):
			select {
			case <-l.Grant().Lost: // the end of the connection came first
			case <-time.After(slack):
				t.Errorf("%s: freed %v before Expires, and the lease is not lost", name, e.Sub(answered))
			}
			return true
		case free:
			return true
		case answered.After(bound):
			t.Errorf("%s: held %v after the start", name, answered.Sub(start))
			return false
		}
		<-time.After(5 * time.Millisecond)
	}
}

// load makes a session and a waiter send all kinds of statements.
func (c *cutTrial) load(ctx context.Context, b *postgres.Backend, l driver.Lease, name string) {
	for i := 0; ctx.Err() == nil; i++ {
		_, _ = l.Renew(ctx, &driver.Renewal{TTL: cutTTL})
		r := request(name+"x", cutTTL)
		r.Wait = i%2 == 1
		if i%4 > 1 {
			r.Mode = driver.Shared
		}
		x, err := b.Acquire(ctx, r)
		if err != nil {
			continue
		}
		var wg sync.WaitGroup
		wg.Go(func() { // waits for a lock that is released in a moment
			if y, err := b.Acquire(ctx, waiting(name+"x", cutTTL)); err == nil {
				_ = y.Release(ctx)
			}
		})
		_ = x.Release(ctx)
		wg.Wait()
	}
}
