// Package bench measures locks, for the program benchmark.
//
//	Contestant ──opens──> Locker          one way to take locks, over one client library
//	Scenario ──> Case ──rounds──> Row     what is measured, contestants in turn
//	Report ──> report.json, report.md, report.html
//
// What is compared is measured in one run, in rounds: in each round every contestant
// has its turn, in an order that changes, so that a machine which is slow for a
// while is slow for all. A figure is the median of its rounds, and stands with the
// range in which it is with a confidence of 99 %. Two contestants are compared by the ratio
// of their figures in each round.
package bench
