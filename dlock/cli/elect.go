package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

func newElect(c *console) *cobra.Command {
	j := &job{console: c, elect: true, conflict: exitHeld}
	observe := false
	cmd := &cobra.Command{
		Use:   "elect [flags] KEY -- COMMAND [ARG...]",
		Short: "Run a command while leading, and again after every loss",
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case !observe:
				return j.setArgs(cmd, args)
			case len(args) != 1:
				return failf(exitUsage, "--observe takes one key and no command: dlock elect --observe KEY")
			}
			return nil
		},
		ValidArgsFunction: completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			if observe {
				return observeLeader(cmd, j.url, args[0])
			}
			return j.run(cmd)
		},
	}
	j.commonFlags(cmd)
	cmd.Flags().BoolVar(&observe, "observe", false, "")
	return cmd
}

// observeLeader prints the holder of key, and each change, until a signal ends it.
func observeLeader(cmd *cobra.Command, url, key string) error {
	c, ctx, done, err := operator(cmd, url)
	if err != nil {
		return err
	}
	defer done()
	for last := "unseen"; ; {
		h, err := leader(ctx, c, key)
		seen, line := fmt.Sprint(h.Owner, " ", h.Fence), "nobody leads"
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, dlock.ErrInvalid), err != nil && !waitingHelps(err): // it will not go away by itself
			return operatorError(err)
		case err != nil: // an outage is told once
			seen, line = "unknown", "unknown: "+oneLine(err.Error())
		case h.Owner != "" || h.Fence != 0:
			line = holders([]driver.Holder{h}) + " leads"
			if h.Fence != 0 {
				line += fmt.Sprintf(" with token %d", h.Fence)
			}
		}
		if seen != last {
			last = seen
			fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", time.Now().Format(time.RFC3339), line)
		}
		select {
		case <-time.After(watchInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// leader returns the holder of key that has held it the longest; the zero Holder: nobody does.
func leader(ctx context.Context, c *dlock.Client, key string) (h driver.Holder, err error) {
	s, err := c.Lookup(ctx, key)
	if err != nil {
		return h, err
	}
	for i, other := range s.Holders {
		if i == 0 || other.Fence < h.Fence {
			h = other
		}
	}
	return h, nil
}
