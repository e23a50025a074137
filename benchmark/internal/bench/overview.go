package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// works are the columns of the overview.
var works = []struct {
	title string
	*Scenario
	grounds []ground
	more    string // the rest of the case's name
}{
	{"one server, a lone caller", single, []ground{oneRedis, onePostgres, oneEtcd}, ""},
	{"five nodes, a lone caller", quorum, []ground{fiveRedis}, ""},
	{"one server, 64 goroutines", throughput, []ground{oneRedis, onePostgres, oneEtcd}, ", 64 goroutines"},
	{"five nodes, 64 goroutines", throughput, []ground{fiveRedis}, ", 64 goroutines"},
	{"one server, a handoff among 8 clients", handoff, []ground{oneRedis, onePostgres, oneEtcd}, ", 8 clients"},
	{"five nodes, a handoff among 8 clients", handoff, []ground{fiveRedis}, ", 8 clients"},
	{"one server, 64 goroutines on one key", hot, []ground{oneRedis, onePostgres}, ""},
	{"five nodes, 64 goroutines on one key", hot, []ground{fiveRedis}, ""},
}

// overview is the table of the performance page: a row for each contestant, a column for each
// kind of work, and in each cell a time, so that less is better everywhere. Beside ours is its
// ratio to the quickest other library in the same case, and the verdict.
type overview struct {
	table [][]string
	lead  string   // says first where another library is ahead of ours
	why   []string // what was measured there
}

func (r *Report) overview() *overview {
	o := &overview{}
	type line struct {
		*Row
		cells []string
	}
	var lines []*line
	header := []string{"", "client"}
	count, behind := map[figures.Verdict]int{}, []string(nil)
	for column, w := range works {
		header = append(header, w.title)
		for _, g := range w.grounds {
			c := r.find(w.Scenario, g.String()+w.more)
			if c == nil {
				continue
			}
			base := c.base()
			for _, row := range c.Rows {
				i := slices.IndexFunc(lines, func(l *line) bool { return l.Name == row.Name && l.Client == row.Client })
				if i < 0 {
					i = len(lines)
					lines = append(lines, &line{row, slices.Repeat([]string{"–"}, len(works))})
				}
				v := row.figure(c.Key)
				if v == 0 || !row.handsOver() {
					continue
				}
				text := figures.Format(v, figures.Seconds)
				switch {
				case row == base:
					text = "**" + text + "**"
				case base != nil && (row.Kind == Ours || row.Kind == Part):
					ratio, verdict := c.compare(row, base, c.Key)
					text += "<br>" + ratio.Ratio() + "<br>" + string(verdict)
					if row.Kind == Part {
						break
					}
					if count[verdict]++; verdict == figures.Behind {
						behind = append(behind, fmt.Sprintf("%s by %s beside ours over %s (%s)", base, ratio.Ratio(), row.Client, w.title))
						if why := c.why(row, base); why != "" {
							o.why = append(o.why, fmt.Sprintf("%s, ours over %s to %s: %s.", w.title, row.Client, base, why))
						}
					}
				}
				lines[i].cells[column] = text
			}
		}
	}
	grounds, kinds := []string{"pgx", "etcd"}, []Kind{Ours, Part, Limit, Peer} // the others' ground is Redis
	slices.SortStableFunc(lines, func(a, b *line) int {
		return cmp.Or(cmp.Compare(slices.Index(grounds, a.Client), slices.Index(grounds, b.Client)), cmp.Compare(slices.Index(kinds, a.Kind), slices.Index(kinds, b.Kind)))
	})
	o.table = [][]string{header}
	for _, l := range lines {
		o.table = append(o.table, append([]string{l.Name, l.Client}, l.cells...))
	}
	switch {
	case len(count) == 0:
		return o
	case loaded(r.Foreign):
		o.lead = "Other programs used more than a fifth of the processors. Beside such load nothing is judged: measure again without it. "
	case behind != nil:
		o.lead = "Other libraries are quicker than ours: " + strings.Join(behind, "; ") + ". "
	default:
		o.lead = "No other library was shown to be quicker than ours. "
	}
	o.lead += fmt.Sprintf("Beside the quickest other library of each column, ours is ahead in %d figures, and %d cannot be told.", count[figures.Ahead], count[figures.CannotTell])
	return o
}

// find returns a case; nil if it was not measured.
func (r *Report) find(s *Scenario, name string) *Case {
	i := slices.IndexFunc(r.Cases, func(c *Case) bool { return c.Scenario == s && c.Name == name })
	if i < 0 {
		return nil
	}
	return r.Cases[i]
}
