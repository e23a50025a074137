package redlocktest

import "slices"

// A Case is a case of the suite.
type Case struct {
	Name string // "expiry/free"
	// Checks are the rules that the case tests, and those that the suite checks around every
	// case if it can, in the form of Failure.Rule.
	Checks []string
	_      struct{}
}

// everyCase are the rules that the suite checks around every case.
var everyCase = []rule{noPassword, noLeaks}

// Cases returns all cases, in the order in which they run.
func Cases() []Case {
	var all []Case
	for _, g := range groups {
		for _, c := range g.cases {
			all = append(all, Case{Name: g.name + "/" + c.name, Checks: inWords(slices.Concat(everyCase, c.rules)...)})
		}
	}
	return all
}

// checks returns the rules that the case tests in this run. Without a secret there is no password
// to search errors for.
func (s *suite) checks(c testCase) []string {
	around := everyCase
	if s.h.Secret == "" {
		around = slices.DeleteFunc(slices.Clone(around), func(r rule) bool { return r == noPassword })
	}
	return inWords(slices.Concat(around, c.rules)...)
}

// inWords returns the texts of rules in their order, each once.
func inWords(rules ...rule) (texts []string) {
	slices.Sort(rules)
	for _, r := range slices.Compact(rules) {
		texts = append(texts, r.String())
	}
	return texts
}

// StressChecks returns the rules that a stress of h with this report has checked, in the form of
// Failure.Rule.
func StressChecks(h Harness, r *StressReport) []string {
	rules := []rule{exclusion, fourOutcomes, tokens, acquiring, holderSeen, waiting, history}
	for _, called := range []struct {
		what  kind
		rules []rule
	}{
		{renewOp, []rule{renewing, losing}}, {releaseOp, []rule{releasing}}, {lookOp, []rule{inspecting}}, {breakOp, []rule{breaking}},
	} {
		if r.Calls[called.what.String()] > 0 {
			rules = append(rules, called.rules...)
		}
	}
	if r.Calls["watch"] > 0 {
		rules = append(rules, watching)
	}
	if h.Secret != "" {
		rules = append(rules, noPassword)
	}
	return inWords(rules...)
}
