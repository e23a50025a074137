// Package figures judges measurements and draws them.
//
//	Latencies ──> a histogram of one operation
//	Interval  ──> the median over rounds, and where it may be
//	Verdict   ──> ahead, behind, cannot tell; met, missed, undecided
//	Plot      ──> SVG, for light and for dark pages
//
// Two contestants are compared by the ratio of their figures in each round, since a machine
// that is slow for a while is slow for both, and by the interval of those ratios over the
// rounds. What the interval does not decide is not decided.
package figures
