package dlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

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
			if !errors.Is(err, dlock.ErrLost) || strings.Contains(text, "\n") ||
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
