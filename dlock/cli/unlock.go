package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// An unlockCommand is one run of "dlock unlock".
type unlockCommand struct {
	url     string
	token   uint64
	session string
}

func newUnlock() *cobra.Command {
	u := &unlockCommand{}
	cmd := &cobra.Command{
		Use:   "unlock [flags] KEY --token N",
		Short: "Take a lock away from its holder",
		Long: `Take the lock KEY away from the holder with token N, which dlock status shows. If the holder
has another token by now, change nothing, say who has the lock, and exit with 75.

The holder learns of it at its next renewal, within a third of its TTL, or within a second on
file; dlock run then kills the command. A process that is stopped or hangs learns it when it
runs again. Until then two may work at the same time, and only a store that checks tokens refuses
the old one. So look first whether the holder can be ended instead.

PostgreSQL knows sessions and no tokens: give --session instead, with what dlock status KEY shows.
The session is ended, and every other lock on it is freed as well.

The URL is chosen as by dlock run.

` + exitHelp,
		Example: `  dlock status nightly
  dlock unlock nightly --token 1795363201000000
  dlock unlock nightly --session 6741b2c1.3039     # PostgreSQL`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return failf(exitUsage, "unlock takes one key: dlock unlock KEY --token N")
			case !cmd.Flags().Changed("token") && u.session == "":
				return failf(exitUsage, "--token is missing: %s shows the holder's", driver.CommandLine("dlock", "status", args[0]))
			}
			return nil
		},
		ValidArgsFunction: completeKeys,
		RunE:              func(cmd *cobra.Command, args []string) error { return u.run(cmd, args[0]) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	urlFlag(cmd, &u.url)
	f.Uint64Var(&u.token, "token", 0, "the holder's token `N`")
	f.StringVar(&u.session, "session", "", "the holder's session `ID`, on PostgreSQL")
	cmd.MarkFlagsMutuallyExclusive("token", "session")
	_ = cmd.RegisterFlagCompletionFunc("token", completeHolders(func(h *dlock.Holder) string { return number10(h.Fence).text })) // the flags exist
	_ = cmd.RegisterFlagCompletionFunc("session", completeHolders(func(h *dlock.Holder) string { return h.Session }))
	return cmd
}

func (u *unlockCommand) run(cmd *cobra.Command, key string) error {
	c, ctx, done, err := operator(cmd, u.url)
	if err != nil {
		return err
	}
	defer done()
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	err = c.Break(ctx, key, dlock.Holder{Fence: u.token, Session: u.session})
	if errors.Is(err, dlock.ErrInvalid) && u.session == "" {
		err = u.needsSession(ctx, c, key, err)
	}
	if err != nil {
		return operatorError(err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s was taken away from its holder\n", driver.Printable(key))
	return err
}

// needsSession says how to take the lock away if the server knows sessions and no tokens. invalid
// is the answer to a token.
func (u *unlockCommand) needsSession(ctx context.Context, c *dlock.Client, key string, invalid error) error {
	s, err := c.Lookup(ctx, key)
	switch {
	case err != nil:
		return err
	case len(s.Holders) == 0:
		return failf(exitUsage, "%s: nobody holds the lock", c.Info().Name)
	case s.Holders[0].Session == "":
		return invalid
	}
	return failf(exitUsage, "%s knows sessions and no tokens; to take the lock from %s: %s", c.Info().Name,
		driver.Printable(s.Holders[0].Owner), driver.CommandLine("dlock", "unlock", key, "--session", s.Holders[0].Session))
}

// completeHolders completes a flag with the value that name returns for each holder of the key.
func completeHolders(name func(*dlock.Holder) string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		const nothing = cobra.ShellCompDirectiveNoFileComp
		if len(args) != 1 {
			return nil, nothing
		}
		c, ctx, done, err := completer(cmd)
		if err != nil {
			return nil, nothing
		}
		defer done()
		s, err := c.Lookup(ctx, args[0])
		if err != nil {
			return nil, nothing
		}
		var all []string
		for i := range s.Holders {
			all = offer(all, name(&s.Holders[i]), holders(s.Holders[i:i+1]))
		}
		return all, nothing
	}
}
