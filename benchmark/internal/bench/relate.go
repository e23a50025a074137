package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// toBare and toScripts are the metrics that set a contestant against the limits of the
// same client library in the same case.
const (
	toBare    = "to bare"
	toScripts = "to scripts"
)

// relate adds to each row of a case how it stands to the limits.
func relate(s *Section, name string) {
	rows := s.of(name)
	for _, r := range rows {
		own, ok := r.metric(s.Key)
		if !ok {
			continue
		}
		for _, to := range []struct{ metric, limit string }{{toBare, "bare"}, {toScripts, "scripts"}} {
			for _, l := range rows {
				if l == r || l.Contestant != to.limit+", "+r.Client {
					continue
				}
				if m, ok := l.metric(s.Key); ok && m.Value > 0 {
					v := own.Value / m.Value
					r.Metrics = append(r.Metrics, Metric{Name: to.metric, Unit: Times, Value: v, Low: v, High: v})
				}
			}
		}
	}
}

// A loss is a comparison in which ours is behind.
type loss struct {
	section *Section
	ours    *Row
	other   *Row
	factor  float64 // how much behind: more than 1
}

// comparisons sets each of ours against everything else in its case: peers of any
// client library, limits of the same.
func comparisons(sections []*Section) (all []loss) {
	for _, s := range sections {
		for _, r := range s.Rows {
			m, ok := r.metric(s.Key)
			if r.Kind != Ours || !ok || m.Value <= 0 {
				continue
			}
			for _, other := range s.of(r.Case) {
				o, ok := other.metric(s.Key)
				comparable := other.Kind == Peer || other.Kind == Limit && (other.Client == r.Client || other.Client == "")
				if !ok || !comparable || o.Value <= 0 {
					continue
				}
				factor := m.Value / o.Value
				if s.More {
					factor = 1 / factor
				}
				all = append(all, loss{s, r, other, factor})
			}
		}
	}
	return all
}

// behind is from which factor on a difference is called a loss: less is noise.
const behind = 1.02

// summarize says where ours is behind: the first string is the report's first paragraph,
// the others list each comparison that was lost.
func summarize(sections []*Section) []string {
	all := comparisons(sections)
	var lead, list []string
	for _, kind := range []Kind{Peer, Limit} {
		sentence, lost := against(all, kind)
		if sentence != "" {
			lead = append(lead, sentence)
		}
		list = append(list, lost...)
	}
	if len(lead) == 0 {
		return []string{"Nothing took part that ours could be compared with."}
	}
	return append([]string{strings.Join(lead, " ")}, list...)
}

// against sums up the comparisons with one kind, and lists those that were lost,
// grouped by scenario and contestant, the worst first.
func against(all []loss, kind Kind) (lead string, list []string) {
	var groups [][]loss
	of, lost := 0, 0
	for _, l := range all {
		if l.other.Kind != kind {
			continue
		}
		of++
		if l.factor <= behind {
			continue
		}
		lost++
		i := slices.IndexFunc(groups, l.belongs)
		if i < 0 {
			groups = append(groups, []loss{l})
		} else {
			groups[i] = append(groups[i], l)
		}
	}
	if of == 0 {
		return "", nil
	}
	whom := map[Kind]string{
		Peer:  "other libraries",
		Limit: "the limits, which do less than a lock has to,",
	}[kind]
	if lost == 0 {
		return fmt.Sprintf("In none of %d comparisons with %s are we behind.", of, whom), nil
	}
	slices.SortStableFunc(groups, func(a, b []loss) int { return cmp.Compare(worst(b), worst(a)) })
	for _, g := range groups {
		list = append(list, groupText(g))
	}
	return fmt.Sprintf("In %d of %d comparisons with %s we are behind; the worst: %s.", lost, of, whom, list[0]), list
}

// belongs reports whether l is of the group g.
func (l loss) belongs(g []loss) bool {
	return g[0].section == l.section && g[0].ours.Contestant == l.ours.Contestant && g[0].other.Contestant == l.other.Contestant
}

func worst(g []loss) float64 {
	w := 0.0
	for _, l := range g {
		w = max(w, l.factor)
	}
	return w
}

func groupText(g []loss) string {
	low := g[0].factor
	var cases []string
	for _, l := range g {
		low = min(low, l.factor)
		cases = append(cases, l.ours.Case)
	}
	by := digits(low)
	if b := digits(worst(g)); b != by {
		by += " to " + b
	}
	s := g[0].section
	verb := "has %s × the %s of"
	if s.More {
		verb = "falls %s × short of the %s of"
	}
	return fmt.Sprintf("%s: %s "+verb+" %s (%s)", s.Scenario, g[0].ours.Contestant, by, s.Key, g[0].other.Contestant, strings.Join(cases, "; "))
}
