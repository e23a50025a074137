package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

func newUnlock() *cobra.Command {
	var (
		url string
		h   driver.Holder
	)
	cmd := &cobra.Command{
		Use:   "unlock [flags] KEY",
		Short: "Take a lock away from its holder",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case len(args) != 1:
				return failf(exitUsage, "unlock takes one key: dlock unlock KEY --token N")
			case !cmd.Flags().Changed("token") && h.Session == "":
				return failf(exitUsage, "--token is missing: %s shows the holder's", printable.CommandLine("dlock", "status", args[0]))
			}
			return exclusive(cmd, "token", "session")
		},
		ValidArgsFunction: completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			return operate(cmd, url, operatorTimeout, func(ctx context.Context, c *dlock.Client) error {
				err := breakLock(ctx, c, args[0], h)
				if errors.Is(err, dlock.ErrInvalid) && h.Session == "" {
					err = needsSession(ctx, c, args[0], err)
				}
				if err != nil {
					return err
				}
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s was taken away from its holder\n", printable.Text(args[0]))
				return err
			})
		},
	}
	f := cmd.Flags()
	urlFlag(cmd, &url)
	f.Uint64Var(&h.Fence, "token", 0, "")
	f.StringVar(&h.Session, "session", "", "")
	_ = cmd.RegisterFlagCompletionFunc("token", completeHolders(func(h driver.Holder) string { return number10(h.Fence) })) // the flags exist
	_ = cmd.RegisterFlagCompletionFunc("session", completeHolders(func(h driver.Holder) string { return h.Session }))
	return cmd
}

// needsSession says how to take the lock away if the server knows sessions and no tokens. invalid
// is the answer to a token.
func needsSession(ctx context.Context, c *dlock.Client, key string, invalid error) error {
	s, err := c.Lookup(ctx, key)
	switch {
	case err != nil:
		return err
	case len(s.Holders) == 0:
		return failf(exitUsage, "%s: nobody holds the lock", c.Backend().Info().Name)
	case s.Holders[0].Session == "":
		return invalid
	}
	return failf(exitUsage, "%s knows sessions and no tokens; to take the lock from %s: %s", c.Backend().Info().Name,
		s.Holders[0].Owner, printable.CommandLine("dlock", "unlock", key, "--session", s.Holders[0].Session))
}

// completeHolders completes a flag with the value that name returns for each holder of the key.
func completeHolders(name func(driver.Holder) string) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return completer(func(ctx context.Context, c *dlock.Client, args []string, _ string, found *offers) error {
		if len(args) != 1 {
			return nil
		}
		s, err := c.Lookup(ctx, args[0])
		if err != nil {
			return err
		}
		for i, h := range s.Holders {
			found.add(name(h), holders(s.Holders[i:i+1]))
		}
		return nil
	})
}
