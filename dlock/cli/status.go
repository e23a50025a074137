package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

// watchInterval is the time between two looks of status --watch.
const watchInterval = time.Second

// A statusCommand is one run of "dlock status".
type statusCommand struct {
	*console
	url         string
	json, watch bool
	client      *dlock.Client
}

func newStatus(c *console) *cobra.Command {
	s := &statusCommand{console: c}
	cmd := &cobra.Command{
		Use:               "status [flags] [KEY...]",
		Short:             "Show who holds the locks, since when, and who waits",
		ValidArgsFunction: completeKeys,
		RunE:              s.run,
	}
	f := cmd.Flags()
	urlFlag(cmd, &s.url)
	f.BoolVar(&s.json, "json", false, "")
	f.BoolVar(&s.watch, "watch", false, "")
	return cmd
}

func (s *statusCommand) run(cmd *cobra.Command, keys []string) error {
	client, ctx, done, err := operator(cmd, s.url)
	if err != nil {
		return err
	}
	defer done()
	s.client = client
	for {
		err := operatorError(s.look(ctx, cmd.OutOrStdout(), keys))
		var f *exitError
		if !s.watch || errors.As(err, &f) && f.code == exitUsage {
			return err
		}
		if err != nil && ctx.Err() == nil {
			s.printf("%v", err) // it may come back
		}
		select {
		case <-time.After(watchInterval):
		case <-ctx.Done():
			return nil
		}
	}
}

// look asks the servers once, and prints the states.
func (s *statusCommand) look(ctx context.Context, out io.Writer, keys []string) error {
	ctx, cancel := context.WithTimeout(ctx, operatorTimeout)
	defer cancel()
	states, err := s.states(ctx, keys)
	if err != nil {
		return err
	}
	if len(keys) == 0 && s.client.Backend().Info().Name == "postgres" { // it lists the locks of this process
		return failf(exitUsage, "PostgreSQL stores no names of keys: name them, as in dlock status KEY")
	}
	if s.json {
		return writeJSON(out, states, !s.watch)
	}
	var b strings.Builder // a screen is written at once
	if s.watch && onTerminal(s.stdout) {
		b.WriteString("\x1b[H\x1b[J") // from the top of the screen
	} else if s.watch {
		defer fmt.Fprintln(out)
	}
	if len(states) == 0 {
		fmt.Fprintf(&b, "no lock is held %s\n", place(s.client))
	} else {
		writeStates(&b, states, time.Now(), len(keys) > 0)
	}
	_, err = io.WriteString(out, b.String())
	return err
}

// states returns the states of the keys, in their order; without keys it returns the states of
// all held keys, sorted by name.
func (s *statusCommand) states(ctx context.Context, keys []string) ([]*driver.State, error) {
	all := []*driver.State{} // [] in JSON
	if len(keys) == 0 {
		err := list(ctx, s.client, "", func(state *driver.State) bool { all = append(all, state); return true })
		if err != nil {
			return nil, err
		}
		slices.SortFunc(all, func(a, b *driver.State) int { return strings.Compare(a.Key, b.Key) })
	}
	for _, key := range keys {
		state, err := s.client.Lookup(ctx, key)
		if err != nil {
			return nil, err
		}
		all = append(all, state)
	}
	return all, nil
}

// writeStates prints a table of the keys, and the nodes and the queue of each named key.
func writeStates(w io.Writer, states []*driver.State, now time.Time, named bool) {
	rows := [][]string{{"KEY", "VERDICT", "HOLDER", "TOKEN", "SESSION", "HELD SINCE", "ENDS IN", "WAITING"}}
	for _, state := range states {
		rows = append(rows, append([]string{printable.Text(state.Key)}, held(state, now)...))
	}
	writeTable(w, "", rows)
	for _, state := range states {
		if named {
			writeNodes(w, state, now)
			writeQueue(w, state, now)
		}
	}
}

// held returns the cells of a state, from its verdict to the number of waiters.
func held(state *driver.State, now time.Time) []string {
	verdict := state.Verdict().String()
	if state.Mode == driver.Shared && len(state.Holders) > 0 {
		verdict += ", shared"
	}
	h := driver.Holder{}
	if len(state.Holders) > 0 {
		h = state.Holders[0]
	}
	return []string{
		verdict, holders(state.Holders), number10(h.Fence), printable.Text(h.Session), since(h.Since, now),
		ago(max(state.ReservedFor, h.TTL)), number10(uint64(state.Waiters)),
	}
}

func writeNodes(w io.Writer, state *driver.State, now time.Time) {
	if len(state.Nodes) == 0 {
		return
	}
	rows := [][]string{{"NODE", "VERDICT", "HOLDER", "TOKEN", "SESSION", "HELD SINCE", "ENDS IN", "WAITING", "ANSWER"}}
	for i := range state.Nodes {
		n := &state.Nodes[i]
		cells, answer := []string{"unknown", "", "", "", "", "", ""}, "no answer"
		switch {
		case n.State != nil:
			cells, answer = held(n.State, now), "after "+ago(n.Latency)
		case n.Err != nil: // the node's name is in the first column
			answer = strings.TrimLeft(strings.TrimPrefix(oneLine(n.Err.Error()), n.Node), ": ")
		}
		rows = append(rows, append(append([]string{printable.Text(n.Node)}, cells...), answer))
	}
	fmt.Fprintf(w, "\n%s on each node:\n", printable.Text(state.Key))
	writeTable(w, "  ", rows)
}

func writeQueue(w io.Writer, state *driver.State, now time.Time) {
	if len(state.Queue) == 0 {
		return
	}
	rows := [][]string{{"PLACE", "WAITER", "ADDRESS", "SINCE"}}
	for i := range state.Queue {
		q := &state.Queue[i]
		rows = append(rows, []string{strconv.Itoa(i + 1), printable.Text(q.Owner), printable.Text(q.Address), since(q.Since, now)})
	}
	fmt.Fprintf(w, "\nwaiting for %s:\n", printable.Text(state.Key))
	writeTable(w, "  ", rows)
}
