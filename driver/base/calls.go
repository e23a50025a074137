package base

import (
	"context"
	"errors"
	"fmt"
	"math"
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
	undos    []undo
	undoing  chan struct{} // closed when nothing is left to undo; nil: nothing is
	patience *time.Timer   // of Close; every success starts it again
}

// Setup sets Name and Timeout, and checks the options that every driver has: the prefix, which must
// leave bytes for keys, and the timeout, which becomes a second if it is zero.
func (c *Calls) Setup(name, prefix string, timeout *time.Duration) error {
	if *timeout == 0 {
		*timeout = time.Second
	}
	if *timeout < 10*time.Millisecond {
		return driver.Invalid("call_timeout", "must be at least 10ms")
	}
	c.Name, c.Timeout = name, *timeout
	return CheckPrefix(prefix)
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
	call := &Call{calls: c, caller: ctx, by: time.Now().Add(most)}
	err := driver.ContextErr(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closing:
		return nil, driver.ErrClosed
	case err != nil:
		return nil, fmt.Errorf("%s: %w", c.Name, err)
	}
	c.start()
	c.calls.Add(1)
	call.users = c.users
	return call, nil
}

// BeginAcquire begins a call of Acquire. It checks the request, and bounds the call by Bound of the
// TTL, or, if the request waits, by its context alone.
func (c *Calls) BeginAcquire(ctx context.Context, info driver.Info, prefix string, req *driver.Request) (*Call, error) {
	if err := info.Check(prefix, req); err != nil {
		return nil, err
	}
	most := c.Bound(req.TTL)
	if req.Wait {
		most = math.MaxInt64
	}
	return c.Begin(ctx, most)
}

// Do is a call around f. Its error is that of Begin, or Failed for that of f.
func (c *Calls) Do(ctx context.Context, most time.Duration, f func(call *Call) error) error {
	call, err := c.Begin(ctx, most)
	if err != nil {
		return err
	}
	defer call.End()
	return call.Failed(f(call))
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
	if undoing := c.lastUndos(); undoing != nil {
		<-undoing
	}
	c.end()
	c.routines.Wait()
	return first
}

// end ends the driver's goroutines, and lets none begin.
func (c *Calls) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endOwn()
}

// A Call is one call under way. It is the context of its requests.
//
// That context has a timer and hangs on two others, which costs more than all else of a short call.
// So it is made when it is first needed: by Done or Value, or by Await if there is something to wait
// for.
type Call struct {
	calls  *Calls
	caller context.Context
	users  context.Context // nil for a call of the driver
	by     time.Time       // it ends

	mu     sync.Mutex
	ended  bool
	inner  context.Context // nil: it is not needed yet
	cancel func()
}

var _ context.Context = (*Call)(nil)

// context returns the call's context.
func (c *Call) context() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.inner != nil {
		return c.inner
	}
	inner, cancel := context.WithDeadline(c.caller, c.by)
	c.inner, c.cancel = inner, cancel
	if c.ended {
		cancel()
	} else if c.users != nil {
		stop := context.AfterFunc(c.users, cancel)
		c.cancel = func() { stop(); cancel() }
	}
	return inner
}

// Done returns a channel that is closed when the call has ended.
func (c *Call) Done() <-chan struct{} { return c.context().Done() }

// Value returns the value of the caller's context.
func (c *Call) Value(key any) any { return c.context().Value(key) }

// Deadline returns the call's time limit, or that of the caller's context if that is earlier.
func (c *Call) Deadline() (time.Time, bool) {
	if by, ok := c.caller.Deadline(); ok && by.Before(c.by) {
		return by, true
	}
	return c.by, true
}

// Err returns nil until the call has ended, and then an error of package context; Over says why.
func (c *Call) Err() error { return c.context().Err() }

// Caller returns the context of the caller, which has no time limit of the driver's.
func (c *Call) Caller() context.Context { return c.caller }

// Await receives from ch, or returns the error of Over if the call ends before.
func (c *Call) Await(ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	default:
	}
	select {
	case <-ch:
		return nil
	case <-c.Done():
		return c.Over()
	}
}

// End ends the call.
func (c *Call) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel()
	}
	if !c.ended && c.users != nil {
		c.calls.calls.Done()
	}
	c.ended = true
}

// errTimeout says that a call took too long for the driver. It is no context.DeadlineExceeded: that
// is for the caller's context.
var errTimeout = errors.New("the server did not answer in time")

// Over returns why the call has ended, and nil if it goes on: an error that wraps that of the
// caller's context, driver.ErrClosed, or that the server did not answer in time.
func (c *Call) Over() error {
	switch {
	case driver.ContextErr(c.caller) != nil:
		return fmt.Errorf("%s: %w", c.calls.Name, driver.ContextErr(c.caller))
	case c.users != nil && c.users.Err() != nil:
		return driver.ErrClosed
	case !time.Now().Before(c.by): // the timer of its context may be late
		return fmt.Errorf("%s: %w", c.calls.Name, errTimeout)
	}
	return nil
}

// Failed returns the error of the call for the error of a request. The verdicts of package driver
// stay as they are; if the call is over, the error is that of Over; any other error is an unknown
// outcome. No error of a client library becomes one of the caller's context. An error of Failed stays
// as it is.
func (c *Call) Failed(err error) error {
	if err == nil {
		return nil
	}
	if done := (*failedError)(nil); errors.As(err, &done) {
		return err
	}
	for _, verdict := range []error{driver.ErrHeld, driver.ErrLost, driver.ErrRefused, driver.ErrInvalid, driver.ErrClosed, errTimeout} {
		if errors.Is(err, verdict) {
			return err
		}
	}
	if over := c.Over(); over != nil {
		return over
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return &failedError{fmt.Errorf("%s: %v", c.calls.Name, err)} //nolint:errorlint // a time limit of the driver's own is not the caller's
	}
	return &failedError{fmt.Errorf("%s: %w", c.calls.Name, err)}
}

// Waited returns the error of a wait that ended with err after seen, who may be nil, was the holder.
// If err is that of the caller's context, the error is also seen. Any other err stays alone, even if
// the context has ended meanwhile: an outage and Close are no contention.
func Waited(err error, seen *driver.HeldError) error {
	ended := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if seen == nil || !ended || errors.Is(err, driver.ErrHeld) {
		return err
	}
	return fmt.Errorf("%w: %w", err, seen)
}

// A failedError is an unknown outcome that has the driver's name.
type failedError struct{ error }

func (e *failedError) Unwrap() error { return e.error }
