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
