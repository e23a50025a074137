package bench

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// overview is the table of the performance page: a row for each contestant, a column for each kind of work,
// and in each cell a time, so that less is better everywhere. Beside ours is its ratio to the
// quickest other library in the same case, and the verdict.
type overview struct {
	figures.Table
	Lead string   // says first where another library is ahead of ours
	Why  []string // what was measured there
}

// works are the columns of an overview: cases on one server of a kind, or on five redis-servers.
var works = []struct {
	title, scenario, suffix string
	nodes                   int
}{
	{"one server, a lone caller", "single", "", 1},
	{"five nodes, a lone caller", "quorum", "", 5},
	{"one server, 64 goroutines", "throughput", ", 64 goroutines", 1},
	{"five nodes, 64 goroutines", "throughput", ", 64 goroutines", 5},
	{"one server, a handoff among 8 clients", "handoff", ", 8 clients", 1},
}

// newOverview makes the overview of a report.
func newOverview(r *Report) *overview {
	o := &overview{Table: figures.Table{Header: []string{"", "client"}}}
	kinds := []Kind{Ours, Part, Limit, Peer}
	ground := func(r figures.TableRow) int { return slices.Index([]string{"pgx", "etcd"}, r.Cells[1]) } // -1: Redis
	for _, w := range works {
		o.Header = append(o.Header, w.title)
	}
	var behind []string
	count := map[figures.Verdict]int{}
	for _, about := range r.Setups {
		if strings.HasPrefix(about.Name, "driver, ") && !strings.HasSuffix(about.Name, ", own client") || about.Name == roundTrip.Name {
			continue
		}
		cells, client, seen := []string{about.name()}, "", false
		for _, w := range works {
			s, own := r.work(w.scenario, w.suffix, w.nodes, about.Name)
			if own == nil {
				cells = append(cells, "–")
				continue
			}
			text, c, compared := s.cell(own)
			if compared && own.Kind == Ours {
				if count[c.Verdict]++; c.Verdict == figures.Behind {
					other := strings.Replace(c.Other, ", ", " over ", 1)
					behind = append(behind, fmt.Sprintf("%s by %s beside ours over %s (%s)", other, c.Ratio, own.Client, w.title))
					if c.Why != "" {
						o.Why = append(o.Why, fmt.Sprintf("%s, ours over %s to %s: %s.", w.title, own.Client, other, c.Why))
					}
				}
			}
			client, seen = own.Client, true
			cells = append(cells, text)
		}
		if seen {
			o.Rows = append(o.Rows, figures.TableRow{Class: string(about.Kind), Cells: slices.Insert(cells, 1, client)})
		}
	}
	slices.SortStableFunc(o.Rows, func(a, b figures.TableRow) int {
		return cmp.Or(cmp.Compare(ground(a), ground(b)), cmp.Compare(slices.Index(kinds, Kind(a.Class)), slices.Index(kinds, Kind(b.Class))))
	})
	o.Lead = fmt.Sprintf("Beside the quickest other library of each column, ours is ahead in %d figures, and %d cannot be told.", count[figures.Ahead], count[figures.CannotTell])
	switch {
	case len(behind) > 0:
		o.Lead = "Other libraries are quicker than ours: " + strings.Join(behind, "; ") + ". " + o.Lead
	case len(count) > 0:
		o.Lead = "No other library was shown to be quicker than ours. " + o.Lead
	default:
		o.Lead = ""
	}
	return o
}

// work returns a contestant's row in a case, and its section; nil if it has none.
func (r *Report) work(scenario, suffix string, nodes int, contestant string) (*Section, *Row) {
	for _, s := range r.Sections {
		for _, kind := range []ground{oneRedis, onePostgres, oneEtcd} {
			kind.n = nodes
			if row := s.row(kind.String()+suffix, contestant); s.Scenario == scenario && row != nil {
				return s, row
			}
		}
	}
	return nil, nil
}

