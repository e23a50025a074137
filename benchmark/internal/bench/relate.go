package bench

import (
	"cmp"
	"fmt"
	"math"
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
			if r.Kind != Ours || !ok {
				continue
			}
			for _, other := range s.of(r.Case) {
				o, ok := other.metric(s.Key)
				comparable := other.Kind == Peer || other.Kind == Limit && (other.Client == r.Client || other.Client == "")
				if !ok || !comparable {
					continue
				}
				factor := m.Value / o.Value
				if s.More {
					factor = 1 / factor
				}
				if m.Value == o.Value {
					factor = 1 // both may be nothing
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
// the others list each comparison that was lost, and why.
func summarize(sections []*Section) []string {
	all := comparisons(sections)
	var lead, list []string
	for _, kind := range []Kind{Peer, Limit} {
		of, groups := lost(all, kind)
		if of > 0 {
			lead = append(lead, against(kind, of, groups))
		}
		for _, g := range groups {
			list = append(list, g.text()+". Why: "+g.why()+".")
		}
	}
	if len(lead) == 0 {
		return []string{"Nothing took part that ours could be compared with."}
	}
	return append([]string{strings.Join(lead, " ")}, list...)
}

// A group is the comparisons of one of ours with another in one section that were lost.
type group []loss

// lost returns how many comparisons there were with one kind, and groups those that
// were lost, the worst first.
func lost(all []loss, kind Kind) (of int, groups []group) {
	for _, l := range all {
		if l.other.Kind != kind {
			continue
		}
		of++
		if l.factor <= behind {
			continue
		}
		i := slices.IndexFunc(groups, func(g group) bool {
			return g[0].section == l.section && g[0].ours.Contestant == l.ours.Contestant && g[0].other.Contestant == l.other.Contestant
		})
		if i < 0 {
			groups = append(groups, group{l})
		} else {
			groups[i] = append(groups[i], l)
		}
	}
	slices.SortStableFunc(groups, func(a, b group) int { return cmp.Compare(b.worst(), a.worst()) })
	return of, groups
}

// against sums up the comparisons with one kind: by section, who is ahead of any of ours
// and by how much at worst. The limits, of which most are ahead everywhere, are one.
func against(kind Kind, of int, groups []group) string {
	whom := "other libraries"
	if kind == Limit {
		whom = "the limits, which do less than a lock has to,"
	}
	if len(groups) == 0 {
		return fmt.Sprintf("In none of %d comparisons with %s are we behind.", of, whom)
	}
	type ahead struct {
		section *Section
		names   []string
		worst   []float64
	}
	var list []*ahead
	n := 0
	for _, g := range groups {
		n += len(g)
		i := slices.IndexFunc(list, func(a *ahead) bool { return a.section == g[0].section })
		if i < 0 {
			i = len(list)
			list = append(list, &ahead{section: g[0].section})
		}
		name := ""
		if kind == Peer {
			name = g[0].other.Contestant + " by "
		}
		if !slices.Contains(list[i].names, name) { // the worst comes first
			list[i].names, list[i].worst = append(list[i].names, name), append(list[i].worst, g.worst())
		}
	}
	var parts []string
	for _, a := range list {
		var who []string
		for i, name := range a.names {
			who = append(who, name+times(a.worst[i]))
		}
		parts = append(parts, a.section.Title+" ("+strings.Join(who, "; ")+")")
	}
	return fmt.Sprintf("In %d of %d comparisons with %s we are behind, at worst so: %s.", n, of, whom, strings.Join(parts, ", "))
}

func (g group) worst() float64 {
	w := 0.0
	for _, l := range g {
		w = max(w, l.factor)
	}
	return w
}

// nbsp keeps a number and its unit on one line.
const nbsp = "\u00a0"

// times writes a factor.
func times(factor float64) string {
	if math.IsInf(factor, 1) {
		return "some against none"
	}
	return digits(factor) + nbsp + "×"
}

// text says who is behind whom, by how much and where.
func (g group) text() string {
	low := g[0].factor
	var cases []string
	for _, l := range g {
		low = min(low, l.factor)
		cases = append(cases, l.ours.Case)
	}
	by := times(low)
	if most := times(g.worst()); most != by {
		by = strings.TrimSuffix(by, nbsp+"×") + " to " + most
	}
	s := g[0].section
	verb := "has %s the %s of"
	if s.More {
		verb = "falls %s short of the %s of"
	}
	return fmt.Sprintf("%s: %s "+verb+" %s (%s)", s.Scenario, g[0].ours.Contestant, by, s.Key, g[0].other.Contestant, strings.Join(cases, "; "))
}

// A reason is why ours is behind others: those whose name begins so, in a scenario, by a
// metric; empty: in any. The first that fits counts.
type reason struct {
	scenario, metric, other, why string
}

var reasons = []reason{
	{"recovery", "next grant p50", "", "the servers keep a lock of ours for a grace after its TTL (lock-delay), so that clocks that differ cannot make two holders; and the other's lock may have no TTL that short"},
	{"recovery", "vote p50", "", "a guard keeps the node out until no lock of its former life can be held any more; without one it votes as soon as it is connected to, and the rest is when the client tries it again"},
	{"recovery", "attempt", "", "the attempt may use all the time that its context gives it"},
	{"orphans", "", "", "this should not be: it is a fault of ours"},
	{"held", "", "bare", "nothing watches these keys: no renewal of their own, no deadline, no signal of the loss"},
	{"held", "", "scripts", "nothing watches these keys: no renewal of their own, no deadline, no signal of the loss"},
	{"held", "", "", "the others' locks have no deadline, no watcher and no statistics, or are renewed by their user"},
	{"handoff", "", "BLPOP queue", "a queue hands its token to one waiter with one command, and is no lock: a holder that dies takes the token with it"},
	{"postgres", "", "", "a bare advisory lock has no lease, no token and no heartbeat, and its wait is the server's own"},
	{"wire", "", "", "ours carry an owner, a token and a deadline, and tell the waiters of a release"},
	{"", "", "bare", "SET and compare-and-delete have no token, no wake-up of waiters and no lock-delay; ours pay for these in the server's script and for the lease in the client"},
	{"", "", "scripts", "what a lease has around the scripts: an owner, a deadline by two clocks, renewal, hooks and, with several nodes, counting the votes"},
	{"", "", "BLPOP queue", "a queue is no lock: a holder that dies takes the token with it"},
	{"handoff", "", "", "the lock goes to who is next in line, who is told and then asks; with the other the next is who asks first, which is quick where it is the one who had it, or luck: see passing on"},
	{"", "", "redislock", "it sets a key and deletes it: no token, no wake-up of waiters, no lock-delay"},
	{"", "", "redsync", "it sets keys and deletes them: no token, no wake-up of waiters, no lock-delay"},
	{"", "", "valkeylock", "it sets a key and deletes it: no token, no lock-delay"},
	{"", "", "rueidislock", "it sets a key and deletes it: no token, no lock-delay; and its client gathers commands of many goroutines"},
}

// why says why a group was lost.
func (g group) why() string {
	for _, r := range reasons {
		s := g[0].section
		if (r.scenario == "" || r.scenario == s.Scenario) && (r.metric == "" || r.metric == s.Key) && strings.HasPrefix(g[0].other.Contestant, r.other) {
			return r.why
		}
	}
	return "not known; a profile of this case would tell"
}
