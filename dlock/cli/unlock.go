package cli

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

func newUnlock(c *call) func() error {
	var h driver.Holder
	c.withURL()
	c.number(&h.Fence, "token", 0, math.MaxUint64)
	c.flags.StringVar(&h.Session, "session", "", "")
	c.keys = true
	c.holders = map[string]func(driver.Holder) string{
		"token":   func(h driver.Holder) string { return number10(h.Fence) },
		"session": func(h driver.Holder) string { return h.Session },
	}
	return func() error {
		if err := errors.Join(c.want(1, 1), c.exclusive("token", "session")); err != nil {
			return err
		}
		key := c.args[0]
		if !c.given["token"] && h.Session == "" {
			return failf(exitUsage, "--token is missing: %s shows the holder's", printable.CommandLine("dlock", "status", key))
		}
		return c.once(func(ctx context.Context, client *dlock.Client) error {
			admin, err := optional[driver.Admin](client, "cannot take a lock away")
			if err == nil {
				err = admin.Break(ctx, key, h)
			}
			if err != nil {
				return notTaken(ctx, client, key, h, err)
			}
			fmt.Fprintf(c.out, "%s was taken away from its holder\n", printable.Text(key))
			return nil
		})
	}
}

// notTaken adds to the error of Break who holds the lock, if it is not the holder h, or h names no
// session where the server knows nothing else.
func notTaken(ctx context.Context, c *dlock.Client, key string, h driver.Holder, err error) error {
	lost := errors.Is(err, driver.ErrLost)
	if !lost && !errors.Is(err, driver.ErrInvalid) {
		return err
	}
	s, lookErr := c.Lookup(ctx, key)
	switch {
	case lookErr != nil && lost:
		return err
	case lookErr != nil:
		return lookErr
	case len(s.Holders) == 0:
		return fmt.Errorf("%w: nobody holds the lock", driver.ErrLost)
	case !lost && (s.Holders[0].Session == "" || h.Session != ""):
		return err
	case lost:
		return fmt.Errorf("%w: no holder has %s; %s holds the lock with %s", err, mark(h), holders(s.Holders[0]), mark(s.Holders[0]))
	}
	return failf(exitUsage, "%s knows sessions and no tokens; to take the lock from %s: %s", c.Backend().Info().Name,
		s.Holders[0].Owner, printable.CommandLine("dlock", "unlock", key, "--session", s.Holders[0].Session))
}
