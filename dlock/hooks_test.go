package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

// on returns hooks that call f for the events with these Ops.
func on(ops string, f func(context.Context, dlock.Event)) dlock.Hooks {
	return dlock.Hooks{Event: func(ctx context.Context, e dlock.Event) {
		if slices.Contains(strings.Fields(ops), e.Op) {
			f(ctx, e)
		}
	}}
}

func TestHooksSeeEveryOperationUnderTheContextOfStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type span struct{}
		var log lockedBuilder
		say := func(ctx context.Context, e dlock.Event) {
			fmt.Fprintf(&log, "%s(%v,%v) ", e.Op, ctx.Value(span{}), e.Err != nil)
			if e.Key != "k" {
				t.Errorf("%s: key %q", e.Op, e.Key)
			}
		}
		s := newSpy()
		c := newSpyClient(t, s,
			dlock.WithHooks(dlock.Hooks{
				Start: func(ctx context.Context, op, _ string) context.Context { return context.WithValue(ctx, span{}, op) },
				Event: say,
			}),
			dlock.WithHooks(dlock.Hooks{
				Start: func(ctx context.Context, _, _ string) context.Context {
					return context.WithValue(ctx, span{}, fmt.Sprint(ctx.Value(span{}), "+"))
				},
			}),
			dlock.WithHooks(on("lost", func(ctx context.Context, _ dlock.Event) { fmt.Fprint(&log, "and another") })))
		l := lock(t, c, "k")
		if _, err := c.TryLock(t.Context(), "k"); err == nil {
			t.Fatal("two holders")
		}
		time.Sleep(4 * time.Second)
		unlock(t, l)
		l = lock(t, c, "k")
		s.Backend.(*memory.Backend).Expire("k")
		<-l.Done()
		synctest.Wait()
		want := "attempt(lock+,false) lock(lock+,false) " +
			"attempt(trylock+,true) trylock(trylock+,true) " +
			"renew(lock+,false) unlock(unlock+,false) " +
			"attempt(lock+,false) lock(lock+,false) renew(lock+,true) lost(lock+,true) and another"
		if got := strings.TrimSpace(log.String()); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		_ = l.Unlock()
	})
}

func TestDriverEventsReachTheHook(t *testing.T) {
	got := make(chan driver.NoticeKind, 1)
	c, err := dlock.OpenURL("test:", dlock.WithLogger(nil), dlock.WithHooks(on("notice", func(_ context.Context, e dlock.Event) { got <- e.Notice.Kind })))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	testDriver.got.Notify(driver.Notice{Kind: driver.NoticeDegraded})
	if kind := <-got; kind != driver.NoticeDegraded {
		t.Errorf("got %v", kind)
	}
}

func TestErrorsFitOneLineWhateverTheKey(t *testing.T) {
	s := newSpy()
	s.acquire = func(context.Context, *driver.Request) error {
		return &driver.HeldError{Holder: "a\nb", RetryAfter: 6 * time.Second, Since: time.Unix(100, 0), Clock: time.Unix(292, 0)}
	}
	_, err := newSpyClient(t, s).TryLock(t.Context(), "k\n"+strings.Repeat("x", 300))
	text := err.Error()
	if strings.Contains(text, "\n") || len(text) > 300 {
		t.Errorf("got %q", text)
	}
	if !strings.Contains(text, "for 3m12s; its lease ends in 6s unless it is renewed") {
		t.Errorf("got %q, want for how long, and when the holder's lease ends", text)
	}
}

func TestStatsCount(t *testing.T) {
	s := newSpy()
	c := newSpyClient(t, s)
	l := lock(t, c, "k")
	_, _ = c.TryLock(t.Context(), "k")
	s.set(func() { s.acquire = func(context.Context, *driver.Request) error { return errOutage } })
	_, _ = c.TryLock(t.Context(), "k")
	want := dlock.Stats{Held: 1, Acquired: 1, Contended: 1, Failed: 1}
	got := c.Stats()
	got.WaitTime = 0
	if got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	unlock(t, l)
	if got := c.Stats(); got.Held != 0 || got.Released != 1 {
		t.Errorf("after Unlock: %+v", got)
	}
}

func TestAnErrorIsOneLine(t *testing.T) {
	verdict := errors.New("no connection: a:1: refused\n\ta:1: refused\r\n\n\tb:2: timeout\n")
	err := &dlock.Error{Op: "trylock", Key: "a\nb", Err: verdict}
	if got, want := err.Error(), `dlock: trylock "a\nb": no connection: a:1: refused; b:2: timeout`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
