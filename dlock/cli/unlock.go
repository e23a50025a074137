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
	return func() error {
		if err := errors.Join(c.want(1, 1), c.exclusive("token", "session")); err != nil {
			return err
		}
		key := c.args[0]
		shows := printable.CommandLine("dlock", "status", key) + " shows the holder's"
		if !c.given["token"] && h.Session == "" {
			return failf(exitUsage, "--token is missing: %s", shows)
		}
		return c.once(func(ctx context.Context, client *dlock.Client) error {
			admin, err := optional[driver.Admin](client, "cannot take a lock away")
			if err == nil {
				h.Fence = lastOfRange(ctx, client, key, h.Fence)
				err = admin.Break(ctx, key, h)
			}
			switch {
			case errors.Is(err, driver.ErrLost):
				return failf(exitHeld, "no holder has this token or session: nothing was changed (%s)", shows)
			case err != nil:
				return err
			}
			fmt.Fprintf(c.out, "%s was taken away from its holder\n", printable.Text(key))
			return nil
		})
	}
}

// lastOfRange returns the last token of the holder whose tokens include this one: a client gives the
// others to leases that it passes the lock on to. Without such a holder it returns the token.
func lastOfRange(ctx context.Context, client *dlock.Client, key string, token uint64) uint64 {
	state, err := client.Lookup(ctx, key)
	if err != nil {
		return token // Break says what is wrong
	}
	for i := range state.Holders {
		if h := &state.Holders[i]; token <= h.Fence && token+uint64(h.Tokens) > h.Fence {
			return h.Fence
		}
	}
	return token
}
