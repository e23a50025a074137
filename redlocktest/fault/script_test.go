package fault

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

func request(key, owner string) *driver.Request {
	return &driver.Request{Key: key, Owner: owner, TTL: time.Minute}
}

// bubble runs a test on a wrapped memory backend, in virtual time.
func bubble(t *testing.T, test func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script)) {
	synctest.Test(t, func(t *testing.T) {
		inner, s := memory.New(), &Script{}
		b := Wrap(inner, s)
		test(t, b, inner, s)
		must(t, b.Close())
	})
}

// free reports whether nobody holds key.
func free(t *testing.T, b *memory.Backend, key string) bool {
	t.Helper()
	st, err := b.Lookup(t.Context(), key)
	must(t, err)
	return len(st.Holders) == 0
}

func TestTheZeroScriptChangesNothing(t *testing.T) {
	bubble(t, func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script) {
		if b.Info() != inner.Info() || fmt.Sprint(b) != fmt.Sprint(inner) {
			t.Errorf("it is %s %+v", b, b.Info())
		}
		l, err := b.Acquire(t.Context(), request("k", "a"))
		must(t, err)
		_, err = b.Acquire(t.Context(), request("k", "b"))
		if !errors.Is(err, driver.ErrHeld) {
			t.Errorf("the second: %v", err)
		}
		g, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute})
		must(t, err)
		if g.Fence != l.Grant().Fence {
			t.Errorf("tokens %d and %d", g.Fence, l.Grant().Fence)
		}
		must(t, l.Release(t.Context()))
		if s.Calls(Acquire) != 2 || s.Calls(Renew) != 1 || s.Calls(Release) != 1 {
			t.Errorf("calls: %v", s.calls)
		}
	})
}

func TestBeforeHasNoEffect(t *testing.T) {
	bubble(t, func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script) {
		s.Next(Acquire, Fault{Before: ErrNotSent})
		if _, err := b.Acquire(t.Context(), request("k", "a")); !errors.Is(err, ErrNotSent) {
			t.Errorf("got %v", err)
		}
		if !free(t, inner, "k") {
			t.Error("it took effect")
		}
		l, err := b.Acquire(t.Context(), request("k", "a"))
		must(t, err)
		s.Next(Release, Fault{Before: ErrNotSent})
		if err := l.Release(t.Context()); !errors.Is(err, ErrNotSent) || free(t, inner, "k") {
			t.Errorf("release: %v", err)
		}
		must(t, l.Release(t.Context()))
	})
}

func TestAfterTakesEffectAndALostGrantIsCleanedUpUnlessOrphaned(t *testing.T) {
	for _, orphan := range []bool{false, true} {
		bubble(t, func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script) {
			s.Next(Acquire, Fault{After: ErrReplyLost, Orphan: orphan})
			ctx, cancel := context.WithCancel(t.Context())
			_, err := b.Acquire(ctx, request("k", "a"))
			cancel()
			if !errors.Is(err, ErrReplyLost) {
				t.Errorf("got %v", err)
			}
			synctest.Wait()
			if free(t, inner, "k") == orphan {
				t.Errorf("orphan %v: free %v", orphan, !orphan)
			}
		})
	}
}

func TestALostReplyOfARenewalExtendsTheLease(t *testing.T) {
	bubble(t, func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script) {
		l, err := b.Acquire(t.Context(), request("k", "a"))
		must(t, err)
		before := l.Grant().Expires
		time.Sleep(time.Second)
		s.Next(Renew, Fault{After: ErrReplyLost})
		if _, err := l.Renew(t.Context(), &driver.Renewal{TTL: time.Minute}); !errors.Is(err, ErrReplyLost) {
			t.Errorf("got %v", err)
		}
		if !l.Grant().Expires.After(before) {
			t.Error("it did not take effect")
		}
	})
}

