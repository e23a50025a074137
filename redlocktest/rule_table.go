package redlocktest

import "slices"

// always are the rules that what all cases use can find broken.
var always = []rule{exclusion, fourOutcomes, acquiring, renewing, releasing, noPassword, noLeaks}

// checked are the rules that the cases of a group can find broken besides. A test compares them
// with the code.
var checked = map[string][]rule{
	"basic":     {describing, expires, losing, sessions, tokens},
	"open":      {inspecting, opening, refuses},
	"request":   {refuses, requesting},
	"exclusion": {noReentrancy, oneWins},
	"verdict":   {holderSeen, nodes},
	"expiry":    {expires, holderSeen, keeping, tokens},
	"cancel":    {undoes},
	"wait":      {queueing, waiting},
	"watch":     {watching},
	"fence":     {expires, floors, tokens},
	"node":      {floors, joins, nodes, raising, tokens},
	"shared":    {noReentrancy, queueing, sharing, tokens, waiting},
	"operator":  {breaking, inspecting},
	"close":     {closing, describing, losing, sessions},
	"leak":      {closing},
	"fault":     {expires, layout, losing, opening, refuses, tokens, undoes, waiting, watching},
	"history":   {history, tokens, watching},
}

// checks returns the rules that a group's cases can find broken, in their order.
func (g *group) checks() (texts []string) {
	all := append(slices.Clone(always), checked[g.name]...)
	slices.Sort(all)
	for _, r := range slices.Compact(all) {
		texts = append(texts, r.String())
	}
	return texts
}

// StressChecks returns the rules that Stress can find broken, as Failure.Rule has them.
func StressChecks() (texts []string) {
	for _, r := range []rule{exclusion, fourOutcomes, tokens, noPassword, acquiring, releasing, watching, inspecting, breaking, history} {
		texts = append(texts, r.String())
	}
	return texts
}
