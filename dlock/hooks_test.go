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
	"github.com/redlock-go/redlock/driver/quorum"
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
			if none := strings.Contains("attempt trylock", e.Op) && e.Err != nil; e.Fence == 0 != none {
				t.Errorf("%s: token %d", e.Op, e.Fence)
			}
			if wants := strings.Contains("attempt renew", e.Op) && e.Err == nil; e.Key != "k" || len(e.Votes) == 1 != wants {
				t.Errorf("%s: key %q, votes %v", e.Op, e.Key, e.Votes)
			}
		}
		s := newSpy()
		s.granted = func(g *driver.Grant) { g.Votes = []quorum.Vote{{Node: "a", Granted: true}} }
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
		if n := c.Stats(); n.Acquired != 2 || n.Contended != 1 || n.Renewed != 1 || n.RenewalFailed != 1 || n.Lost != 1 {
			t.Errorf("Stats = %+v", n)
		}
		_ = l.Unlock()
	})
}

func TestARefusedAttemptHasItsVotes(t *testing.T) {
	s, votes := newSpy(), 0
	s.acquire = func(context.Context, *driver.Request) error {
		return &quorum.Error{Need: 2, Verdict: &driver.HeldError{}, Votes: []quorum.Vote{{Node: "a"}, {Node: "b"}}}
	}
	_, err := newSpyClient(t, s, dlock.WithHooks(on("attempt", func(_ context.Context, e dlock.Event) { votes = len(e.Votes) }))).TryLock(t.Context(), "k")
	if !errors.Is(err, dlock.ErrHeld) || votes != 2 {
		t.Errorf("%d votes: %v", votes, err)
	}
}

func TestAnErrorIsOneLine(t *testing.T) {
	verdict := errors.New("no connection: a:1: refused\n\ta:1: refused\r\n\n\tb:2: timeout\n")
	long := &dlock.Error{Op: "lock", Key: strings.Repeat("x", 300), Err: verdict}
	if got := long.Error(); len(got) > 200 {
		t.Errorf("got %q", got)
	}
	for text, e := range map[string]*dlock.Error{
		"dlock: ping: failed":                                          {Op: "ping"},
		`dlock: lock "k": context canceled`:                            {Op: "lock", Key: "k", ContextErr: context.Canceled},
		`dlock: lock "k": off (gave up after 1s: end)`:                 {Op: "lock", Key: "k", Waited: time.Second, Err: errors.New("off"), ContextErr: errors.New("end")},
		fmt.Sprintf("dlock: lock %q: failed", strings.Repeat("k", 80)): {Op: "lock", Key: strings.Repeat("k", 80)},
	} {
		if got := e.Error(); got != text {
			t.Errorf("got %q, want %q", got, text)
		}
	}
	err := &dlock.Error{Op: "trylock", Key: "a\nb", Err: verdict}
	if got, want := err.Error(), `dlock: trylock "a\nb": no connection: a:1: refused; b:2: timeout`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
