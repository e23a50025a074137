package zookeeper

import (
	"context"
	"errors"
	"fmt"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
)

var (
	// errEnd says that no larger token can be given.
	errEnd = errors.New("the key has used up its tokens")
	// errGone says that the call's entry was removed.
	errGone = errors.New("our entry is gone")
	// errExpired says that the servers have ended the session and deleted its entries, or that none
	// took up the session for longer than it can last.
	errExpired = errors.New("the session has expired")
	// errUnused says that the session ended because nobody used it.
	errUnused = errors.New("the session was not used for long")
)

// definite reports whether err is a server's answer that says that the request had no effect, and that
// it would have none if it were repeated. An error of the server's own says neither, nor does one for a
// request that it did not pass on: because it had too many, or ended the connection with its user.
func definite(err error) bool {
	var code serverError
	if !errors.As(err, &code) {
		return false
	}
	switch code {
	case errAuthFailed, errRequestTimeout, errThrottled:
		return false
	}
	return code <= firstVerdict || code == errBadArguments
}

// failed turns the client's error into that of a call: a refusal, or an unknown outcome. The
// caller names the operation. s is the session that was used, or nil.
func (b *Backend) failed(c *base.Call, s *session, err error) error {
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	switch {
	case errors.Is(err, errEnd):
		err = &driver.RefusedError{Reason: "the fencing tokens of a key under " + b.opt.Path + " are at their end: use another path"}
	case errors.Is(err, errNoAuth), errors.Is(err, errAuthFailed), errors.Is(err, errInvalidACL):
		err = &driver.RefusedError{Reason: "zookeeper refuses: check the user, the password, and the access control list of " + b.opt.Path, Err: err}
	}
	if late {
		err = errors.New("no server answered in time") // a bound of the driver's own
	}
	err = c.Failed(err)
	if s != nil && late && c.Caller().Err() == nil {
		if why := s.why(); why != "" {
			return fmt.Errorf("%w: %s", err, why)
		}
	}
	return err
}
