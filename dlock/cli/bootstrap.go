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
)

// bootstrapTimeout bounds what is asked of the servers.
const bootstrapTimeout = 30 * time.Second

func newBootstrap() *cobra.Command {
	var url string
	var nodes, sql bool
	cmd := &cobra.Command{
		Use:   "bootstrap",
		Short: "State that the servers of the locks are new, or that their number changes",
		Long: `State that the servers of the locks are new, so that their restart guard does not keep
them out: a server that has no memory of locks may have lost it, and otherwise does not
vote until every lock that it may have forgotten has ended. All servers have to answer, and none
may remember locks.

With --nodes state instead that the servers in the URL are the nodes of the quorum from
now on, and more or fewer than they were. No lock is granted for one restart guard, in
which the leases of clients with the old list end; those clients are refused from now
on. Give all clients the new list then.

With --sql change nothing, and print the statement that an administrator of the database runs
for the role in the URL: it makes what the locks need, and grants no more.

The URL is chosen as by dlock run; for --nodes it is the new one.`,
		Example: `  dlock bootstrap --url redlock:redis://a:6379,redis://b:6379,redis://c:6379
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
			said, err := bootstrap(cmd.Context(), u, nodes)
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), said)
			return nil
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&url, "url", "", "the backend's `URL` (dlock drivers lists the forms)")
	f.BoolVar(&nodes, "nodes", false, "the number of nodes changes to that in the URL")
	f.BoolVar(&sql, "sql", false, "print the SQL that prepares the database for the role in the URL")
	cmd.MarkFlagsMutuallyExclusive("nodes", "sql")
	return cmd
}

// printSetup prints the statement that prepares a database. It asks no server.
func printSetup(out io.Writer, url string) error {
	c, err := dlock.OpenURL(url, dlock.WithLogger(nil))
	if err != nil {
		return exitErrorOf(err)
	}
	defer c.Close() //nolint:errcheck // nothing is held
	statement := ""
	if i, ok := c.Inspector(); ok {
		if db, ok := i.(interface{ SetupSQL(role string) string }); ok {
			statement = db.SetupSQL("")
		}
	}
	if statement == "" {
		return failf(exitUsage, "%s needs no SQL: there is nothing to prepare", c.Info().Name)
	}
	_, err = fmt.Fprintln(out, statement+";")
	return err
}

// bootstrap makes the statement, and returns what it means.
func bootstrap(ctx context.Context, url string, nodes bool) (string, error) {
	c, err := dlock.OpenURL(url, dlock.WithLogger(nil)) // the outcome says it
	if err != nil {
		return "", exitErrorOf(err)
	}
	defer c.Close() //nolint:errcheck // nothing is held
	admin, ok := c.GuardAdmin()
	if !ok {
		return "", failf(exitUsage, "%s has no restart guard: there is nothing to bootstrap", c.Info().Name)
	}
	ctx, stop := signal.NotifyContext(ctx, endSignals...)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, bootstrapTimeout)
	defer cancel()
	state := driver.StateNew
	if nodes {
		state = driver.StateNodes
	}
	was, err := admin.Bootstrap(ctx, &driver.Bootstrap{Statement: state})
	var refused *driver.RefusedError
	switch {
	case errors.As(err, &refused):
		return "", failf(exitUnavailable, "%v", err)
	case err != nil:
		return "", exitErrorOf(err)
	case was.Memory == driver.MemoryUnguarded:
		return "", failf(exitUsage, "%s has no restart guard: there is nothing to bootstrap", c.Info().Name)
	case nodes:
		return "the number of nodes is set: no lock is granted for one restart guard; give all clients this list of nodes now", nil
	}
	return "the servers are taken for new: they vote at once", nil
}
