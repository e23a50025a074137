package dlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
	"github.com/redlock-go/redlock/driver/quorum"
)

// The kinds of error, to be told apart with errors.Is. Contention, outage, loss and misuse are
// four things: no error matches two of the first four.
var (
	// ErrHeld is contention: another owner has the lock. errors.As finds a *driver.HeldError.
	ErrHeld = driver.ErrHeld
	// ErrUnavailable is outage: the backend could not be asked, its answer did not
	// arrive, or it refuses to serve. errors.As may find a *driver.RefusedError.
	ErrUnavailable = errors.New("lock backend is unavailable")
	// ErrLost is loss: this lease no longer excludes anybody.
	ErrLost = driver.ErrLost
	// ErrInvalid is misuse: a key, a TTL, an option or a DSN that the backend cannot honour.
	// Nothing was sent. errors.As finds an *driver.InvalidError.
	ErrInvalid = driver.ErrInvalid

	// ErrReleased is the Err of a lease after Unlock, or after its client's Close; after Close
	// it is ErrClosed as well.
	ErrReleased = errors.New("lease was released")
	// ErrMaxHold is the Err of a lease at the end of WithMaxHold. It is ErrLost.
	ErrMaxHold error = &kindError{"lease reached its maximum hold", []error{ErrLost}}
	// ErrClosed says that the client was closed.
	ErrClosed = driver.ErrClosed
)

// An Error is the error of a Client and its leases. It unwraps to the last verdict,
// and to the context's error if that ended the wait. Of a quorum, errors.As
// finds a *quorum.Error with the votes.
type Error struct {
	Op         string // "lock", "trylock", "unlock", "ping" or "lookup"
	Key        string
	Attempts   int           // requests made
	Waited     time.Duration // since the call began
	Err        error         // the last verdict; nil if there was none
	ContextErr error         // the context's error that ended the wait; nil if none did
	_          struct{}
}

// Error returns one line: the operation, the verdict, and why the call ended.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("dlock: ")
	b.WriteString(e.Op)
	if e.Key != "" {
		b.WriteByte(' ')
		b.WriteString(quoteKey(e.Key))
	}
	b.WriteString(": ")
	switch {
	case e.Err == nil && e.ContextErr == nil:
		b.WriteString("failed")
	case e.Err == nil:
		b.WriteString(e.ContextErr.Error())
	case e.ContextErr == nil:
		b.WriteString(e.Err.Error())
	default:
		fmt.Fprintf(&b, "%v (gave up after %v: %v)", e.Err, printable.Duration(e.Waited), e.ContextErr)
	}
	return printable.Line(b.String())
}

// Unwrap returns the verdict and the context's error, as far as there are any.
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	if e.ContextErr != nil {
		errs = append(errs, e.ContextErr)
	}
	return errs
}

// Is reports that an Error is ErrUnavailable if its verdict is none of contention,
// loss and misuse.
func (e *Error) Is(target error) bool {
	return target == ErrUnavailable && e.Err != nil && unavailable(e.Err)
}

// unavailable reports whether a verdict is an outage: none of the other kinds.
func unavailable(err error) bool {
	for _, kind := range []error{ErrHeld, ErrLost, ErrInvalid, ErrReleased, ErrClosed} {
		if errors.Is(err, kind) {
			return false
		}
	}
	return true
}

// permanent reports whether waiting cannot help: misuse, a closed client, a permanent refusal.
func permanent(err error) bool {
	if errors.Is(err, ErrInvalid) || errors.Is(err, ErrClosed) {
		return true
	}
	var r *driver.RefusedError
	return errors.As(err, &r) && r.RetryAfter <= 0
}

// settle waits for the timer of a context whose deadline has passed, so that ctx.Err agrees with
// the error that this package returns. That takes a moment, or longer on a busy machine.
func settle(ctx context.Context) {
	if ctx.Err() != nil {
		return
	}
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// contextOnly reports whether err says only that ctx ended, without a verdict.
func contextOnly(ctx context.Context, err error) bool {
	return driver.ContextErr(ctx) != nil && !errors.Is(err, ErrHeld) && !errors.Is(err, driver.ErrRefused) &&
		(errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded))
}

// kindError is an error that is of some kinds. The cause of a loss is text and not a wrapped error: a
// loss must not match the error of the outage that led to it.
type kindError struct {
	msg   string
	kinds []error
}

func (e *kindError) Error() string        { return e.msg }
func (e *kindError) Is(target error) bool { return slices.Contains(e.kinds, target) }

// errClientClosed is the end of a lease that Close released.
var errClientClosed error = &kindError{"lease was released: its client was closed", []error{ErrReleased, ErrClosed}}

func lost(format string, args ...any) error {
	return &kindError{fmt.Sprintf("lease was lost: "+format, args...), []error{ErrLost}}
}

// withoutContext returns the verdict of an error that wraps a verdict and a context's error,
// which Error.ContextErr has already.
func withoutContext(err error) error {
	var quorum *quorum.Error
	var held *driver.HeldError
	switch {
	case errors.As(err, &quorum):
		return quorum
	case errors.As(err, &held):
		return held
	}
	return err
}

// quoteKey quotes a key of any bytes so that it fits into one line.
func quoteKey(key string) string {
	const most = 80
	if len(key) > most {
		return strconv.Quote(key[:most]) + "…"
	}
	return strconv.Quote(key)
}
