package redisnode_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/internal/drivertest"
	"github.com/redlock-go/redlock/redlocktest/fault"
	"github.com/redlock-go/redlock/redlocktest/server"
)

// hungConnect: if a server only accepts connections, callers return at their deadlines, and
// Close after about a call timeout, however long connecting may take.
func (s *suite) hungConnect(t *testing.T) {
	p := fault.NewProxy(t, server.StartFor(t, s.kind).Addr())
	b := s.open(t, s.url(p.Addr(), "?call_timeout=500ms&dial_timeout=30s"))
	p.BlackHole()
	const most = time.Minute
	start := time.Now()
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			for j := range 3 {
				_, err := b.Acquire(context.Background(), s.ask(fmt.Sprintf("h%d/%d", i, j), time.Minute))
				if err == nil || errors.Is(err, driver.ErrHeld) || errors.Is(err, driver.ErrRefused) {
					t.Errorf("Acquire at a black hole: %v", err)
				}
			}
		})
	}
	wg.Wait()
	if d := time.Since(start); d > most {
		t.Errorf("the callers came back after %v", d)
	}
	start = time.Now()
	if err := b.Close(); err != nil || time.Since(start) > most {
		t.Errorf("Close took %v: %v", time.Since(start), err)
	}
}

// cancelledInspection: an operator who presses ctrl-C need not wait for a server that is silent.
func (s *suite) cancelledInspection(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	for _, when := range []string{"from the start", "later"} {
		p := fault.NewProxy(t, srv.Addr())
		for name, ask := range map[string]func(context.Context, driver.Backend) error{
			"Lookup": func(ctx context.Context, b driver.Backend) error {
				_, err := b.(driver.Inspector).Lookup(ctx, "k")
				return err
			},
			"List": func(ctx context.Context, b driver.Backend) error {
				return b.(driver.Inspector).List(ctx, "", func(*driver.State) bool { return true })
			},
			"Check": func(ctx context.Context, b driver.Backend) error {
				_, err := b.(driver.Inspector).Check(ctx)
				return err
			},
		} {
			t.Run(name+" "+when, func(t *testing.T) {
				b := s.open(t, s.url(p.Addr(), ""))
				if when == "later" {
					s.warm(t, b)
					drivertest.Must(t, ask(t.Context(), b))
				}
				p.Pause()
				defer p.Resume() // Close waits for a call under way
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(20*time.Millisecond, cancel)
				if err := ask(ctx, b); !errors.Is(err, context.Canceled) { // after the call timeout the error would be another
					t.Errorf("cancelled: %v", err)
				}
			})
		}
	}
}

// A call hears that its context has ended, also if it runs on its caller's goroutine.
func (s *suite) cancelledCalls(t *testing.T) {
	srv := server.StartFor(t, s.kind)
	p := fault.NewProxy(t, srv.Addr())
	b := s.open(t, s.url(p.Addr(), "?call_timeout=5s&dial_timeout=5s"))
	s.warm(t, b)
	for name, ask := range map[string]func(context.Context, driver.Lease) error{
		"Acquire": func(ctx context.Context, _ driver.Lease) error {
			_, err := b.Acquire(ctx, s.ask("other", time.Minute))
			return err
		},
		"Renew": func(ctx context.Context, l driver.Lease) error {
			_, err := l.Renew(ctx, &driver.Renewal{TTL: time.Minute})
			return err
		},
	} {
		l := s.lock(t, b, name, time.Minute) // answered, so that the next call needs no other goroutine
		p.Pause()
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(20*time.Millisecond, cancel)
		if err := ask(ctx, l); !errors.Is(err, context.Canceled) { // after the call timeout the error would be another
			t.Errorf("%s was cancelled: %v", name, err)
		}
		p.Resume()
	}
}
