package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/drivers/memory"
)

func TestLeaseForFindsTheLeaseOfItsKey(t *testing.T) {
	c := newSpyClient(t, memory.New())
	err := dlock.Do(t.Context(), c, "account/42", func(ctx context.Context) error {
		outer, _ := dlock.LeaseFor(ctx, "account/42")
		return dlock.Do(ctx, c, "audit", func(ctx context.Context) error {
			for _, key := range []string{"account/42", "audit"} {
				if l, ok := dlock.LeaseFor(ctx, key); !ok || l.Key() != key {
					t.Errorf("LeaseFor(%q) = %v, %v", key, l, ok)
				}
			}
			if l, _ := dlock.LeaseFor(ctx, "account/42"); l != outer {
				t.Error("it is another lease under a nested Do")
			}
			if l, ok := dlock.LeaseFor(ctx, "account/43"); ok || l != nil {
				t.Errorf("a lease of a key that nobody locked: %v", l)
			}
			return nil
		})
	})
	if err != nil {
		t.Error(err)
	}
}

func TestDoTellsItsOwnVerdictFromItsFunctions(t *testing.T) {
	m := memory.New()
	defer m.Hold("inner")()
	c := newSpyClient(t, m.Peer())
	work := func(ctx context.Context) error {
		if _, err := c.TryLock(ctx, "inner"); err != nil {
			return fmt.Errorf("step 2: %w (%w)", err, io.EOF)
		}
		return nil
	}
	err := dlock.Do(t.Context(), c, "outer", work)
	if errors.Is(err, dlock.ErrHeld) {
		t.Errorf("%v: the function's error matches Do's ErrHeld", err)
	}
	if !errors.Is(err, io.EOF) {
		t.Errorf("%v does not match the other error that the function returned", err)
	}
	var held *dlock.HeldError
	var whole *dlock.Error
	if errors.As(err, &held) || errors.As(err, &whole) {
		t.Errorf("%v: errors.As finds the function's verdict as if it were Do's", err)
	}
	var inner *dlock.FuncError
	if !errors.As(err, &inner) || !errors.Is(inner.Err, dlock.ErrHeld) || inner.Key != "outer" {
		t.Errorf("%v is not a *FuncError with the function's error", err)
	}
	if !strings.Contains(err.Error(), `"outer"`) || !strings.Contains(err.Error(), `"inner"`) {
		t.Errorf("%v does not name both keys", err)
	}
	err = dlock.Do(t.Context(), c, "outer", func(ctx context.Context) error {
		return dlock.Do(ctx, tried{c}, "inner", func(context.Context) error { return nil })
	})
	if errors.Is(err, dlock.ErrHeld) {
		t.Errorf("%v: the inner Do's error matches the outer Do's ErrHeld", err)
	}
	if err := dlock.Do(t.Context(), tried{c}, "inner", work); !errors.Is(err, dlock.ErrHeld) {
		t.Errorf("Do of a held key: %v", err)
	}
}

// tried is a Locker that does not wait.
type tried struct{ *dlock.Client }

func (c tried) Lock(ctx context.Context, key string, opts ...dlock.LockOption) (*dlock.Lease, error) {
	return c.TryLock(ctx, key, opts...)
}

func TestDoNamesKeyAndCauseOfALossOnOneLine(t *testing.T) {
	for name, work := range map[string]func(context.Context) error{
		"its own error": func(ctx context.Context) error { <-ctx.Done(); return errors.New("half\ndone") },
		"its context":   func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"its cause":     func(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) },
		"ErrHeld":       func(ctx context.Context) error { <-ctx.Done(); return dlock.ErrHeld },
		"nothing":       func(ctx context.Context) error { <-ctx.Done(); return nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newSpy()
			s.renew = func(context.Context, *driver.Renewal) error { return errOutage }
			err := dlock.Do(t.Context(), newSpyClient(t, s), "account/42", work)
			text := fmt.Sprint(err)
			if !errors.Is(err, dlock.ErrLost) || errors.Is(err, dlock.ErrHeld) || strings.Contains(text, "\n") ||
				!strings.Contains(text, `"account/42"`) || !strings.Contains(text, errOutage.Error()) {
				t.Errorf("%s: got %q, want one line with key and cause", name, text)
			}
			if n := strings.Count(text, errOutage.Error()); n != 1 {
				t.Errorf("%s: the cause stands there %d times: %s", name, n, text)
			}
			if name == "its own error" && !strings.Contains(text, "half; done") {
				t.Errorf("the function's error is missing: %s", text)
			}
		})
	}
}
