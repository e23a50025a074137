package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/redlock-go/redlock/benchmark/internal/figures"
)

// A Comparison compares a contestant of this module with another contestant in a case. Ratio is
// the ratio of their figures, ours to the other's, over the rounds that both have; less is
// better for ours.
type Comparison struct {
	Case    string           `json:"case"`
	Metric  string           `json:"metric"`
	Ours    string           `json:"ours"`
	Other   string           `json:"other"`
	Kind    Kind             `json:"kind"` // of the other
	Ratio   figures.Interval `json:"ratio"`
	Verdict figures.Verdict  `json:"verdict"`
	Why     string           `json:"why,omitempty"` // the measured causes, if any
}

// comparisons compares each contestant of this module with the peers in its case, and with the
// limits over the same client library.
func comparisons(sections []*Section) (all []Comparison) {
	for _, s := range sections {
		for _, own := range s.Rows {
			if own.Kind != Ours || s.Once {
				continue
			}
			for _, other := range s.of(own.Case) {
				if other.Kind != Peer && (other.Kind != Limit || other.Client != own.Client) {
					continue
				}
				if c, ok := s.compare(own, other); ok {
					all = append(all, c)
				}
			}
		}
	}
	return all
}

// compare compares two rows of a case; ok is false if there is nothing to compare.
func (s *Section) compare(own, other *Row) (c Comparison, ok bool) {
	ratio, ok := s.ratio(own, other, s.Key)
	if !ok || !other.handsOver() {
		return c, false
	}
	c = Comparison{label(s.Title, own.Case), s.Key, own.Contestant, other.Contestant, other.Kind, ratio, figures.Compare(ratio), ""}
	if own.disturbed() {
		c.Verdict = figures.CannotTell
	}
	if c.Verdict == figures.Behind {
		c.Why = s.why(own, other)
	}
	return c, true
}

// ratio returns the ratio of a metric of own and other, oriented so that less is better for own.
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

// causes are the metrics that can explain why a contestant is slower.
var causes = []string{"server CPU", "client CPU", "server commands", "wire", "allocations"}

// why names what is measured to be greater for ours in the same rounds, and how far behind the
// parts of ours are by themselves. It returns "" if nothing was measured.
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
	for _, part := range []struct{ name, what string }{
		{"scripts, " + own.Client, "our scripts"}, {"driver, " + own.Client, "our driver"},
	} {
		if r := s.row(own.Case, part.name); r != nil && r != other {
			if ratio, ok := s.ratio(r, other, s.Key); ok {
				found = append(found, fmt.Sprintf("%s alone: %s its time", part.what, ratio))
			}
		}
	}
	return strings.Join(found, "; ")
}

// summarize counts the verdicts, and lists each comparison in which ours is behind.
func summarize(all []Comparison) (counts string, list []string) {
	if len(all) == 0 {
		return "Nothing took part that ours could be compared with.", nil
	}
	var texts []string
	for _, kind := range []Kind{Peer, Limit} {
		whom := "other libraries"
		if kind == Limit {
			whom = "the limits, which do less than a lock has to,"
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
		texts = append(texts, fmt.Sprintf("Of %d comparisons with %s ours is behind in %d, ahead in %d, and %d cannot be told.", n, whom, count[figures.Behind], count[figures.Ahead], count[figures.CannotTell]))
		for _, b := range behind {
			line := fmt.Sprintf("%s: %s is behind %s by %s in %s", b.Case, b.Ours, b.Other, b.Ratio, b.Metric)
			if b.Why != "" {
				line += "; measured beside it: " + b.Why
			}
			list = append(list, line+".")
		}
	}
	return strings.Join(texts, " "), list
}

// A Goal is a limit that this module sets itself for a figure, and whether this run met it.
type Goal struct {
	What    string           `json:"what"`
	Most    float64          `json:"most"`
	Figure  figures.Interval `json:"figure"`
	Verdict figures.Verdict  `json:"verdict"`
}

// A target is a goal before the run: own's metric divided by that of beside, or own's alone, is
// at most most. If more is better (locks a second), beside's is divided by own's.
type target struct {
	scenario, name, metric, own, beside string
	most                                float64
}

func targets() (list []target) {
	for _, client := range []string{"go-redis", "valkey-go"} {
		own, scripts := "dlock, "+client, "scripts, "+client
		list = append(list,
			target{"single", "1 redis-server", pair + " p50", own, scripts, 1.25},
			target{"throughput", "1 redis-server, 64 goroutines", "locks", own, scripts, 1 / 0.85},
			target{"quorum", "5 redis-servers", pair + " p50", own, scripts, 1.1},
			target{"quorum", "5 redis-servers", pair + " p50", own, "redsync, " + client, 1},
			target{"throughput", "5 redis-servers, 64 goroutines", "locks", own, scripts, 1 / 0.9},
			target{"throughput", "5 redis-servers, 64 goroutines", "locks", own, "redsync, go-redis", 1 / 2.5},
			target{"handoff", "1 redis-server, 2 clients", "handoff p50", own, "queue (BLPOP), " + client, 4},
			target{"handoff", "1 redis-server, 8 clients", "handoff p50", own, "queue (BLPOP), " + client, 4},
		)
		for _, f := range faultCases {
			for _, op := range []string{"acquire", "release"} {
				list = append(list, target{"faults", f.name, op + " p50 " + toMajority, own, "", 1.1})
			}
		}
	}
	return append(list,
		target{"single", "1 postgres", pair + " p50", "dlock, pgx", "bare, pgx", 1.25},
		target{"throughput", "1 postgres, 64 goroutines", "locks", "dlock, pgx", "bare, pgx", 0.5},
		target{"handoff", "1 postgres, 8 clients", "handoff p50", "dlock, pgx", "bare, pgx", 2},
	)
}

// goals judges the targets that this run measured.
func goals(sections []*Section) (list []Goal) {
	for _, t := range targets() {
		for _, s := range sections {
			own := s.row(t.name, t.own)
			if s.Scenario != t.scenario || own == nil {
				continue
			}
			m, ok := own.metric(t.metric)
			what, figure := fmt.Sprintf("%s: %s of %s", label(s.Title, t.name), t.metric, t.own), m.Interval
			if t.beside != "" && ok {
				other := s.row(t.name, t.beside)
				if other == nil {
					break
				}
				what += " to " + t.beside
				figure, ok = s.ratio(own, other, t.metric)
			}
			if ok {
				g := Goal{what, t.most, figure, figures.Judge(figure, t.most)}
				if own.disturbed() {
					g.Verdict = figures.Undecided
				}
				list = append(list, g)
			}
			break
		}
	}
	return list
}
