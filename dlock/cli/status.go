package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf16"

	"github.com/spf13/cobra"

	"github.com/redlock-go/redlock/dlock"
	"github.com/redlock-go/redlock/driver"
)

// watchInterval is the time between two looks of status --watch.
const watchInterval = time.Second

// A statusCommand is one run of "dlock status".
type statusCommand struct {
	*console
	url         string
	json, watch bool

	client *dlock.Client
	found  atomic.Int64 // keys, so far
}

func newStatus(c *console) *cobra.Command {
	s := &statusCommand{console: c}
	cmd := &cobra.Command{
		Use:   "status [flags] [KEY...]",
		Short: "Show who holds the locks, since when, and who waits",
		Long: `Show who holds each KEY, with which token, since when and for how much longer, and who waits
in which order; of a quorum, on every node. Without KEYs show every key under the prefix that
somebody holds: that takes many small steps on a server, and delays no lock.

The verdicts:
  free               nobody has the key
  held               somebody has it, on a majority where there are several nodes
  expiring           the holder has less than a second left, or no majority any more
  kept for the next  it was released a moment ago, and waits for the first in the queue
  split              several have it on some nodes, nobody on a majority; they try again

What a backend does not know is left out. PostgreSQL stores no names of keys and no tokens: name
the keys, and take the session from the column SESSION. Locks that other libraries hold are shown
if you name them.

With --json the output is one JSON array, or with --watch one in each line. Times are RFC 3339,
durations are seconds.

The URL is chosen as by dlock run. NO_COLOR in the environment turns colors off.`,
		Example: `  dlock status
  dlock status nightly
  dlock status --watch nightly deploy
  dlock status --json | jq -r '.[] | select(.waiting > 0) | .key'`,
		ValidArgsFunction: completeKeys,
		RunE:              func(cmd *cobra.Command, keys []string) error { return s.run(cmd, keys) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	urlFlag(cmd, &s.url)
	f.BoolVar(&s.json, "json", false, "print JSON")
	f.BoolVar(&s.watch, "watch", false, "look again every second, until you press ctrl-C")
	return cmd
}

func (s *statusCommand) run(cmd *cobra.Command, keys []string) error {
	client, ctx, done, err := operator(cmd, s.url)
	if err != nil {
		return err
	}
	defer done()
	s.client = client
	out := cmd.OutOrStdout()
	for {
		err := s.look(ctx, out, keys)
		var f *exitError
		if !s.watch || errors.As(err, &f) && f.code == exitUsage {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
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
	s.found.Store(0)
	stop := s.progress(func() string { return fmt.Sprintf("asking %s: %d keys so far", s.client.Info().Name, s.found.Load()) })
	states, err := s.states(ctx, keys)
	stop()
	if err != nil {
		return operatorError(err)
	}
	if len(keys) == 0 && s.client.Info().Name == "postgres" { // it lists the locks of this process
		return failf(exitUsage, "PostgreSQL stores no names of keys: name them, as in dlock status KEY")
	}
	now := time.Now()
	if s.json {
		return statesJSON(out, states, !s.watch)
	}
	var b strings.Builder
	if s.watch && s.colors() {
		b.WriteString("\x1b[H\x1b[J") // from the top of the screen
	}
	s.write(&b, states, now, len(keys) > 0)
	if s.watch && !s.colors() {
		b.WriteString("\n")
	}
	_, _ = io.WriteString(out, b.String()) // the writer keeps its error
	return nil
}

// lookupsAtOnce is how many of the named keys are looked up at a time.
const lookupsAtOnce = 64

// states returns the states of the keys, in their order; without keys it returns the states of
// all held keys, sorted by name.
func (s *statusCommand) states(ctx context.Context, keys []string) ([]*dlock.State, error) {
	if len(keys) == 0 {
		var all []*dlock.State
		for state, err := range s.client.List(ctx, "") {
			if err != nil {
				return nil, err
			}
			s.found.Add(1)
			all = append(all, state)
		}
		slices.SortFunc(all, func(a, b *dlock.State) int { return strings.Compare(a.Key, b.Key) })
		return all, nil
	}
	all, errs := make([]*dlock.State, len(keys)), make([]error, len(keys))
	free := make(chan struct{}, lookupsAtOnce)
	var lookups sync.WaitGroup
	for i, key := range keys {
		free <- struct{}{}
		lookups.Go(func() {
			all[i], errs[i] = s.client.Lookup(ctx, key)
			s.found.Add(1)
			<-free
		})
	}
	lookups.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// write prints a table of the keys, and the nodes and the queue of each named key.
func (s *statusCommand) write(w io.Writer, states []*dlock.State, now time.Time, named bool) {
	if len(states) == 0 {
		fmt.Fprintf(w, "no lock is held %s\n", place(s.client))
		return
	}
	colors := s.colors()
	t := &table{head: []string{"KEY", "VERDICT", "HOLDER", "TOKEN", "SESSION", "HELD SINCE", "ENDS IN", "WAITING"}}
	for _, state := range states {
		holder := &dlock.Holder{}
		if len(state.Holders) > 0 {
			holder = &state.Holders[0]
		}
		t.row(text(driver.Printable(state.Key)), verdict(state), text(holders(state.Holders)), number10(holder.Fence), text(driver.Printable(holder.Session)),
			text(since(holder.Since, now)), left(state, holder), number10(uint64(state.Waiters)))
	}
	t.write(w, "", colors)
	if !named {
		return
	}
	for _, state := range states {
		writeNodes(w, state, now, colors)
		writeQueue(w, state, now, colors)
	}
}

// number10 formats a number; zero is empty.
func number10(n uint64) cell {
	if n == 0 {
		return cell{}
	}
	return text(strconv.FormatUint(n, 10))
}

// left returns how much longer a key is held, or kept.
func left(state *dlock.State, holder *dlock.Holder) cell {
	switch {
	case state.ReservedFor > 0:
		return text(ago(state.ReservedFor))
	case holder.TTL > 0:
		return text(ago(holder.TTL))
	}
	return cell{}
}

func verdict(state *dlock.State) cell {
	v := state.Verdict()
	c := cell{v.String(), plain}
	if state.Mode == dlock.Shared && len(state.Holders) > 0 {
		c.text += ", shared"
	}
	switch v {
	case dlock.VerdictFree:
		c.color = green
	case dlock.VerdictExpiring:
		c.color = yellow
	case dlock.VerdictSplit:
		c.color = red
	}
	return c
}

func writeNodes(w io.Writer, state *dlock.State, now time.Time, colors bool) {
	if len(state.Nodes) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s on each node:\n", driver.Printable(state.Key))
	t := &table{head: []string{"NODE", "VERDICT", "HOLDER", "TOKEN", "HELD SINCE", "ENDS IN", "WAITING", "ANSWER"}}
	for i := range state.Nodes {
		n := &state.Nodes[i]
		if n.State == nil {
			why := "no answer"
			if n.Err != nil {
				why = strings.TrimLeft(strings.TrimPrefix(oneLine(n.Err.Error()), n.Node), ": ") // the name is in the first column
			}
			t.row(text(driver.Printable(n.Node)), cell{"unknown", red}, cell{}, cell{}, cell{}, cell{}, cell{}, text(why))
			continue
		}
		holder := &dlock.Holder{}
		if len(n.State.Holders) > 0 {
			holder = &n.State.Holders[0]
		}
		t.row(text(driver.Printable(n.Node)), verdict(n.State), text(holders(n.State.Holders)), number10(holder.Fence), text(since(holder.Since, now)),
			left(n.State, holder), number10(uint64(n.State.Waiters)), text("after "+ago(n.Latency)))
	}
	t.write(w, "  ", colors)
}

func writeQueue(w io.Writer, state *dlock.State, now time.Time, colors bool) {
	if len(state.Queue) == 0 {
		return
	}
	fmt.Fprintf(w, "\nwaiting for %s:\n", driver.Printable(state.Key))
	t := &table{head: []string{"PLACE", "WAITER", "ADDRESS", "SINCE"}}
	for i := range state.Queue {
		q := &state.Queue[i]
		t.row(text(strconv.Itoa(i+1)), text(driver.Printable(q.Owner)), text(driver.Printable(q.Address)), text(since(q.Since, now)))
	}
	t.write(w, "  ", colors)
}

// The JSON of a state. Durations are in seconds; unknown values are left out.
type (
	stateJSON struct {
		Key      string       `json:"key"`
		Verdict  string       `json:"verdict"`
		Shared   bool         `json:"shared,omitempty"`
		Token    uint64       `json:"token,omitempty"` // the largest ever given
		Holders  []holderJSON `json:"holders,omitempty"`
		Reserved float64      `json:"kept_for_next_seconds,omitempty"`
		Waiting  int          `json:"waiting"`
		Queue    []waiterJSON `json:"queue,omitempty"`
		Nodes    []nodeJSON   `json:"nodes,omitempty"`
	}
	holderJSON struct {
		Owner   string     `json:"owner,omitempty"`
		Token   uint64     `json:"token,omitempty"`
		Since   *time.Time `json:"since,omitempty"`
		EndsIn  float64    `json:"ends_in_seconds,omitempty"`
		Address string     `json:"address,omitempty"`
		Session string     `json:"session,omitempty"`
	}
	waiterJSON struct {
		Place   int        `json:"place"`
		Waiter  string     `json:"waiter,omitempty"`
		Address string     `json:"address,omitempty"`
		Since   *time.Time `json:"since,omitempty"`
	}
	nodeJSON struct {
		Node    string     `json:"node"`
		State   *stateJSON `json:"state,omitempty"`
		Latency float64    `json:"latency_seconds,omitempty"`
		Error   string     `json:"error,omitempty"`
	}
)

func known(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

func toJSON(s *dlock.State) *stateJSON {
	j := &stateJSON{Key: s.Key, Verdict: s.Verdict().String(), Shared: s.Mode == dlock.Shared && len(s.Holders) > 0, Token: s.Fence, Reserved: s.ReservedFor.Seconds(), Waiting: s.Waiters}
	for i := range s.Holders {
		h := &s.Holders[i]
		j.Holders = append(j.Holders, holderJSON{h.Owner, h.Fence, known(h.Since), h.TTL.Seconds(), h.Address, h.Session})
	}
	for i := range s.Queue {
		q := &s.Queue[i]
		j.Queue = append(j.Queue, waiterJSON{i + 1, q.Owner, q.Address, known(q.Since)})
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		node := nodeJSON{Node: n.Node, Latency: n.Latency.Seconds()}
		if n.State != nil {
			node.State = toJSON(n.State)
			node.State.Key = s.Key
		}
		if n.Err != nil {
			node.Error = oneLine(n.Err.Error())
		}
		j.Nodes = append(j.Nodes, node)
	}
	return j
}

func statesJSON(w io.Writer, states []*dlock.State, indent bool) error {
	all := make([]*stateJSON, len(states))
	for i, s := range states {
		all[i] = toJSON(s)
	}
	return writeJSON(w, all, indent)
}

// writeJSON writes v, and what may disturb a terminal as JSON's escapes.
func writeJSON(w io.Writer, v any, indent bool) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if indent {
		e.SetIndent("", "  ")
	}
	if err := e.Encode(v); err != nil {
		return err
	}
	var out strings.Builder
	for _, r := range b.String() {
		if r == '\n' || strconv.IsPrint(r) {
			out.WriteRune(r)
			continue
		}
		for _, unit := range utf16.AppendRune(nil, r) {
			fmt.Fprintf(&out, "\\u%04x", unit)
		}
	}
	_, err := io.WriteString(w, out.String())
	return err
}
