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
	"github.com/redlock-go/redlock/driver/quorum"
)

// checkTimeout bounds Check, which takes some dozens of round trips to each node.
const checkTimeout = 20 * time.Second

// Check returns the nodes' own findings, and adds findings about the quorum: nodes that do not
// answer or are skipped, nodes that are the same server or on one host, clocks and terms that
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
			e.add(driver.Diagnostic{Code: "node-unreachable", Severity: driver.SeverityWarning, Node: n.name, Summary: "does not answer: " + n.nameless(errs[i]), Remedy: "start it again; the quorum works without it, but survives fewer further losses"})
		}
		if n.tripped.Load() {
			e.add(driver.Diagnostic{Code: "node-skipped", Severity: driver.SeverityWarning, Node: n.name, Summary: "keeps timing out and is skipped", Remedy: "check the server and the network to it"})
		}
		for j := range e.nodes[i] {
			e.nodes[i][j].Node = n.name
		}
	}
	e.number()
	e.servers()
	e.hosts()
	e.clocks()
	e.trips()
	e.terms(ctx)
	all := append(e.found, slices.Concat(e.nodes...)...)
	slices.SortStableFunc(all, func(a, b driver.Diagnostic) int { return cmp.Compare(b.Severity, a.Severity) })
	return all, nil
}

// An examination collects findings about the quorum, after the nodes' own findings.
type examination struct {
	b     *Backend
	nodes [][]driver.Diagnostic // of each node
	found []driver.Diagnostic
}

func (e *examination) add(d driver.Diagnostic) { e.found = append(e.found, d) }

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
	n, q := len(e.b.nodes), e.b.q
	summary := ""
	switch {
	case n < 3:
		summary = fmt.Sprintf("a quorum of %d does not survive the loss of a node", n)
	case n%2 == 0:
		summary = fmt.Sprintf("%d nodes survive the loss of %d, as %d do", n, n-q, n-1)
	default:
		return
	}
	e.add(driver.Diagnostic{
		Code: "quorum-size", Severity: driver.SeverityWarning, Measured: fmt.Sprint(n), Summary: summary,
		Remedy: "use an odd number of nodes, three at least (dlock bootstrap --changed)",
	})
}

// servers finds nodes that are the same server process.
func (e *examination) servers() {
	if dup := e.b.duplicate.Load(); dup != nil {
		e.add(driver.Diagnostic{Code: "same-server", Severity: driver.SeverityUnsafe, Summary: dup.Reason, Remedy: "list every server once"})
		return
	}
	seen := map[string]*node{}
	for i, n := range e.b.nodes {
		id := e.measured(i, "process")
		if other := seen[id]; id != "" && other != nil {
			e.add(driver.Diagnostic{Code: "same-server", Severity: driver.SeverityUnsafe, Node: n.name, Measured: id, Summary: "is the same server as " + other.name + ", which would vote twice", Remedy: "list every server once"})
		}
		seen[id] = n
		if topology := e.measured(i, "topology"); topology != "" && topology != "single" {
			e.add(driver.Diagnostic{
				Code: "not-independent", Severity: driver.SeverityUnsafe, Node: n.name, Measured: topology,
				Summary: "is used with topology=" + topology + ", and a failover there loses locks that this quorum counts on",
				Remedy:  "let every node be a server of its own (topology=single)",
			})
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
			e.add(driver.Diagnostic{Code: "same-host", Severity: driver.SeverityWarning, Measured: host, Summary: "several nodes are on one host, and fail together: " + strings.Join(nodes, ", "), Remedy: "put every node on a host of its own"})
		}
	}
}

// clocks compares the nodes' clocks with each other: an error of the client's clock is the same
// in all offsets.
func (e *examination) clocks() {
	type offset struct {
		node      int
		off, blur time.Duration
	}
	var all []offset
	for i := range e.b.nodes {
		if off, err := time.ParseDuration(e.measured(i, "clock-offset")); err == nil {
			blur, _ := time.ParseDuration(e.measured(i, "round-trip"))
			all = append(all, offset{i, off, blur})
		}
	}
	slices.SortFunc(all, func(a, b offset) int { return cmp.Compare(a.off, b.off) })
	for _, o := range all {
		middle, n := all[len(all)/2], e.b.nodes[o.node]
		if apart := o.off - middle.off; apart.Abs() > e.b.opts.ClockAllowance+o.blur+middle.blur {
			e.add(driver.Diagnostic{Code: "clock-apart", Severity: driver.SeverityUnsafe, Node: n.name, Measured: apart.String(), Summary: fmt.Sprintf("its clock is %v from the other nodes', and clock_allowance is %v", apart, e.b.opts.ClockAllowance), Remedy: "run NTP on it"})
		}
	}
}

// trips compares round trips with the node timeout.
func (e *examination) trips() {
	least := e.b.timeout(e.b.info.MinTTL)
	for i, n := range e.b.nodes {
		trip, err := time.ParseDuration(e.measured(i, "round-trip"))
		if err == nil && trip > least/2 {
			e.add(driver.Diagnostic{
				Code: "round-trip-slow", Severity: driver.SeverityWarning, Node: n.name, Measured: trip.String(),
				Summary: fmt.Sprintf("a round trip takes %v, and the node timeout is %v: its vote will often come too late", trip, least),
				Remedy:  fmt.Sprintf("set node_timeout=%v or longer, or move the node nearer", (4 * trip).Round(10*time.Millisecond)),
			})
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
	for _, n := range r.Nodes {
		if n.Report == nil || n.Report.Terms == nil || shown(n.Report.Terms) == own {
			continue
		}
		e.add(driver.Diagnostic{
			Code: "terms-differ", Severity: driver.SeverityWarning, Node: n.Node, Measured: shown(n.Report.Terms),
			Summary: "its terms are " + shown(n.Report.Terms) + ", and this URL says " + own,
			Remedy:  "give all clients the same URL, or change the nodes' terms to this URL", Command: "dlock bootstrap --changed",
		})
	}
}

func shown(t *quorum.Terms) string {
	return fmt.Sprintf("%d nodes, restart_guard=%v, clock_allowance=%v, drift_percent=%d", t.N, t.Guard, t.Allowance, t.Drift)
}
