package driver

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode"
)

// The definite verdicts. Everything that is none of them, a network error or a
// context's end say, is unknown: the request may have taken effect, or may yet.
var (
	// ErrHeld says that another owner has the lock: contention. Drivers return
	// it as a *HeldError.
	ErrHeld = errors.New("lock is held by another owner")

	// ErrLost says that this owner no longer has the lock, for certain.
	ErrLost = errors.New("lock was lost")

	// ErrRefused says that the server answered and will not, now or ever.
	// Drivers return it as a *RefusedError.
	ErrRefused = errors.New("server refuses")

	// ErrInvalid says that the caller asked for something that cannot be: misuse.
	// Nothing was sent. Drivers return it as an *InvalidError.
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
	// zero where unknown. Most holders renew, and most release long before that: it bounds
	// the wait for one that died, and does not tell when a lock becomes free.
	RetryAfter time.Duration
	// Since is when the holder got it, by the server's clock; zero where unknown.
	Since time.Time
	// PollAfter is for a caller that watches the key: when to ask again although the watch
	// gave no value. It is long where the release is certain to be announced, and short
	// where the holder announces nothing. Zero: the caller decides.
	PollAfter time.Duration
	// ReservedForWaiter: nobody has the lock, which was just released. For RetryAfter at most
	// it is kept for the first waiter in the queue. Holder is empty then.
	ReservedForWaiter bool
	// Server and Clock are as in Grant.
	Server string
	Clock  time.Time
	_      struct{}
}

// Error says who holds the lock, for how long, and when the holder's lease ends unless it is
// renewed, as far as known.
func (e *HeldError) Error() string {
	var b strings.Builder
	switch {
	case e.ReservedForWaiter:
		b.WriteString("kept for the next in line")
	case e.Holder == "":
		b.WriteString("held by another owner")
	default:
		b.WriteString("held by " + printable(e.Holder))
	}
	if !e.Since.IsZero() && e.Clock.After(e.Since) {
		fmt.Fprintf(&b, " for %v", round(e.Clock.Sub(e.Since)))
	}
	switch {
	case e.RetryAfter <= 0:
	case e.ReservedForWaiter:
		fmt.Fprintf(&b, " for at most %v", round(e.RetryAfter))
	default:
		fmt.Fprintf(&b, "; its lease ends in %v unless it is renewed", round(e.RetryAfter))
	}
	return b.String()
}

// Is reports that a HeldError is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// RefusedError is the verdict that the server answered and does not serve the
// request. It is ErrRefused.
type RefusedError struct {
	// RetryAfter is when it may serve it (loading, quarantine); zero means never
	// as it is configured now (password, permission, read-only, TTL over the guard).
	RetryAfter time.Duration
	// Reason says in words what is wrong and what to do. It holds no secret.
	Reason string
	// Err is the server's own error, if there is one, free of secrets.
	Err error
	// Clock and Server are as in Grant, where the server told them: a node that does
	// not vote yet tells its time nevertheless.
	Clock  time.Time
	Server string
	_      struct{}
}

// Error returns the reason, and when to ask again.
func (e *RefusedError) Error() string {
	s := e.Reason
	if s == "" {
		s = ErrRefused.Error()
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.RetryAfter > 0 {
		s += fmt.Sprintf(" (retry in %v)", round(e.RetryAfter))
	}
	return s
}

// Is reports that a RefusedError is ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// Unwrap returns the server's own error.
func (e *RefusedError) Unwrap() error { return e.Err }

// InvalidError names the part of a request, an option or a DSN that cannot be
// honoured. It is ErrInvalid, and comes before any I/O.
type InvalidError struct {
	// What names the part: "key", "TTL", "parameter \"dbb\"".
	What string
	// Reason says what is wrong with it and what would be right. It never quotes
	// a part of a DSN that may hold a password.
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

// QuorumError is what a quorum backend returns when no majority granted the
// lock. It unwraps to the verdict alone: what a minority said can be read in
// Votes, and never through errors.Is or errors.As (rule 5).
type QuorumError struct {
	Need  int    // grants needed: N/2 + 1
	Votes []Vote // what every node answered, in the order of the nodes
	// Verdict is a *HeldError if one other owner rules a majority out, a
	// *RefusedError if refusals do, ErrLost if a majority is known to have lost
	// the lease; nil means unknown.
	Verdict error
	// Detail is the per-node text that Error appends; the quorum backend formats it.
	Detail string
	_      struct{}
}

// Error says how many votes there were, how many were needed, and the verdict.
func (e *QuorumError) Error() string {
	granted := 0
	for i := range e.Votes {
		if e.Votes[i].Granted {
			granted++
		}
	}
	s := fmt.Sprintf("%d of %d nodes granted, %d needed", granted, len(e.Votes), e.Need)
	if e.Verdict != nil {
		s = e.Verdict.Error() + " (" + s + ")"
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the verdict of the quorum, and no node's own error.
func (e *QuorumError) Unwrap() error { return e.Verdict }

// round makes a duration readable: three digits are enough for a person.
func round(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(100 * time.Millisecond)
	case d >= time.Millisecond:
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Microsecond)
}

// printable quotes an owner that a terminal or a log line could not bear (control
// characters, also those above ASCII, and what turns the direction of the text), since
// a foreign lock's value may be any bytes, and cuts it to a bearable length.
func printable(s string) string {
	const most = 120
	if len(s) > most {
		s = s[:most] + "…"
	}
	for _, r := range s {
		if !unicode.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return strings.ToValidUTF8(s, "�")
}
