package redlock

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/redlock-go/redlock/driver"
	"github.com/redlock-go/redlock/driver/base"
	"github.com/redlock-go/redlock/driver/quorum"
)

// checkTimeout bounds Check, which takes some dozens of round trips to each node.
const checkTimeout = 20 * time.Second

// Check returns the nodes' own findings, and adds findings about the quorum: nodes that do not
// answer, nodes that are the same server or on one host, clocks and terms that
// differ, and a number of nodes that survives few losses. A majority must answer.
func (b *Backend) Check(ctx context.Context) ([]driver.Diagnostic, error) {
	if err := b.begin(ctx); err != nil {
		return nil, err
	}
	defer b.calls.Done()
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	e := &examination{b: b, nodes: make([][]driver.Diagnostic, len(b.nodes))}
	errs := b.each(ctx, func(ctx context.Context, n *node) error {
		i, err := n.inspector()
		if err != nil {
			return err
		}
		e.nodes[n.index], err = i.Check(ctx)
		return err
	})
	if err := b.answered(errs); err != nil {
		return nil, err
	}
	for i, n := range b.nodes {
		if errs[i] != nil {
			e.add(n, "node-unreachable", "start it again; the quorum works without it, but survives fewer further losses", "", "does not answer: %s", n.nameless(errs[i]))
		}
		for j := range e.nodes[i] {
			e.nodes[i][j].Node = n.name
		}
	}
	e.number()
	e.servers()
	e.hosts()
	e.clocks()
	e.terms(ctx)
	all, _ := e.Result(nil)
	all = append(all, slices.Concat(e.nodes...)...)
	slices.SortStableFunc(all, func(a, b driver.Diagnostic) int { return cmp.Compare(b.Severity, a.Severity) })
	return all, nil
}

// An examination collects findings about the quorum, after the nodes' own findings.
type examination struct {
	base.Findings
	b     *Backend
	nodes [][]driver.Diagnostic // of each node
}

// add adds a warning about a node, or about all of them if it is nil.
func (e *examination) add(n *node, code, remedy, measured, format string, args ...any) *driver.Diagnostic {
	if e.Node = ""; n != nil {
		e.Node = n.name
	}
	d := e.Add(code, driver.SeverityWarning, remedy, format, args...)
	d.Measured = measured
	return d
}

// measured returns the measured value of a node's finding with this code.
func (e *examination) measured(node int, code string) string {
	for _, d := range e.nodes[node] {
		if d.Code == code {
			return d.Measured
		}
	}
	return ""
}

func (e *examination) number() {
	const remedy = "use an odd number of nodes, three at least (dlock bootstrap --changed)"
	switch n := len(e.b.nodes); {
	case n < 3:
		e.add(nil, "quorum-size", remedy, fmt.Sprint(n), "a quorum of %d does not survive the loss of a node", n)
	case n%2 == 0:
		e.add(nil, "quorum-size", remedy, fmt.Sprint(n), "%d nodes survive the loss of %d, as %d do", n, n-e.b.q, n-1)
	}
}

// servers finds nodes that are the same server process.
func (e *examination) servers() {
	const once = "list every server once"
	if dup := e.b.duplicate.Load(); dup != nil {
		e.add(nil, "same-server", once, "", "%s", dup.Reason).Severity = driver.SeverityUnsafe
		return
	}
	seen := map[string]*node{}
	for i, n := range e.b.nodes {
		id := e.measured(i, "process")
		if other := seen[id]; id != "" && other != nil {
			e.add(n, "same-server", once, id, "is the same server as %s, which would vote twice", other.name).Severity = driver.SeverityUnsafe
		}
		seen[id] = n
		if topology := e.measured(i, "topology"); topology != "" && topology != "single" {
			e.add(n, "not-independent", "let every node be a server of its own (topology=single)", topology,
				"is used with topology=%s, and a failover there loses locks that this quorum counts on", topology).Severity = driver.SeverityUnsafe
		}
	}
}

// hosts finds nodes on the same host.
func (e *examination) hosts() {
	on := map[string][]string{}
	for _, n := range e.b.nodes {
		host := n.name
		if u, err := url.Parse(n.name); err == nil && u.Host != "" {
			host = u.Host
		}
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
		if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() {
			host = "localhost"
		}
		on[host] = append(on[host], n.name)
	}
	for host, nodes := range on {
		if len(nodes) > 1 {
			e.add(nil, "same-host", "put every node on a host of its own", host, "several nodes are on one host, and fail together: %s", strings.Join(nodes, ", "))
		}
	}
}

// clocks compares the nodes' clocks with each other: an error of the client's clock is the same
// in all offsets.
func (e *examination) clocks() {
	type offset struct {
		node      *node
		off, blur time.Duration
	}
	var all []offset
	for i, n := range e.b.nodes {
		if off, err := time.ParseDuration(e.measured(i, "clock-offset")); err == nil {
			blur, _ := time.ParseDuration(e.measured(i, "round-trip"))
			all = append(all, offset{n, off, blur})
		}
	}
	slices.SortFunc(all, func(a, b offset) int { return cmp.Compare(a.off, b.off) })
	for _, o := range all {
		middle, allowance := all[len(all)/2], e.b.opts.ClockAllowance
		if apart := o.off - middle.off; apart.Abs() > allowance+o.blur+middle.blur {
			e.add(o.node, "clock-apart", "run NTP on it", apart.String(), "its clock is %v from the other nodes', and clock_allowance is %v", apart, allowance).Severity = driver.SeverityUnsafe
		}
	}
}

// terms compares the nodes' terms with each other and with the options.
func (e *examination) terms(ctx context.Context) {
	r, err := e.b.Bootstrap(ctx, &quorum.Bootstrap{DryRun: true})
	if r == nil || err != nil && r.Nodes == nil {
		return
	}
	own := shown(&e.b.terms)
	for i, n := range r.Nodes {
		if n.Report == nil || n.Report.Terms == nil || shown(n.Report.Terms) == own {
			continue
		}
		theirs := shown(n.Report.Terms)
		e.add(e.b.nodes[i], "terms-differ", "give all clients the same URL, or change the nodes' terms to this URL", theirs,
			"its terms are %s, and this URL says %s", theirs, own).Command = "dlock bootstrap --changed"
	}
}

func shown(t *quorum.Terms) string {
	return fmt.Sprintf("%d nodes, restart_guard=%v, clock_allowance=%v, drift_percent=%d", t.N, t.Guard, t.Allowance, t.Drift)
}
