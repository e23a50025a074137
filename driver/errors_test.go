package driver

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"
)

func TestHeldErrorAnswersTheNextQuestion(t *testing.T) {
	clock := time.Date(2026, 11, 21, 4, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		err  HeldError
		want string
	}{
		{HeldError{}, "held by another owner"},
		{HeldError{Holder: "web-4/2211"}, "held by web-4/2211"},
		{HeldError{Holder: "web-4/2211", RetryAfter: 6 * time.Second}, "held by web-4/2211; its lease ends in 6s unless it is renewed"},
		{HeldError{Holder: "web-4/2211", Since: clock.Add(-192 * time.Second), Clock: clock, RetryAfter: 6012345678}, "held by web-4/2211 for 3m12s; its lease ends in 6s unless it is renewed"},
		{HeldError{Holder: "o", Since: clock.Add(-1234567), Clock: clock}, "held by o for 1ms"},
		{HeldError{Holder: "o", Since: clock.Add(-1234), Clock: clock}, "held by o for 1µs"},
		{HeldError{Holder: "o", RetryAfter: 1234567890}, "held by o; its lease ends in 1.2s unless it is renewed"},
		{HeldError{Mode: Shared, RetryAfter: time.Second}, "shared by other owners; its lease ends in 1s unless it is renewed"},
		{HeldError{Holder: "o", Since: clock}, "held by o"},                              // the server's clock is not known
		{HeldError{Holder: "o", Since: clock.Add(time.Hour), Clock: clock}, "held by o"}, // it went back
		{HeldError{Holder: "a\x1b[2Jb\n"}, `held by a\x1b[2Jb\n`},                        // a foreign value
		{HeldError{Holder: "a\u009b2Jb"}, `held by a\u009b2Jb`},                          // a control above ASCII
		{HeldError{Holder: "a\u202eb"}, `held by a\u202eb`},                              // what turns the text round
		{HeldError{Holder: "Jürgen/1 x"}, "held by Jürgen/1 x"},                          //
		{HeldError{Holder: "a\xffb"}, `held by a\xffb`},                                  // no UTF-8
		{HeldError{Holder: strings.Repeat("x", 200)}, "held by " + strings.Repeat("x", 120) + "…"},
	} {
		if got := c.err.Error(); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}

// The verdicts are told apart, whatever wraps them.
func TestEachErrorIsItsOwnVerdictAlone(t *testing.T) {
	verdicts := []error{ErrHeld, ErrLost, ErrRefused, ErrInvalid, ErrClosed}
	for _, c := range []struct{ err, is error }{
		{&HeldError{}, ErrHeld},
		{&RefusedError{Err: io.EOF}, ErrRefused},
		{Invalid("key", "is %s", "empty"), ErrInvalid},
		{ErrLost, ErrLost},
		{ErrClosed, ErrClosed},
		{io.EOF, nil},
	} {
		for _, v := range verdicts {
			if got, want := errors.Is(fmt.Errorf("wrapped: %w", c.err), v), errors.Is(v, c.is); got != want {
				t.Errorf("%v is %v: %t, want %t", c.err, v, got, want)
			}
		}
	}
}

func TestRefusedErrorSaysWhyAndUntilWhen(t *testing.T) {
	err := &RefusedError{Reason: "node is in quarantine", RetryAfter: 29*time.Second + 400*time.Millisecond, Err: io.EOF}
	if got, want := err.Error(), "node is in quarantine: EOF (retry in 29s)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if !errors.Is(err, io.EOF) {
		t.Error("the server's own error is not found")
	}
	if got, want := (&RefusedError{}).Error(), "server refuses"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
