package redlocktest

import "slices"

// everyCase are the rules that the suite checks around every case.
var everyCase = []rule{noPassword, noLeaks}

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
		{watchOp, []rule{watching}},
	} {
		if r.Calls[called.what.String()] > 0 {
			rules = append(rules, called.rules...)
		}
	}
	if h.Secret != "" {
		rules = append(rules, noPassword)
	}
	return inWords(rules...)
}
