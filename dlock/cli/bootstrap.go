package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
	"github.com/redlock-go/redlock/driver/quorum"
)

// A bootstrapCommand is one run of "dlock bootstrap".
type bootstrapCommand struct {
	url                       string
	nodes, terms, dryRun, sql bool
}

func newBootstrap() *cobra.Command {
	b := &bootstrapCommand{}
	cmd := &cobra.Command{
		Use:   "bootstrap [flags]",
		Short: "Declare that the lock servers are new, or show or change their terms",
		Args: func(cmd *cobra.Command, args []string) error {
			return errors.Join(noArgs(cmd, args), exclusive(cmd, "nodes", "terms", "sql"), exclusive(cmd, "dry-run", "sql"))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			return operate(cmd, b.url, operatorTimeout, func(ctx context.Context, c *dlock.Client) error {
				return b.run(ctx, c, cmd.OutOrStdout())
			})
		},
	}
	f := cmd.Flags()
	urlFlag(cmd, &b.url)
	f.BoolVar(&b.nodes, "nodes", false, "")
	f.BoolVar(&b.terms, "terms", false, "")
	f.BoolVar(&b.dryRun, "dry-run", false, "")
	f.BoolVar(&b.sql, "sql", false, "")
	return cmd
}

// setupSQL returns the SQL that prepares the backend's database; empty: it has none.
func setupSQL(c *dlock.Client) string {
	if i, ok := c.Backend().(driver.Inspector); ok {
		if db, ok := i.(interface{ SetupSQL(role string) string }); ok {
			return db.SetupSQL("")
		}
	}
	return ""
}

// run makes the statement, and prints its effect and the outcome on each server.
func (b *bootstrapCommand) run(ctx context.Context, c *dlock.Client, out io.Writer) error {
	sql := setupSQL(c)
	if b.sql {
		if sql == "" {
			return failf(exitUsage, "%s needs no SQL: there is nothing to prepare", c.Backend().Info().Name)
		}
		_, err := fmt.Fprintln(out, sql+";")
		return err
	}
	const nothing = "%s has no restart guard%s: there is nothing to bootstrap%s"
	admin, ok := c.Backend().(quorum.Admin)
	if !ok {
		hint := ""
		if sql != "" {
			hint = " (--sql prints what the database needs)"
		}
		return failf(exitUsage, nothing, c.Backend().Info().Name, "", hint)
	}
	r, err := admin.Bootstrap(ctx, &quorum.Bootstrap{DryRun: b.dryRun, Statement: b.statement()})
	if err == nil && r.Memory == quorum.MemoryUnguarded {
		return failf(exitUsage, nothing, c.Backend().Info().Name, " with this URL (restart_guard=30s sets one on Redis and Valkey)", "")
	}
	if r != nil && (b.dryRun || b.terms || err != nil) {
		b.show(out, r)
	}
	switch {
	case errors.Is(err, driver.ErrRefused):
		return failf(exitUnavailable, "%v", err)
	case err != nil:
		return err
	case b.dryRun:
	case b.terms:
		fmt.Fprintln(out, "the terms are set: terms that permit more apply when every lease granted before has ended (dlock bootstrap --dry-run shows when)")
	case b.nodes:
		fmt.Fprintln(out, "the number of nodes is set: no lock is granted for one restart guard; give all clients this list of nodes now")
	default:
		fmt.Fprintln(out, "the servers count as new: they vote at once")
	}
	return nil
}

func (b *bootstrapCommand) statement() quorum.Statement {
	switch {
	case b.nodes:
		return quorum.StateNodes
	case b.terms:
		return quorum.StateTerms
	}
	return quorum.StateNew
}

// show prints each server's memory, and the outcome on it.
func (b *bootstrapCommand) show(out io.Writer, r *quorum.MemoryReport) {
	if r.Nodes == nil {
		fmt.Fprintln(out, remembers(r))
		return
	}
	for _, n := range r.Nodes {
		line := "no answer"
		if n.Report != nil {
			line = remembers(n.Report)
		}
		switch {
		case n.Err != nil:
			line += "; failed: " + oneLine(n.Err.Error())
		case n.Done:
			line += "; set"
		}
		fmt.Fprintf(out, "%s: %s\n", printable.Text(n.Node), line)
	}
	if b.terms || b.nodes {
		fmt.Fprintf(out, "this URL: %s\n", terms(r.Terms))
	}
}

// remembers describes what one server remembered.
func remembers(r *quorum.MemoryReport) string {
	s := r.Memory.String()
	if r.Terms == nil {
		return s
	}
	s += ": " + terms(r.Terms)
	switch {
	case r.Next == nil:
	case r.From.IsZero():
		s += "; to become " + terms(r.Next) + " when all nodes know (run dlock bootstrap --terms again)"
	default:
		s += "; to become " + terms(r.Next) + " in " + max(0, r.From.Sub(r.Clock)).Round(time.Second).String()
	}
	return s
}

func terms(t *quorum.Terms) string {
	return fmt.Sprintf("%d nodes, restart_guard %v, clock_allowance %v, drift_percent %d", t.N, t.Guard, t.Allowance, t.Drift)
}
