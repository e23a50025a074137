package base

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Calls are the calls under way of one backend, and the goroutines of its driver. Set the fields
// before the first call, and do not copy a Calls.
type Calls struct {
	// Name begins the errors of calls: "etcd".
	Name string
	// Timeout bounds one call, and one try to undo an attempt; zero means a second.
	Timeout time.Duration

	mu       sync.Mutex
	closing  bool
	users    context.Context // of the users' calls; Close ends it first
	endUsers context.CancelFunc
	own      context.Context // of the driver's goroutines
	endOwn   context.CancelFunc
	calls    sync.WaitGroup // of the users
	routines sync.WaitGroup // of the driver
	undos    undos
}

// minBound is the least time of a call with a short TTL.
const minBound = 50 * time.Millisecond

// timeout is Timeout, or its default.
func (c *Calls) timeout() time.Duration {
	if c.Timeout <= 0 {
		return time.Second
	}
	return c.Timeout
}

// Bound returns how long a call for a lease of this TTL may last: Timeout, and half of the TTL if
// that is less, but 50 ms at least.
func (c *Calls) Bound(ttl time.Duration) time.Duration {
	if ttl <= 0 {
		return c.timeout()
	}
	return min(c.timeout(), max(ttl/2, minBound))
}

// start makes the contexts at the first use. c.mu is held.
func (c *Calls) start() {
	if c.own == nil {
		c.own, c.endOwn = context.WithCancel(context.Background())
		c.users, c.endUsers = context.WithCancel(c.own)
	}
}

// Begin begins a call of the user, which ends with ctx, after most, or with Close. Call End when it
// returns. The error is driver.ErrClosed, or that ctx has ended already.
func (c *Calls) Begin(ctx context.Context, most time.Duration) (*Call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return nil, driver.ErrClosed
	}
	if err := driver.ContextErr(ctx); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	c.start()
	c.calls.Add(1)
	call := c.newCall(ctx, most)
	stop := context.AfterFunc(c.users, call.cancel)
	cancel := call.cancel
	call.cancel = func() { stop(); cancel(); c.calls.Done() }
	return call, nil
}

func (c *Calls) newCall(ctx context.Context, most time.Duration) *Call {
	inner, cancel := context.WithTimeout(ctx, most)
	return &Call{Context: inner, calls: c, caller: ctx, cancel: cancel}
}

// Go runs f in a goroutine, unless the backend is closed. Its context ends when Close has waited for
// the users' calls and for what they left to undo.
func (c *Calls) Go(f func(ctx context.Context)) (started bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.start()
	if c.own.Err() != nil {
		return false
	}
	c.routines.Go(func() { f(c.own) })
	return true
}

// Closed reports whether Close was called.
func (c *Calls) Closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closing
}

// Close ends the users' calls, waits until they have returned, waits for what they left to undo as
// Undo says, ends the driver's goroutines, and waits for them. Close the client
// after it. It reports whether this was the first Close.
func (c *Calls) Close() (first bool) {
	c.mu.Lock()
	first = !c.closing
	c.closing = true
	c.start()
	c.mu.Unlock()
	c.endUsers()
	c.calls.Wait()
	c.undos.wait(c.timeout())
	c.endOwn()
	c.routines.Wait()
	return first
}

// A Call is one call under way. It is the context of its requests.
type Call struct {
	context.Context
	calls  *Calls
	caller context.Context
	cancel func()
}

// End ends the call.
func (c *Call) End() { c.cancel() }

// errTimeout says that a call took too long for the driver. It is no context.DeadlineExceeded: that
// is for the caller's context.
var errTimeout = errors.New("the server did not answer in time")

// Over returns why the call has ended, and nil if it goes on: an error that wraps that of the
// caller's context, driver.ErrClosed, or that the server did not answer in time.
func (c *Call) Over() error {
	switch {
	case driver.ContextErr(c.caller) != nil:
		return fmt.Errorf("%s: %w", c.calls.Name, driver.ContextErr(c.caller))
	case c.Err() == nil:
		return nil
	case c.calls.users.Err() != nil:
		return driver.ErrClosed
	}
	return fmt.Errorf("%s: %w", c.calls.Name, errTimeout)
}

// Failed returns the error of the call for the error of a request. The verdicts of package driver
// stay as they are; if the call is over, the error is that of Over; any other error is an unknown
// outcome. No error of a client library becomes one of the caller's context.
func (c *Call) Failed(err error) error {
	for _, verdict := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrRefused, driver.ErrInvalid, driver.ErrClosed} {
		if errors.Is(err, verdict) {
			return err
		}
	}
	if err == nil {
		return nil
	}
	if over := c.Over(); over != nil {
		return over
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("%s: %v", c.calls.Name, err) //nolint:errorlint // a time limit of the driver's own is not the caller's
	}
	return fmt.Errorf("%s: %w", c.calls.Name, err)
}
