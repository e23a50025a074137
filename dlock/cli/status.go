package cli

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/printable"
)

func newStatus(c *call) func() error {
	var json bool
	c.withURL()
	c.flags.BoolVar(&json, "json", false, "")
	return func() error {
		_ = c.want(0, math.MaxInt) // any number is right
		return c.once(func(ctx context.Context, client *dlock.Client) error {
			states, err := statesOf(ctx, client, c.args)
			switch {
			case err != nil:
				return err
			case json:
				return writeJSON(c.out, states)
			case len(states) == 0:
				fmt.Fprintf(c.out, "no lock is held %s\n", place(client))
			default:
				writeStates(c.out, states, time.Now(), len(c.args) > 0)
			}
			return nil
		})
	}
}

// statesOf returns the states of the keys, in their order; without keys it returns the states of
// all held keys, sorted by name.
func statesOf(ctx context.Context, c *dlock.Client, keys []string) ([]*driver.State, error) {
	all := []*driver.State{} // [] in JSON
	for _, key := range keys {
		state, err := c.Lookup(ctx, key)
		if err != nil {
			return nil, err
		}
		all = append(all, state)
	}
	if len(keys) > 0 {
		return all, nil
	}
	i, err := optional[driver.Inspector](c, "cannot tell who holds what")
	if err == nil {
		err = i.List(ctx, "", func(state *driver.State) bool { all = append(all, state); return true })
	}
	slices.SortFunc(all, func(a, b *driver.State) int { return strings.Compare(a.Key, b.Key) })
	return all, err
}

// stateHead is the head of the columns of a state.
var stateHead = []string{"KEY", "VERDICT", "HOLDER", "TOKEN", "SESSION", "HELD SINCE", "ENDS IN", "WAITING", "ANSWER"}

// stateRows returns the rows of a state, one for each holder: of a key, or of what one node answered.
func stateRows(name string, state *driver.State, answer string, now time.Time) [][]string {
	verdict := state.Verdict()
	if state.Mode == driver.Shared && len(state.Holders) > 0 {
		verdict += ", shared"
	}
	rows := [][]string{{name, verdict, "", "", "", "", ago(state.ReservedFor), number10(uint64(state.Waiters)), answer}}
	for i, h := range state.Holders {
		if i > 0 {
			rows = append(rows, make([]string, len(stateHead)))
		}
		copy(rows[i][2:], []string{holder(&h), number10(h.Fence), printable.Text(h.Session), since(h.Since, now), ago(h.TTL)})
	}
	return rows
}

// writeStates prints a table of the keys, and the nodes and the queue of each named key.
func writeStates(w io.Writer, states []*driver.State, now time.Time, named bool) {
	rows := [][]string{stateHead}
	for _, state := range states {
		rows = append(rows, stateRows(printable.Text(state.Key), state, "", now)...)
		for i := range state.Nodes {
			if named {
				rows = append(rows, nodeRows(&state.Nodes[i], now)...)
			}
		}
	}
	writeTable(w, "", rows)
	for _, state := range states {
		if !named || len(state.Queue) == 0 {
			continue
		}
		rows := [][]string{{"PLACE", "WAITER", "ADDRESS", "SINCE"}}
		for i := range state.Queue {
			q := &state.Queue[i]
			rows = append(rows, []string{strconv.Itoa(i + 1), printable.Text(q.Owner), printable.Text(q.Address), since(q.Since, now)})
		}
		fmt.Fprintf(w, "\nwaiting for %s:\n", printable.Text(state.Key))
		writeTable(w, "  ", rows)
	}
}

// nodeRows returns the rows of a node.
func nodeRows(n *driver.NodeState, now time.Time) [][]string {
	name, answer := "  "+printable.Text(n.Node), "no answer"
	if n.State != nil {
		return stateRows(name, n.State, "after "+ago(n.Latency), now)
	}
	if n.Err != "" { // the node's name is in the first column
		answer = strings.TrimLeft(strings.TrimPrefix(printable.Line(n.Err), n.Node), ": ")
	}
	return [][]string{{name, "unknown", "", "", "", "", "", "", answer}}
}
