package redlocktest

import "slices"

// everyCase are the rules that the suite checks around every case.
var everyCase = []rule{noPassword, noLeaks}

// checks returns the rules that the case tests, in their order.
func (c *testCase) checks() (texts []string) {
	all := slices.Concat(everyCase, c.rules)
	slices.Sort(all)
	for _, r := range slices.Compact(all) {
		texts = append(texts, r.String())
	}
	return texts
}

// StressChecks returns the rules that Stress checks, in the form of Failure.Rule.
func StressChecks() (texts []string) {
	for _, r := range []rule{exclusion, fourOutcomes, tokens, noPassword, acquiring, renewing, releasing, holderSeen, waiting, watching, inspecting, breaking, losing, history} {
		texts = append(texts, r.String())
	}
	return texts
}
