package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// A Comparison sets one of ours beside another contestant in a case. Ratio is ours to the other's,
// so that less is better, in each round that both have.
type Comparison struct {
	Section string           `json:"section"`
	Case    string           `json:"case"`
	Metric  string           `json:"metric"`
	Ours    string           `json:"ours"`
	Other   string           `json:"other"`
	Kind    Kind             `json:"kind"` // of the other
	Ratio   figures.Interval `json:"ratio"`
	Verdict figures.Verdict  `json:"verdict"`
	Why     string           `json:"why,omitempty"` // as far as it was measured
}

// comparisons sets each of ours beside the peers of its case, and the limits of its client.
func comparisons(sections []*Section) (all []Comparison) {
	for _, s := range sections {
		for _, own := range s.Rows {
			if own.Kind != Ours {
				continue
			}
			for _, other := range s.of(own.Case) {
				if other.Kind != Peer && (other.Kind != Limit || other.Client != own.Client) || !other.handsOver() {
					continue
				}
				ratio, ok := s.ratio(own, other, s.Key)
				if !ok {
					continue
				}
				c := Comparison{s.Title, own.Case, s.Key, own.Contestant, other.Contestant, other.Kind, ratio, figures.Compare(ratio), ""}
				if c.Verdict == figures.Behind {
					c.Why = s.why(own, other)
				}
				all = append(all, c)
			}
		}
	}
	return all
}

// ratio returns the ratio of a metric so that less is better for own.
func (s *Section) ratio(own, other *Row, metric string) (figures.Interval, bool) {
	a, ok := own.metric(metric)
	b, known := other.metric(metric)
	if !ok || !known {
		return figures.Interval{}, false
	}
	if s.More {
		a, b = b, a
	}
	ratio := figures.Ratios(a.ByRound, b.ByRound)
	return ratio, ratio.Rounds > 0
}

// causes are metrics that can explain why a contestant is slower: what it makes somebody do.
var causes = []string{"server CPU", "client CPU", "server commands", "wire", "allocations"}

// why names what was measured in the same rounds and is clearly more for ours: empty where nothing is.
func (s *Section) why(own, other *Row) string {
	var found []string
	for _, name := range causes {
		a, ok := own.metric(name)
		b, known := other.metric(name)
		if !ok || !known {
			continue
		}
		if ratio := figures.Ratios(a.ByRound, b.ByRound); figures.Compare(ratio) == figures.Behind {
			found = append(found, fmt.Sprintf("%s × the %s (%s to %s)", figures.Digits(ratio.Median), name, figures.Format(a.Median, a.Unit), figures.Format(b.Median, b.Unit)))
		}
	}
	for _, r := range s.of(own.Case) {
		if r.Contestant != "scripts, "+own.Client || r == other {
			continue
		}
		if ratio, ok := s.ratio(r, other, s.Key); ok && figures.Compare(ratio) == figures.Behind {
			found = append(found, fmt.Sprintf("our scripts with nothing around them are %s × behind it", figures.Digits(ratio.Median)))
		}
	}
	return strings.Join(found, ", ")
}

// summarize says where ours is behind: the first string is the report's first paragraph, the others
// list each comparison that is decided.
func summarize(all []Comparison) []string {
	if len(all) == 0 {
		return []string{"Nothing took part that ours could be compared with."}
	}
	var lead, list []string
	for _, kind := range []Kind{Peer, Limit} {
		whom := "other libraries"
		if kind == Limit {
			whom = "the limits, which do less than a lock has to"
		}
		count := map[figures.Verdict]int{}
		var behind []Comparison
		n := 0
		for _, c := range all {
			if c.Kind != kind {
				continue
			}
			n++
			count[c.Verdict]++
			if c.Verdict == figures.Behind {
				behind = append(behind, c)
			}
		}
		if n == 0 {
			continue
		}
		slices.SortStableFunc(behind, func(a, b Comparison) int { return cmp.Compare(b.Ratio.Median, a.Ratio.Median) })
		text := fmt.Sprintf("Of %d comparisons with %s ours is behind in %d, ahead in %d, and %d cannot be told.", n, whom, count[figures.Behind], count[figures.Ahead], count[figures.CannotTell])
		if kind == Peer && len(behind) > 0 {
			b := behind[0]
			text = fmt.Sprintf("%s is ahead of %s by %s × at most (%s, %s, %s). ", b.Other, b.Ours, figures.Digits(b.Ratio.Median), b.Section, b.Case, b.Metric) + text
		}
		lead = append(lead, text)
		for _, b := range behind {
			line := fmt.Sprintf("%s, %s: %s is behind %s by %s in %s", b.Section, b.Case, b.Ours, b.Other, b.Ratio, b.Metric)
			if b.Why != "" {
				line += "; measured beside it: " + b.Why
			}
			list = append(list, line+".")
		}
	}
	return append([]string{strings.Join(lead, " ")}, list...)
}

