package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
	"github.com/redlock-go/redlock/driver/quorum"
)

func newBootstrap(c *call) func() error {
	var changed, dryRun, sql bool
	c.withURL()
	c.flags.BoolVar(&changed, "changed", false, "")
	c.flags.BoolVar(&dryRun, "dry-run", false, "")
	c.flags.BoolVar(&sql, "sql", false, "")
	return func() error {
		if err := errors.Join(c.want(0, 0), c.exclusive("changed", "sql"), c.exclusive("dry-run", "sql")); err != nil {
			return err
		}
		b := &quorum.Bootstrap{DryRun: dryRun, Statement: quorum.StateNew}
		if changed {
			b.Statement = quorum.StateChanged
		}
		return c.once(func(ctx context.Context, client *dlock.Client) error {
			if !sql {
				return bootstrap(ctx, client, b, c.out)
			}
			statement := setupSQL(client)
			if statement == "" {
				return failf(exitUsage, "%s needs no SQL: there is nothing to prepare", client.Backend().Info().Name)
			}
			fmt.Fprintln(c.out, statement+";")
			return nil
		})
	}
}

// setupSQL returns the SQL that prepares the backend's database; empty: it has none.
func setupSQL(c *dlock.Client) string {
	if db, ok := c.Backend().(interface{ SetupSQL(role string) string }); ok {
		return db.SetupSQL("")
	}
	return ""
}

// bootstrap makes the statement, and prints its effect and the outcome on each server.
func bootstrap(ctx context.Context, c *dlock.Client, b *quorum.Bootstrap, out io.Writer) error {
	nothing := func(more, hint string) error {
		return failf(exitUsage, "%s has no restart guard%s: there is nothing to bootstrap%s", c.Backend().Info().Name, more, hint)
	}
	admin, ok := c.Backend().(quorum.Admin)
	switch {
	case !ok && setupSQL(c) != "":
		return nothing("", " (--sql prints what the database needs)")
	case !ok:
		return nothing("", "")
	}
	r, err := admin.Bootstrap(ctx, b)
	if err == nil && r.Memory == quorum.MemoryUnguarded {
		return nothing(" with this URL (restart_guard=30s sets one on Redis and Valkey)", "")
	}
	if r != nil && (b.DryRun || b.Statement == quorum.StateChanged || err != nil) {
		showMemory(out, r, b.Statement != quorum.StateNew)
	}
	switch {
	case errors.Is(err, driver.ErrRefused):
		return failf(exitUnavailable, "%v", err)
	case err != nil || b.DryRun:
		return err
	case b.Statement == quorum.StateChanged:
		fmt.Fprintln(out, "the nodes and their terms are set: no lock is granted for one restart guard; give all clients this URL now")
	default:
		fmt.Fprintln(out, "the servers count as new: they vote at once")
	}
	return nil
}

// showMemory prints each server's memory, and the outcome on it.
func showMemory(out io.Writer, r *quorum.MemoryReport, withTerms bool) {
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
			line += "; failed: " + printable.Line(n.Err.Error())
		case n.Done:
			line += "; set"
		}
		fmt.Fprintf(out, "%s: %s\n", printable.Text(n.Node), line)
	}
	if withTerms {
		fmt.Fprintf(out, "this URL: %s\n", termsText(r.Terms))
	}
}

// remembers describes what one server remembered.
func remembers(r *quorum.MemoryReport) string {
	if r.Terms == nil {
		return r.Memory.String()
	}
	return r.Memory.String() + ": " + termsText(r.Terms)
}

func termsText(t *quorum.Terms) string {
	return fmt.Sprintf("%d nodes, restart_guard %v, clock_allowance %v, drift_percent %d", t.N, t.Guard, t.Allowance, t.Drift)
}