// cell writes the time of one lock, or of one handoff. It compares ours with the quickest peer,
// and marks that.
func (s *Section) cell(own *Row) (text string, with Comparison, compared bool) {
	seconds := func(r *Row) float64 {
		m, ok := r.metric(s.Key)
		switch {
		case !ok || m.Median <= 0 || !r.handsOver():
			return 0
		case s.More:
			return 1 / m.Median
		}
		return m.Median
	}
	if seconds(own) == 0 {
		return "–", with, false
	}
	text = figures.Format(seconds(own), figures.Seconds)
	var best *Row
	for _, r := range s.of(own.Case) {
		if v := seconds(r); r.Kind == Peer && v > 0 && (best == nil || v < seconds(best)) {
			best = r
		}
	}
	switch {
	case best == own:
		return "**" + text + "**", with, false
	case best == nil || own.Kind != Ours && own.Kind != Part:
		return text, with, false
	}
	with, compared = s.compare(own, best)
	if compared {
		text += fmt.Sprintf("\n%s\n%s", with.Ratio, with.Verdict)
	}
	return text, with, compared
}

// name is the contestant's name without its client, for a table that has a column for that.
func (a About) name() string {
	parts := strings.Split(a.Name, ", ")
	name := strings.Replace(parts[0], "dlock", "ours", 1)
	switch {
	case parts[0] == "driver":
		return "ours, on an application's client"
	case len(parts) > 2:
		name += ", " + parts[2]
	}
	return name
}

// markdown writes the lead, the circumstances and the table for README. It is empty if the run
// measured nothing of that table.
func (r *Report) markdown() string {
	o := newOverview(r)
	if len(o.Rows) == 0 {
		return ""
	}
	var b strings.Builder
	row := func(cells []string) {
		for _, c := range cells {
			b.WriteString("| " + strings.NewReplacer("|", `\|`, "\n", "<br>").Replace(c) + " ")
		}
		b.WriteString("|\n")
	}
	b.WriteString(wrap(o.Lead) + "\n")
	if len(o.Why) > 0 {
		b.WriteString("Measured in the same rounds, where ours is behind:\n\n")
		for _, why := range o.Why {
			b.WriteString("- " + strings.ReplaceAll(strings.TrimSpace(wrap(why)), "\n", "\n  ") + "\n")
		}
		b.WriteString("\n")
	}
	b.WriteString(wrap("The table has the times of one run of `go run -C benchmark .`: of a lock and its release (with 64 goroutines the time divided by the number of locks), or of a handoff. In each column less is better, and the quickest other library is bold. Ours has its ratio to that library in the same rounds, with the 99 % interval; – was not measured, or hardly ever handed a lock over. "+r.circumstances()) + "\n")
	row(o.Header)
	row(slices.Repeat([]string{"---"}, len(o.Header)))
	for _, r := range o.Rows {
		row(r.Cells)
	}
	return b.String()
}

// wrap breaks a paragraph into lines.
func wrap(text string) string {
	var b strings.Builder
	column := 0
	for _, word := range strings.Fields(text) {
		n := len([]rune(word))
		switch {
		case column == 0:
		case column+1+n > 98: // two more columns indent a list
			b.WriteByte('\n')
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String() + "\n"
}

// These lines of the performance page enclose what a run writes.
const (
	readmeBegin = "<!-- written by go run -C benchmark . -readme ../.github/docs/performance.md -->\n"
	readmeEnd   = "<!-- end -->\n"
)

// writeREADME replaces the part of a file that a run writes. It refuses figures of a quick run, and
// of one beside other load.
func (r *Report) writeREADME(path string) error {
	if r.Quick || loaded(r.Machine.Foreign) {
		return fmt.Errorf("%s was not changed: this was a quick run, or other programs used more than a fifth of the processors", path)
	}
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := bytes.Cut(old, []byte(readmeBegin))
	_, after, ended := bytes.Cut(rest, []byte(readmeEnd))
	if !ok || !ended {
		return errors.New(path + " has no part between " + strings.TrimSpace(readmeBegin) + " and " + strings.TrimSpace(readmeEnd))
	}
	text := string(before) + readmeBegin + r.markdown() + readmeEnd + string(after)
	return os.WriteFile(path, []byte(text), 0o644)
}
