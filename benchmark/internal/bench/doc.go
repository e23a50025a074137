// Package bench measures locks, for the program benchmark.
//
//	Contestant ──opens──> Locker          one way to take locks, over one client library
//	Scenario ──> Case ──rounds──> Row     what is measured, contestants in turn
//	Report ──> report.json, report.html
//
// One run measures all contestants that are compared, in rounds. In each round every contestant
// has one turn, in an order that changes, so that a machine that is slow for a while is slow
// for all. A figure is the median of its rounds, with its 99 % confidence interval. Two
// contestants are compared by the ratio of their figures in each round.
package bench
