package dlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Do waits for the lock named key, calls fn under the lease's context, and releases the
// lock afterwards, also if fn panics. ctx bounds the waiting, and fn's context derives
// from it. The lease renews itself until fn has returned, unless opts say otherwise.
//
// Every error is one line and says where it came from:
//   - Before fn is called they are those of Client.Lock.
//   - If only fn fails, Do returns fn's error unchanged. If it is an error of this package,
//     for example of a TryLock in fn, Do wraps it in a *FuncError, which matches none of
//     ErrHeld, ErrUnavailable, ErrLost, ErrInvalid, ErrReleased and ErrClosed: only errors of
//     Do itself match these.
//   - If the lease is lost, fn's context is cancelled with a cause that is ErrLost. Do waits for
//     fn all the same, and returns an error that names the key and the cause: errors.As finds
//     an *Error. It does the same if the release failed, or the client was closed meanwhile.
//     It wraps fn's error, if there is one.
func Do(ctx context.Context, l Locker, key string, fn func(context.Context) error, opts ...LockOption) (err error) {
	lease, err := l.Lock(ctx, key, opts...)
	if err != nil {
		return err
	}
	ctx, cancel := lease.Context(ctx)
	defer cancel()
	defer func() {
		end := lease.Unlock()
		switch err = funcError(key, err); {
		case err == nil:
			err = end
		case end != nil:
			err = &doError{end: end, fn: err}
		}
	}()
	return fn(ctx)
}

// A FuncError wraps an error of this package that the function of Do returned, so that
// errors.Is does not take it for an error of Do itself. errors.Is still finds all other errors
// in it. Find it with errors.As; Err is the function's error.
type FuncError struct {
	Key string // of Do's lock
	Err error
	_   struct{}
}

// verdicts are the errors that only Do itself may return.
var verdicts = []error{ErrHeld, ErrUnavailable, ErrLost, ErrInvalid, ErrReleased, ErrMaxHold, ErrClosed}

// funcError wraps an error of fn that could be taken for one of Do.
func funcError(key string, err error) error {
	for _, v := range verdicts {
		if errors.Is(err, v) {
			return &FuncError{Key: key, Err: err}
		}
	}
	return err
}

// Error returns one line.
func (e *FuncError) Error() string {
	return oneLine(fmt.Sprintf("dlock: function under %s: %v", quoteKey(e.Key), e.Err))
}

// Is looks into Err for every error except those of this package.
func (e *FuncError) Is(target error) bool {
	for _, v := range verdicts {
		if target == v { //nolint:errorlint // identity is meant
			return false
		}
	}
	return errors.Is(e.Err, target)
}

// As looks into Err for every type except those of this package's errors.
func (e *FuncError) As(target any) bool {
	switch target.(type) {
	case **Error, **HeldError, **RefusedError, **InvalidError, **QuorumError:
		return false
	}
	return errors.As(e.Err, target)
}

// doError is the error of Do's lease, together with the error of its function.
type doError struct{ end, fn error }

// Error returns one line and states each fact once: a function that its context ended usually
// returns that context's cause.
func (e *doError) Error() string {
	end, fn := e.end.Error(), oneLine(e.fn.Error())
	var f *FuncError
	if errors.As(e.fn, &f) {
		fn = oneLine(f.Err.Error())
	}
	if strings.Contains(end, fn) {
		return end
	}
	return fmt.Sprintf("%s (the function returned: %s)", end, fn)
}

func (e *doError) Unwrap() []error { return []error{e.end, e.fn} }
