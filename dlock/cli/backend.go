package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	mathrand "math/rand/v2"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// This file has the calls for operators of a client's backend, with errors as those of the client.

// unsupported says what the client's backend cannot do.
func unsupported(c *dlock.Client, what string) error {
	return driver.Invalid(c.Backend().Info().Name, "%s", what)
}

// failed makes the error of a call for operators.
func failed(op, key string, err error) error {
	if err == nil {
		return nil
	}
	return &dlock.Error{Op: op, Key: key, Attempts: 1, Err: err}
}

// list returns an iterator over the held keys that begin with prefix. A failure is the last pair.
func list(ctx context.Context, c *dlock.Client, prefix string) iter.Seq2[*driver.State, error] {
	return func(yield func(*driver.State, error) bool) {
		i, ok := c.Backend().(driver.Inspector)
		if !ok {
			yield(nil, failed("list", prefix, unsupported(c, "cannot tell who holds what")))
			return
		}
		more := true
		err := i.List(ctx, prefix, func(s *driver.State) bool {
			more = more && yield(s, nil)
			return more
		})
		if err != nil && more {
			yield(nil, failed("list", prefix, err))
		}
	}
}

// check examines the deployment.
func check(ctx context.Context, c *dlock.Client) ([]driver.Diagnostic, error) {
	i, ok := c.Backend().(driver.Inspector)
	if !ok {
		return nil, failed("check", "", unsupported(c, "cannot tell who holds what"))
	}
	found, err := i.Check(ctx)
	return found, failed("check", "", err)
}

// breakLock takes the lock named key away from the holder h. If another one has the key, the
// error is ErrLost and names it.
func breakLock(ctx context.Context, c *dlock.Client, key string, h driver.Holder) error {
	a, ok := c.Backend().(driver.Admin)
	if !ok {
		return failed("break", key, unsupported(c, "cannot take a lock away"))
	}
	err := a.Break(ctx, key, h)
	if errors.Is(err, driver.ErrLost) {
		err = saw(ctx, c, key, h)
	}
	return failed("break", key, err)
}

// saw names the holder of the key, which is not the one that was asked for.
func saw(ctx context.Context, c *dlock.Client, key string, asked driver.Holder) error {
	name := func(h driver.Holder) string {
		if h.Session != "" {
			return "session " + printable.Text(h.Session)
		}
		return fmt.Sprintf("token %d", h.Fence)
	}
	other := ""
	if s, err := c.Lookup(ctx, key); err == nil && len(s.Holders) == 0 {
		other = "; nobody holds it"
	} else if err == nil {
		other = fmt.Sprintf("; it is %v with %s", &driver.HeldError{Holder: s.Holders[0].Owner}, name(s.Holders[0]))
	}
	return fmt.Errorf("%w: no lock with %s%s", driver.ErrLost, name(asked), other)
}

// observe returns an iterator over the holders of key: the present one, and then each new one, told
// apart by owner and token, by one look a second. The zero Holder says that nobody holds the key.
// An outage is yielded once; an error that waiting does not help ends the iteration.
func observe(ctx context.Context, c *dlock.Client, key string) iter.Seq2[driver.Holder, error] {
	return func(yield func(driver.Holder, error) bool) {
		var last driver.Holder
		known, failing := false, false
		for {
			s, err := c.Lookup(ctx, key)
			var h driver.Holder
			if err == nil {
				for i, other := range s.Holders {
					if i == 0 || other.Fence < h.Fence {
						h = other
					}
				}
			}
			news := err == nil && (!known || failing || h.Owner != last.Owner || h.Fence != last.Fence) || err != nil && !failing
			if err == nil {
				last, known = h, true
			}
			failing = err != nil
			switch {
			case ctx.Err() != nil:
				return
			case news && !yield(h, err), errors.Is(err, dlock.ErrInvalid), err != nil && !waitingHelps(err):
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Second/2 + mathrand.N(time.Second/2)):
			}
		}
	}
}
