package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
)

func newElect(c *console) *cobra.Command {
	j := &job{console: c, wait: forever, conflict: exitHeld, elect: true}
	observe := false
	cmd := &cobra.Command{
		Use:   "elect [flags] KEY -- COMMAND [ARG...]",
		Short: "Run a command while leading, and again after every loss",
		Long: `Run COMMAND on one host at a time: wait until this dlock leads, which is to hold the lock
KEY, run COMMAND, and stop it if the leadership is lost, in time and with all that it started.
Then wait to lead again. Where the backend keeps a queue, candidates wait in it, so that the end of a
leader wakes one of them, and not all.

COMMAND resigns by its end: dlock releases the lock and exits with COMMAND's exit code. So
does a signal: dlock elect passes INT, TERM, HUP and QUIT on to COMMAND, and exits when
COMMAND has ended. With --max-hold leaders take turns.

With --observe do not lead: print a line whenever another holder leads, or nobody, until
you press ctrl-C.

The URL, COMMAND's environment and how it is stopped are those of dlock run (see dlock help
run).

` + exitHelp,
		Example: `  dlock elect scheduler -- /usr/local/bin/scheduler
  dlock elect --observe scheduler`,
		Args: func(cmd *cobra.Command, args []string) error {
			if observe {
				if len(args) != 1 {
					return failf(exitUsage, "--observe takes one key and no command: dlock elect --observe KEY")
				}
				return nil
			}
			return j.setArgs(cmd, args)
		},
		ValidArgsFunction: completeKeys,
		RunE: func(cmd *cobra.Command, args []string) error {
			if observe {
				return observeLeader(cmd, j.url, args[0])
			}
			j.urlGiven = cmd.Flags().Changed("url")
			return j.run(cmd.Flags().Changed("ttl"))
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	urlFlag(cmd, &j.url)
	f.Var(&j.ttl, "ttl", "how long the lease lasts unless dlock renews it, 4s at least (default 10s; none on file)")
	f.Var(&j.maxHold, "max-hold", "stop leading after this long, and wait to lead again")
	f.BoolVar(&j.noWait, "no-wait-children", false, "resign when the command ends, even if it leaves processes behind")
	f.StringVar(&j.label, "label", "", "the `NAME` that others see as the leader (default host/pid)")
	f.BoolVar(&observe, "observe", false, "do not lead; print the leader")
	f.BoolVar(&j.verbose, "verbose", false, "say on stderr where dlock locks and what happens")
	return cmd
}

// observeLeader prints the holder of key, and each change, until a signal ends it.
func observeLeader(cmd *cobra.Command, url, key string) error {
	c, ctx, done, err := operator(cmd, url)
	if err != nil {
		return err
	}
	defer done()
	var failed error
	for h, err := range c.Observe(ctx, key) {
		failed = err
		line := "nobody leads"
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil && errors.Is(err, dlock.ErrInvalid):
			return operatorError(err)
		case err != nil:
			line = "unknown: " + oneLine(err.Error())
		case h.Owner != "" || h.Fence != 0:
			line = holders([]dlock.Holder{h}) + " leads"
			if h.Fence != 0 {
				line += fmt.Sprintf(" with token %d", h.Fence)
			}
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "%s %s\n", time.Now().Format(time.RFC3339), line); err != nil {
			return err
		}
	}
	if failed != nil && ctx.Err() == nil { // it will not go away by itself
		return operatorError(failed)
	}
	return nil
}
