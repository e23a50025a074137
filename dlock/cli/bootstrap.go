package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/quorum"
)

// bootstrapTimeout bounds the requests to the servers.
const bootstrapTimeout = 30 * time.Second

func newBootstrap() *cobra.Command {
	var url string
	var say statement
	var sql bool
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "Declare that the lock servers are new, or show or change their terms",
		Long: `State that the servers of the locks are new, so that their restart guard does not keep
them out: a server that has no memory of locks may have lost it, and otherwise does not
vote until every lock that it may have forgotten has ended. All servers have to answer, and none
may remember locks.

With --nodes state instead that the servers in the URL are the nodes of the quorum from
now on, and more or fewer than they were. No lock is granted for one restart guard, in
which the leases of clients with the old list end; those clients are refused from now
on. Give all clients the new list then.

With --terms the nodes of a quorum hold all clients to the options in the URL from now on:
restart_guard (the longest TTL), clock_allowance and drift_percent. Every node must answer.
What protects grows at once, and what permits shrinks at once; the rest follows when every lease
has ended that was granted before, and the report says when. Clients need not be stopped. Give
them the URL before, if a permission shrinks, and afterwards, if one grows. If a node fails
meanwhile nothing is unsafe: run the command again.

With --dry-run change nothing, and show what each server remembers, its terms, and those that it
is changing to; with --nodes or --terms also say whether that could be done.

With --sql change nothing, and print the statement that an administrator of the database runs
for the role in the URL: it makes what the locks need, and grants no more.

The URL is chosen as by dlock run; for --nodes and --terms it is the new one.`,
		Example: `  dlock bootstrap --url redlock:redis://a:6379,redis://b:6379,redis://c:6379
  dlock bootstrap --dry-run --url redlock:redis://a:6379,redis://b:6379,redis://c:6379
  dlock bootstrap --terms --url redlock:redis://a:6379,redis://b:6379,redis://c:6379,restart_guard=2m
  DLOCK_URL_FILE=/etc/dlock.url dlock bootstrap --nodes`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			u, err := chooseURL(url, cmd.Flags().Changed("url"))
			if err != nil {
				return err
			}
			if sql {
				return printSetup(cmd.OutOrStdout(), u)
			}
			return bootstrap(cmd.Context(), cmd.OutOrStdout(), u, say)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	urlFlag(cmd, &url)
	f.BoolVar(&say.nodes, "nodes", false, "change the number of nodes to that in the URL")
	f.BoolVar(&say.terms, "terms", false, "make the options in the URL the nodes' terms for all clients")
	f.BoolVar(&say.dryRun, "dry-run", false, "show what the servers remember, and change nothing")
	f.BoolVar(&sql, "sql", false, "print the SQL that prepares the database for the role in the URL")
	cmd.MarkFlagsMutuallyExclusive("nodes", "terms", "sql")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "sql")
	return cmd
}

// printSetup prints the SQL that prepares a database. It asks no server.
func printSetup(out io.Writer, url string) error {
	c, err := dlock.OpenURL(url, dlock.WithLogger(nil))
	if err != nil {
		return exitErrorOf(err)
	}
	defer c.Close() //nolint:errcheck // nothing is held
	statement := setupSQL(c)
	if statement == "" {
		return failf(exitUsage, "%s needs no SQL: there is nothing to prepare", c.Info().Name)
	}
	_, err = fmt.Fprintln(out, statement+";")
	return err
}

// setupSQL returns the SQL that prepares the backend's database; empty: it has none.
func setupSQL(c *dlock.Client) string {
	if i, ok := c.Inspector(); ok {
		if db, ok := i.(interface{ SetupSQL(role string) string }); ok {
			return db.SetupSQL("")
		}
	}
	return ""
}

// A statement is the one that the flags ask for.
type statement struct{ nodes, terms, dryRun bool }

func (s statement) bootstrap() *quorum.Bootstrap {
	b := &quorum.Bootstrap{DryRun: s.dryRun}
	switch {
	case s.nodes:
		b.Statement = quorum.StateNodes
	case s.terms:
		b.Statement = quorum.StateTerms
	}
	return b
}

// bootstrap makes the statement, and prints its effect and the outcome on each server.
func bootstrap(ctx context.Context, out io.Writer, url string, say statement) error {
	c, err := dlock.OpenURL(url, dlock.WithLogger(nil)) // the outcome says it
	if err != nil {
		return exitErrorOf(err)
	}
	defer c.Close() //nolint:errcheck // nothing is held
	const nothing = "%s has no restart guard%s: there is nothing to bootstrap"
	admin, ok := c.GuardAdmin()
	switch {
	case !ok && setupSQL(c) != "":
		return failf(exitUsage, nothing+" (--sql prints what the database needs)", c.Info().Name, "")
	case !ok:
		return failf(exitUsage, nothing, c.Info().Name, "")
	}
	ctx, stop := signal.NotifyContext(ctx, endSignals...)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	r, err := admin.Bootstrap(ctx, say.bootstrap())
	if err == nil && r.Memory == quorum.MemoryUnguarded {
		return failf(exitUsage, nothing, c.Info().Name, " with this URL (restart_guard=30s sets one on Redis and Valkey)")
	}
	if r != nil && (say.dryRun || say.terms || err != nil) {
		show(out, r, say)
	}
	var refused *driver.RefusedError
	switch {
	case errors.As(err, &refused):
		return failf(exitUnavailable, "%v", err)
	case err != nil:
		return operatorError(err)
	case say.dryRun:
	case say.terms:
		fmt.Fprintln(out, "the terms are set: terms that permit more apply when every lease granted before has ended (dlock bootstrap --dry-run shows when)")
	case say.nodes:
		fmt.Fprintln(out, "the number of nodes is set: no lock is granted for one restart guard; give all clients this list of nodes now")
	default:
		fmt.Fprintln(out, "the servers count as new: they vote at once")
	}
	return nil
}

// show prints each server's memory, and the outcome on it.
func show(out io.Writer, r *quorum.MemoryReport, say statement) {
	if r.Nodes == nil {
		fmt.Fprintln(out, remembers(r))
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
		fmt.Fprintf(out, "%s: %s\n", driver.Printable(n.Node), line)
	}
	if r.Nodes != nil && (say.terms || say.nodes) {
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