func TestDelaysAndLateRepliesTakeTheirTimeAndEndWithTheContext(t *testing.T) {
	bubble(t, func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script) {
		s.Next(Acquire, Fault{Delay: time.Second, Late: 2 * time.Second})
		start := time.Now()
		l, err := b.Acquire(t.Context(), request("k", "a"))
		must(t, err)
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("it took %v", d)
		}
		must(t, l.Release(t.Context()))
		for _, f := range []Fault{{Delay: time.Hour}, {Late: time.Hour}} {
			s.Next(Acquire, f)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := b.Acquire(ctx, request("k", "a"))
			cancel()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			synctest.Wait()
			if !free(t, inner, "k") {
				t.Error("the key is left")
			}
		}
	})
}

func TestHangsEndWithTheContextWithHealAndWithClose(t *testing.T) {
	bubble(t, func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script) {
		s.Always(Acquire, Fault{Hang: true})
		for name, end := range map[string]func(cancel func()){
			"context": func(cancel func()) { cancel() },
			"heal":    func(func()) { s.Heal() },
			"close":   func(func()) { must(t, b.Close()) },
		} {
			if name == "close" {
				continue // closed last, below
			}
			checkHang(t, b, name, end)
			s.Always(Acquire, Fault{HangAfter: true})
		}
		s.Always(Acquire, Fault{Hang: true})
		checkHang(t, b, "close", func(func()) { must(t, b.Close()) })
	})
}

func checkHang(t *testing.T, b driver.Backend, name string, end func(cancel func())) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := b.Acquire(ctx, request("k", "a"))
		done <- err
	}()
	synctest.Wait()
	select {
	case err := <-done:
		t.Fatalf("%s: it returned at once: %v", name, err)
	default:
	}
	end(cancel)
	synctest.Wait()
	select {
	case err := <-done:
		if !errors.Is(err, ErrHung) {
			t.Errorf("%s: got %v", name, err)
		}
	default:
		t.Errorf("%s: it still hangs", name)
	}
}

func TestReleaseWorksAfterCancellationAndHangsForABoundedTime(t *testing.T) {
	bubble(t, func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script) {
		l, err := b.Acquire(t.Context(), request("k", "a"))
		must(t, err)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		s.Next(Release, Fault{Hang: true}, Fault{Delay: time.Second})
		start := time.Now()
		if err := l.Release(ended); !errors.Is(err, ErrHung) || time.Since(start) != releaseLimit {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		must(t, l.Release(ended))
		if !free(t, inner, "k") {
			t.Error("the key is left")
		}
	})
}

func TestDecideSeesTheCall(t *testing.T) {
	bubble(t, func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script) {
		var seen []Call
		s.Decide(func(c Call) Fault {
			seen = append(seen, c)
			if c.Key == "bad" {
				return Fault{Before: ErrNotSent}
			}
			return Fault{}
		})
		l, err := b.Acquire(t.Context(), request("good", "a"))
		must(t, err)
		if _, err := b.Acquire(t.Context(), request("bad", "b")); !errors.Is(err, ErrNotSent) {
			t.Errorf("got %v", err)
		}
		must(t, l.Release(t.Context()))
		want := []Call{{Op: Acquire, Key: "good", Owner: "a"}, {Op: Acquire, Key: "bad", Owner: "b", N: 1}, {Op: Release, Key: "good", Owner: "a"}}
		if fmt.Sprint(seen) != fmt.Sprint(want) {
			t.Errorf("saw %v, want %v", seen, want)
		}
	})
}

func TestWatchIsSpoiltToo(t *testing.T) {
	bubble(t, func(t *testing.T, b driver.Backend, inner *memory.Backend, s *Script) {
		w, ok := b.(driver.Watcher)
		if !ok {
			t.Fatal("the wrapped memory backend is no Watcher")
		}
		s.Next(Watch, Fault{Before: ErrNotSent})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		if _, err := w.Watch(ctx, "k"); !errors.Is(err, ErrNotSent) {
			t.Errorf("got %v", err)
		}
		l, err := b.Acquire(t.Context(), request("k", "a"))
		must(t, err)
		freed, err := w.Watch(ctx, "k")
		must(t, err)
		must(t, l.Release(t.Context()))
		synctest.Wait()
		select {
		case <-freed:
		default:
			t.Error("no signal")
		}
		cancel()
		synctest.Wait()
	})
}
