package driver

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver/printable"
)

// The definite verdicts. Every other error, such as a network error or the end of a context,
// is unknown: the request may have taken effect, or may yet.
var (
	// ErrHeld says that another owner has the lock: contention. Drivers return
	// it as a *HeldError.
	ErrHeld = errors.New("lock is held by another owner")

	// ErrLost says that this owner no longer has the lock, for certain.
	ErrLost = errors.New("lock was lost")

	// ErrRefused says that the server refused the request, temporarily or permanently.
	// Drivers return it as a *RefusedError.
	ErrRefused = errors.New("server refuses")

	// ErrInvalid says that the request cannot be honoured: misuse. Nothing was sent.
	// Drivers return it as an *InvalidError.
	ErrInvalid = errors.New("invalid request")

	// ErrClosed says that the backend was closed before the call.
	ErrClosed = errors.New("closed")
)

// HeldError is the verdict that another owner has the lock. It is ErrHeld.
type HeldError struct {
	// Holder is the owner that was seen, as the backend stores it: a
	// Request.Owner, or the value of a foreign lock. Empty where the backend
	// cannot tell.
	Holder string
	// RetryAfter is how long the holder's lease lasts unless it is released or renewed;
	// zero: unknown. Most holders renew, and most release long before that, so it does not
	// forecast when the lock becomes free. It bounds the wait for a holder that died.
	RetryAfter time.Duration
	// Since is when the holder got the lock, by the server's clock; zero: unknown.
	Since time.Time
	// PollAfter is how long a caller that watches the key waits before it asks again without a
	// value from the watch. It is long if the release is certain to be announced, and short if
	// the holder announces nothing. Zero: the caller decides.
	PollAfter time.Duration
	// ReservedForWaiter: the lock was just released, and the server keeps it for the first
	// waiter in the queue, for RetryAfter at most. Holder is empty.
	ReservedForWaiter bool
	// Mode is Shared if readers have the lock: a request for Shared is then refused because a writer waits
	// that came earlier. Holder is empty.
	Mode Mode
	// Server and Clock are as in Grant.
	Server string
	Clock  time.Time
	_      struct{}
}

// Error names the holder, since when it holds the lock, and when its lease ends unless it is
// renewed, as far as they are known.
func (e *HeldError) Error() string {
	var b strings.Builder
	switch {
	case e.ReservedForWaiter:
		b.WriteString("kept for the first waiter in the queue")
	case e.Mode == Shared:
		b.WriteString("shared by other owners")
	case e.Holder == "":
		b.WriteString("held by another owner")
	default:
		b.WriteString("held by " + shown(e.Holder))
	}
	if !e.Since.IsZero() && e.Clock.After(e.Since) {
		fmt.Fprintf(&b, " for %v", printable.Duration(e.Clock.Sub(e.Since)))
	}
	switch {
	case e.RetryAfter <= 0:
	case e.ReservedForWaiter:
		fmt.Fprintf(&b, " for at most %v", printable.Duration(e.RetryAfter))
	default:
		fmt.Fprintf(&b, "; its lease ends in %v unless it is renewed", printable.Duration(e.RetryAfter))
	}
	return b.String()
}

// Is reports that a HeldError is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// RefusedError is the verdict that the server refused the request. It is ErrRefused.
type RefusedError struct {
	// RetryAfter is how long to wait until the server may serve the request (loading,
	// quarantine). Zero: never, with its present configuration (password, permission,
	// read-only, TTL over the guard).
	RetryAfter time.Duration
	// Reason says what is wrong and what to do. It holds no secret.
	Reason string
	// Err is the server's own error, if there is one, free of secrets.
	Err error
	// Clock is as in Grant, if the server sent it: a node that does not vote yet still sends its
	// time.
	Clock time.Time
	_     struct{}
}

// Error returns the reason, and how long to wait before asking again.
func (e *RefusedError) Error() string {
	s := e.Reason
	if s == "" {
		s = ErrRefused.Error()
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(" (retry in %v)", printable.Duration(e.RetryAfter))
	}
	return printable.Text(s)
}

// Unwrap returns ErrRefused, and the server's own error if there is one.
func (e *RefusedError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrRefused}
	}
	return []error{ErrRefused, e.Err}
}

// InvalidError names the part of a request, an option or a DSN that cannot be
// honoured. It is ErrInvalid, and comes before any I/O.
type InvalidError struct {
	// What names the part: "key", "TTL", "parameter \"dbb\"".
	What string
	// Reason says what is wrong with the part and what would be right. It never quotes a
	// part of a DSN that may hold a password.
	Reason string
	_      struct{}
}

// Error returns the part and the reason.
func (e *InvalidError) Error() string { return e.What + ": " + e.Reason }

// Is reports that an InvalidError is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Invalid returns an *InvalidError with a formatted reason.
func Invalid(what, format string, args ...any) error {
	return &InvalidError{What: what, Reason: fmt.Sprintf(format, args...)}
}

// shown returns an owner as errors show it: Printable, and not too long.
func shown(owner string) string {
	const most = 120
	if len(owner) > most {
		owner = owner[:most] + "…"
	}
	return printable.Text(owner)
}
