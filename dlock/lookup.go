package dlock

import (
	"context"
	"errors"
	"time"

	"github.com/redlock-go/redlock/driver"
)

// Lookup returns the state of key: its holders, their tokens and remaining times, and how many
// wait, as far as the backend can tell. A key that nobody holds has no Holders. ctx
// bounds the call, which takes one round trip on most backends. It takes no lock and never
// delays one.
//
// Errors are an *Error. It matches errors.ErrUnsupported and ErrInvalid if the backend cannot
// tell, ErrInvalid if the key is invalid, ErrClosed if the client is closed, and ErrUnavailable
// after any other failure.
func (c *Client) Lookup(ctx context.Context, key string) (*driver.State, error) {
	s, err := c.lookup(ctx, key)
	if err != nil {
		return nil, c.newError(ctx, &request{op: "lookup", name: key, attempts: 1, began: time.Now()}, err)
	}
	return s, nil
}

func (c *Client) lookup(ctx context.Context, key string) (*driver.State, error) {
	i, ok := c.backend.(driver.Inspector)
	switch {
	case !ok:
		return nil, &unsupportedError{c.info.Name + " cannot tell who holds what"}
	case key == "":
		return nil, driver.Invalid("key", "is empty")
	case len(c.prefix)+len(key) > driver.MaxKey:
		return nil, driver.Invalid("key", "has %d bytes with its prefix, the limit is %d", len(c.prefix)+len(key), driver.MaxKey)
	}
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.calls.Done()
	return i.Lookup(ctx, key)
}

// unsupportedError matches errors.ErrUnsupported and ErrInvalid.
type unsupportedError struct{ msg string }

func (e *unsupportedError) Error() string { return e.msg }
func (e *unsupportedError) Is(target error) bool {
	return target == errors.ErrUnsupported || target == ErrInvalid
}
