package dlock

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/redlock-go/redlock/driver"
)

// The types of operators' answers are those of the driver contract.
type (
	// State is the state of a key: its holders, its token, how many wait.
	State = driver.State
	// Holder is one owner of a held key.
	Holder = driver.Holder
	// NodeState is the state of a key on one node of a quorum.
	NodeState = driver.NodeState
	// Waiter waits for a key.
	Waiter = driver.Waiter
	// Verdict sums up the state of a key: State.Verdict.
	Verdict = driver.Verdict
	// Diagnostic is a property of the deployment that an operator should know.
	Diagnostic = driver.Diagnostic
	// Severity says how serious a Diagnostic is; a larger one is more serious.
	Severity = driver.Severity
)

// The verdicts of State.Verdict, and the severities of a Diagnostic.
const (
	VerdictFree     = driver.VerdictFree
	VerdictHeld     = driver.VerdictHeld
	VerdictExpiring = driver.VerdictExpiring
	VerdictReserved = driver.VerdictReserved
	VerdictSplit    = driver.VerdictSplit

	SeverityNote    = driver.SeverityNote
	SeverityWarning = driver.SeverityWarning
	SeverityUnsafe  = driver.SeverityUnsafe
)

// Lookup returns the state of key: its holders, their tokens and remaining times, and how many
// wait, as far as the backend can tell. A key that nobody holds has no Holders. ctx
// bounds the call, which takes one round trip on most backends. It takes no lock and never
// delays one.
//
// Errors are an *Error. It matches errors.ErrUnsupported and ErrInvalid if the backend cannot
// tell, ErrInvalid if the key is invalid, ErrClosed if the client is closed, and ErrUnavailable
// after any other failure.
func (c *Client) Lookup(ctx context.Context, key string) (*State, error) {
	var s *State
	err := c.inspect(func() error { return c.beginWith(key) }, func(i driver.Inspector) (err error) {
		s, err = i.Lookup(ctx, key)
		return err
	})
	if err != nil {
		return nil, operatorError(ctx, "lookup", key, err)
	}
	return s, nil
}

// List returns an iterator over the held keys that begin with prefix, without the client's
// own prefix, in no order. It may take many round trips and sees no snapshot: a key that is
// taken or released meanwhile may be in it or not. A failure is the last pair, with a nil
// State and an error as of Lookup. ctx bounds the whole iteration.
func (c *Client) List(ctx context.Context, prefix string) iter.Seq2[*State, error] {
	return func(yield func(*State, error) bool) {
		more := true
		err := c.inspect(c.begin, func(i driver.Inspector) error {
			return i.List(ctx, prefix, func(s *State) bool {
				more = more && yield(s, nil)
				return more
			})
		})
		if err != nil && more {
			yield(nil, operatorError(ctx, "list", prefix, err))
		}
	}
}

// Check examines the deployment and returns its findings for operators, the gravest first. It
// asks every server and takes seconds at most, within ctx. An error (see Lookup) means that
// Check could not examine the deployment; it says nothing about the deployment itself.
func (c *Client) Check(ctx context.Context) ([]Diagnostic, error) {
	var found []Diagnostic
	err := c.inspect(c.begin, func(i driver.Inspector) (err error) {
		found, err = i.Check(ctx)
		return err
	})
	if err != nil {
		return nil, operatorError(ctx, "check", "", err)
	}
	return found, nil
}

// Break takes the lock named key away from the holder h, as Lookup returned it: the one with its
// token (Holder.Fence is the holder's Lease.Fence), or its session where the server knows sessions
// and no tokens (Holder.Session: PostgreSQL), of which all locks are freed. A holder with a token
// learns of it at its next renewal at the latest: its Done is closed then, within a third of its
// TTL. The holder of a session learns of it at once, because its connection breaks. Until it
// stops, two holders work at the same time, and only a store that checks tokens refuses the old
// one.
//
// If another holder has the key, or nobody, Break changes nothing; the error is ErrLost and names
// the holder that it saw. Other errors are as for Lookup.
func (c *Client) Break(ctx context.Context, key string, h Holder) error {
	err := c.beginWith(key)
	if err == nil {
		defer c.calls.Done()
		if a, ok := c.Admin(); !ok {
			err = c.unsupported("cannot take a lock away")
		} else if err = a.Break(ctx, key, h); errors.Is(err, ErrLost) {
			err = c.saw(ctx, key, h)
		}
	}
	if err != nil {
		return operatorError(ctx, "break", key, err)
	}
	return nil
}

// saw names the holder of the key, which is not the one that was asked for.
func (c *Client) saw(ctx context.Context, key string, asked Holder) error {
	name := func(h Holder) string {
		if h.Session != "" {
			return "session " + h.Session
		}
		return fmt.Sprintf("token %d", h.Fence)
	}
	saw := ""
	if i, ok := c.Inspector(); ok {
		if s, err := i.Lookup(ctx, key); err == nil && len(s.Holders) == 0 {
			saw = "; nobody holds it"
		} else if err == nil {
			h := &driver.HeldError{Holder: s.Holders[0].Owner} // quotes characters that disturb a terminal
			saw = fmt.Sprintf("; it is %v with %s", h, name(s.Holders[0]))
		}
	}
	return &lostError{msg: fmt.Sprintf("no lock with %s%s", name(asked), saw)}
}

// inspect calls f with the backend's Inspector. First it calls begin, which must be c.begin or
// call it.
func (c *Client) inspect(begin func() error, f func(driver.Inspector) error) error {
	i, ok := c.Inspector()
	if !ok {
		return c.unsupported("cannot tell who holds what")
	}
	if err := begin(); err != nil {
		return err
	}
	defer c.calls.Done()
	return f(i)
}

// beginWith is begin for a call with a key, which it checks.
func (c *Client) beginWith(key string) error {
	switch n := len(c.prefix) + len(key); {
	case key == "":
		return driver.Invalid("key", "is empty")
	case n > driver.MaxKey:
		return driver.Invalid("key", "has %d bytes with its prefix, the limit is %d", n, driver.MaxKey)
	}
	return c.begin()
}

func (c *Client) unsupported(what string) error {
	return &unsupportedError{c.info.Name + " " + what}
}

// unsupportedError matches errors.ErrUnsupported and ErrInvalid.
type unsupportedError struct{ msg string }

func (e *unsupportedError) Error() string { return e.msg }
func (e *unsupportedError) Is(target error) bool {
	return target == errors.ErrUnsupported || target == ErrInvalid
}

// operatorError makes the error of an operator's call, such as Lookup.
func operatorError(ctx context.Context, op, key string, err error) error {
	e := &Error{Op: op, Key: key, Attempts: 1, Err: err}
	if contextOnly(ctx, err) {
		e.Err, e.ContextErr = nil, driver.ContextErr(ctx)
	}
	return e
}
