package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// This file has the calls for operators of a client's backend, with errors as those of the client.

// failed makes the error of a call for operators.
func failed(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &dlock.Error{Op: op, Key: key, Attempts: 1, Err: err}
}

// inspect calls f with the backend's Inspector.
func inspect(c *dlock.Client, op, key string, f func(driver.Inspector) error) error {
	i, ok := c.Backend().(driver.Inspector)
	if !ok {
		return failed(op, key, driver.Invalid(c.Backend().Info().Name, "cannot tell who holds what"))
	}
	return failed(op, key, f(i))
}

// list calls f with the held keys that begin with prefix, until it returns false.
func list(ctx context.Context, c *dlock.Client, prefix string, f func(*driver.State) bool) error {
	return inspect(c, "list", prefix, func(i driver.Inspector) error { return i.List(ctx, prefix, f) })
}

// check examines the deployment.
func check(ctx context.Context, c *dlock.Client) (found []driver.Diagnostic, err error) {
	err = inspect(c, "check", "", func(i driver.Inspector) (err error) {
		found, err = i.Check(ctx)
		return err
	})
	return found, err
}

// breakLock takes the lock named key away from the holder h. If another one has the key, the
// error is ErrLost and names it.
func breakLock(ctx context.Context, c *dlock.Client, key string, h driver.Holder) error {
	a, ok := c.Backend().(driver.Admin)
	if !ok {
		return failed("break", key, driver.Invalid(c.Backend().Info().Name, "cannot take a lock away"))
	}
	err := a.Break(ctx, key, h)
	if errors.Is(err, driver.ErrLost) {
		err = fmt.Errorf("%w: no lock with %s", driver.ErrLost, mark(h))
		if s, lookErr := c.Lookup(ctx, key); lookErr == nil && len(s.Holders) == 0 {
			err = fmt.Errorf("%w; nobody holds it", err)
		} else if lookErr == nil {
			err = fmt.Errorf("%w; it is held by %s with %s", err, printable.Text(s.Holders[0].Owner), mark(s.Holders[0]))
		}
	}
	return failed("break", key, err)
}

// mark names a holder by what Break compares.
func mark(h driver.Holder) string {
	if h.Session != "" {
		return "session " + printable.Text(h.Session)
	}
	return fmt.Sprintf("token %d", h.Fence)
}