// A Goal is what this module set itself, and what this run says of it.
type Goal struct {
	What    string           `json:"what"`
	Most    float64          `json:"most"`
	Figure  figures.Interval `json:"figure"`
	Verdict figures.Verdict  `json:"verdict"`
}

// A target is a goal: own's metric by that of beside, or alone. Where less of own is worse (locks a
// second) beside is divided by own.
type target struct {
	scenario, name, metric, own, beside string
	most                                float64
}

func targets() (list []target) {
	for _, client := range []string{"go-redis", "valkey-go"} {
		own, scripts := "dlock, "+client, "scripts, "+client
		list = append(list,
			target{"single", "redis-server", pair + " p50", own, scripts, 1.25},
			target{"throughput", "1 server, 64 goroutines", "locks", own, scripts, 1 / 0.85},
			target{"quorum", "5 nodes", pair + " p50", own, scripts, 1.1},
			target{"quorum", "5 nodes", pair + " p50", own, "redsync, " + client, 1},
			target{"throughput", "5 servers, 64 goroutines", "locks", own, scripts, 1 / 0.9},
			target{"throughput", "5 servers, 64 goroutines", "locks", own, "redsync, go-redis", 1 / 2.5},
			target{"handoff", "2 clients", "handoff p50", own, "queue (BLPOP), " + client, 4},
			target{"handoff", "8 clients", "handoff p50", own, "queue (BLPOP), " + client, 4},
			target{"handoff", "2 clients", "handoff p50", own, "", 0.001},
		)
		for _, f := range faultCases[:4] {
			for _, op := range []string{"acquire", "release"} {
				list = append(list, target{"faults", f.name, op + " p50 " + toMajority, own, "", 1.1})
			}
		}
	}
	return append(list,
		target{"postgres", "postgres", pair + " p50", "dlock, pgx", "bare, pgx", 1.25},
		target{"postgres", "64 goroutines", "locks", "dlock, pgx", "bare, pgx", 0.5},
		target{"postgres", "8 clients", "handoff p50", "dlock, pgx", "bare, pgx", 2},
		target{"postgres", "10,000 leases", "connections", "dlock, pgx", "", 4},
	)
}

// goals judges the targets that were measured.
func goals(sections []*Section) (list []Goal) {
	for _, t := range targets() {
		for _, s := range sections {
			own := s.row(t.name, t.own)
			if s.Scenario != t.scenario || own == nil {
				continue
			}
			m, ok := own.metric(t.metric)
			what, figure := fmt.Sprintf("%s, %s: %s of %s", s.Title, t.name, t.metric, t.own), m.Interval
			if t.beside != "" && ok {
				other := s.row(t.name, t.beside)
				if other == nil {
					break
				}
				what += " to " + t.beside
				figure, ok = s.ratio(own, other, t.metric)
			}
			if ok {
				list = append(list, Goal{what, t.most, figure, figures.Judge(figure, t.most)})
			}
			break
		}
	}
	return list
}

// readme is the table of README: ours, the quickest peer and the bare commands, less being better in
// every column.
func readme(sections []*Section) table {
	t := table{Case: "In one table: ours to the bare commands and to the quickest other library, in time per lock, so that below 1 ours is ahead", Header: []string{"", "client", "to bare commands", "to the quickest peer", "which is"}}
	for _, s := range sections {
		for _, own := range s.Rows {
			if own.Kind != Ours || own.Client == "" || s.Scenario != "single" && s.Scenario != "quorum" && s.Scenario != "throughput" && s.Scenario != "handoff" && s.Scenario != "postgres" {
				continue
			}
			row := []string{s.Title + ", " + own.Case, own.Client, "–", "–", "–"}
			var best figures.Interval
			for _, other := range s.of(own.Case) {
				ratio, ok := s.ratio(own, other, s.Key)
				switch {
				case !ok || !other.handsOver():
				case other.Contestant == "bare, "+own.Client || other.Contestant == "queue (BLPOP), "+own.Client:
					row[2] = ratio.String()
				case other.Kind == Peer && ratio.Median > best.Median:
					best, row[3], row[4] = ratio, ratio.String()+", "+string(figures.Compare(ratio)), other.Contestant
				}
			}
			if row[2] != "–" || row[3] != "–" {
				t.Rows = append(t.Rows, tableRow{Cells: row})
			}
		}
	}
	return t
}
